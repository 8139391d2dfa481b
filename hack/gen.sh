#!/bin/sh
# Writes every generated file (CRDs, the shim's hook table, gRPC stubs); with --check, fails if one is out of date.
set -eu
cd "$(dirname "$0")/.."
.venv/bin/python hack/gen_crds.py "$@"
.venv/bin/python shim/tools/hook_table.py "$@"
hack/gen_protos.sh "$@"
