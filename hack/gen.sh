#!/bin/sh
# Writes every generated file (CRDs, gRPC stubs); with --check, fails when one differs from its source.
set -eu
cd "$(dirname "$0")/.."
.venv/bin/python hack/gen_crds.py "$@"
hack/gen_protos.sh "$@"
