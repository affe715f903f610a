#!/usr/bin/env bash
# node_tests.sh FOLDER [PROGRAM...]: runs the tests of a folder with Node's own test runner; they need one of the programs.
# Exit code 77: skipped.
set -euo pipefail
cd "$1"
shift
if ! command -v node >/dev/null; then
  echo "skipped: node is not installed"
  exit 77
fi
if [ ! -d node_modules ]; then
  echo "skipped: the packages are not installed; run npm ci in $PWD, or make test"
  exit 77
fi
if [ $# -gt 0 ] && ! command -v "$@" >/dev/null; then
  echo "skipped: none of these is installed: $*"
  exit 77
fi
exec node --test --test-concurrency=1
