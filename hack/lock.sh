#!/bin/sh
# Writes requirements/*.lock from pyproject.toml: every package pinned with its hashes.
# `hack/lock.sh --upgrade` upgrades to newer versions; without it, existing pins are kept.
set -eu
cd "$(dirname "$0")/.."
for extra in operator nodeagent dev; do
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-emit-package mizar \
        --custom-compile-command hack/lock.sh --no-annotate "$@" \
        --extra "$extra" pyproject.toml --output-file "requirements/$extra.lock"
done
