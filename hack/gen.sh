#!/bin/sh
# Writes every generated file (CRDs, the shim's hook table, gRPC stubs); with --check, fails when one differs from its source.
set -eu
cd "$(dirname "$0")/.."
.venv/bin/python hack/gen_crds.py "$@"
.venv/bin/python shim/tools/hook_table.py "$@"
hack/gen_protos.sh "$@"
