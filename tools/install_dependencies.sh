#!/usr/bin/env bash
# Installs what the build needs and the system lacks: with apt-get on Debian, with Homebrew on macOS.
set -euo pipefail

if [ -n "${NO_INSTALL:-}" ]; then
  echo "== NO_INSTALL is set: nothing is installed"
  exit 0
fi

if [ "$(uname)" = Darwin ]; then
  formulas=(cmake ninja pkg-config nlohmann-json fmt cli11 boost spdlog pcre2 icu4c googletest google-benchmark xz node)
  missing=()
  for formula in "${formulas[@]}"; do
    brew list --versions "$formula" >/dev/null 2>&1 || missing+=("$formula")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    echo "== Installing with Homebrew: ${missing[*]}"
    brew install "${missing[@]}"
  fi
  exit 0
fi

if ! command -v apt-get >/dev/null; then
  echo "This system has no apt-get. Install the packages that docs/architecture.md lists and set NO_INSTALL=1." >&2
  exit 1
fi

packages=(g++ cmake ninja-build pkg-config nlohmann-json3-dev libfmt-dev libcli11-dev libboost-dev libboost-context-dev libspdlog-dev
  libpcre2-dev libicu-dev zlib1g-dev libgtest-dev libbenchmark-dev xz-utils "$@")
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "These packages are missing: ${missing[*]}. Install them as root, or install sudo." >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "== Installing with apt-get: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
