#!/bin/sh
# Writes the stubs in nodeagent/mizar_nodeagent/proto from the .proto files beside them; only a file with
# services gets a gRPC stub.
#   gen_protos.sh           write them
#   gen_protos.sh --check   fail if a committed stub is out of date
set -eu
cd "$(dirname "$0")/.."
proto=mizar_nodeagent/proto
out=nodeagent
if [ "${1:-}" = --check ]; then
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi
.venv/bin/python -m grpc_tools.protoc -I nodeagent --python_out="$out" --pyi_out="$out" nodeagent/$proto/*.proto
# shellcheck disable=SC2046
.venv/bin/python -m grpc_tools.protoc -I nodeagent --grpc_python_out="$out" \
    $(grep -l '^service ' nodeagent/$proto/*.proto)
[ "$out" = nodeagent ] && exit 0
stale=0
for made in "$out/$proto"/*; do
    cmp -s "$made" "nodeagent/$proto/$(basename "$made")" && continue
    echo "nodeagent/$proto/$(basename "$made") is not what its .proto gives" >&2
    stale=1
done
[ "$stale" = 0 ] || { echo "run: hack/gen_protos.sh" >&2; exit 1; }
