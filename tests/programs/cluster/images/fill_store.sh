#!/bin/sh
# Imports images into a new containerd store: fill_store.sh PROGRAMS ROOT ARCHIVE...
# Runs in mount and process namespaces of its own: whatever it starts or mounts ends with it.
set -eu
programs=$1 root=$2
shift 2
mount --make-rprivate /
mount -t tmpfs tmpfs /run
state=/run/mizar-store
mkdir "$state"
cat >"$state/config.toml" <<CONFIG
version = 2
root = "$root"
state = "$state/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"]
[grpc]
address = "$state/socket"
[ttrpc]
address = "$state/ttrpc"
CONFIG
PATH=$programs:$PATH containerd --config "$state/config.toml" --log-level error &
containerd=$!
ctr() { "$programs/ctr" --address "$state/socket" --namespace k8s.io --timeout 300s "$@"; }

tries=0
until [ -S "$state/socket" ] && ctr version >/dev/null 2>&1; do
    kill -0 "$containerd" || exit 1
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || { echo "containerd does not answer" >&2; exit 1; }
    sleep 0.1
done
for archive in "$@"; do
    echo "importing $archive"
    ctr images import --local --discard-unpacked-layers "$archive"
done
kill "$containerd"
wait "$containerd" || true
sync -f "$root"
