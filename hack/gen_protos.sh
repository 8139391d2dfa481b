#!/bin/sh
# Writes the stubs beside the .proto files of the node agent and of the simulated cards; only a file with services gets
# a gRPC stub.
#   gen_protos.sh           write them
#   gen_protos.sh --check   fail if a committed stub is out of date
set -eu
cd "$(dirname "$0")/.."
stale=0
if [ "${1:-}" = --check ]; then
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
fi

# $1: the folder from which the package in $2 is imported.
stubs() {
    out=${made:-$1}
    .venv/bin/python -m grpc_tools.protoc -I "$1" --python_out="$out" --pyi_out="$out" "$1/$2"/*.proto
    # shellcheck disable=SC2046
    .venv/bin/python -m grpc_tools.protoc -I "$1" --grpc_python_out="$out" $(grep -l '^service ' "$1/$2"/*.proto)
    [ "$out" = "$1" ] && return
    for one in "$out/$2"/*; do
        cmp -s "$one" "$1/$2/$(basename "$one")" && continue
        echo "$1/$2/$(basename "$one") is not what its .proto gives" >&2
        stale=1
    done
}

stubs nodeagent mizar_nodeagent/proto
stubs tests/programs simgpu/proto
[ "$stale" = 0 ] || { echo "run: hack/gen_protos.sh" >&2; exit 1; }
