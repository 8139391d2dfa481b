#!/bin/sh
# Installs the Debian packages that Mizar's commands need, and only those that are missing.
#   setup.sh tools   packages that `make check` and `make check-more` need: Python with venv, a C compiler
#   setup.sh root    also packages that a local Kubernetes needs; must be run by root
set -eu
# For a user, or for root after `su`, the folders of system programs are not in PATH.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
kind=${1:?usage: setup.sh tools|root}

missing=""
need() { # need COMMAND PACKAGE...
    command -v "$1" >/dev/null 2>&1 && return
    shift
    missing="$missing $*"
}
need python3 python3
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
need cc gcc libc6-dev
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"

if [ "$kind" = root ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "this needs root: a local Kubernetes makes namespaces, mounts and cgroups; run it with sudo" >&2
        exit 1
    fi
    need ip iproute2
    need nft nftables
    need runc runc
    need buildah buildah
    need mmdebstrap mmdebstrap
    # To test the shim under a program with another libc.
    need musl-gcc musl-tools
    need unshare util-linux
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"
fi

[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ]; then
    echo "missing Debian packages:$missing" >&2
    echo "install them with: sudo apt-get install$missing" >&2
    exit 1
fi
echo "installing Debian packages:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
# shellcheck disable=SC2086
apt-get -qq install --yes --no-install-recommends $missing >/dev/null
