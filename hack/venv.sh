#!/bin/sh
# Makes .venv with the locked packages; does nothing when the lock has not changed since.
set -eu
cd "$(dirname "$0")/.."
lock=requirements/dev.lock
want=$(cat "$lock" pyproject.toml | sha256sum | cut -d' ' -f1)
[ "$(cat .venv/.lock-hash 2>/dev/null || true)" = "$want" ] && exit 0
echo "setting up .venv (Python packages from $lock)"
"${PYTHON:-python3}" -m venv .venv
.venv/bin/pip install --quiet --require-hashes --requirement "$lock"
.venv/bin/pip install --quiet --no-deps --no-build-isolation --editable .
echo "$want" > .venv/.lock-hash
