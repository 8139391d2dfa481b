#!/bin/sh
# Creates .venv with the locked packages; does nothing if the lock and pyproject.toml are unchanged.
set -eu
cd "$(dirname "$0")/.."
lock=requirements/dev.lock
want=$(cat "$lock" pyproject.toml | sha256sum | cut -d' ' -f1)
[ "$(cat .venv/.lock-hash 2>/dev/null || true)" = "$want" ] && exit 0
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$python is older than 3.11: name a newer one, as in PYTHON=python3.11 make check" >&2
    exit 1
}
echo "setting up .venv (Python packages from $lock)"
"$python" -m venv .venv
.venv/bin/pip install --quiet --require-hashes --requirement "$lock"
.venv/bin/pip install --quiet --no-deps --no-build-isolation --editable .
echo "$want" > .venv/.lock-hash
