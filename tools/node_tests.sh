#!/usr/bin/env bash
# Runs the tests of a folder with Node's own test runner. Exit code 77: skipped.
set -euo pipefail
cd "$1"
if ! command -v node >/dev/null; then
  echo "skipped: node is not installed"
  exit 77
fi
if [ ! -d node_modules ]; then
  echo "skipped: the packages are not installed; run npm ci in $PWD, or make test"
  exit 77
fi
exec node --test --test-concurrency=1
