#!/usr/bin/env bash
# Runs the tests of build/release, with ctest's arguments, and leaves one file to send to whoever is asked about a failure:
# what the machine is, what Calla sees of it, and what the tests say.
set -uo pipefail
cd "$(dirname "$0")/.."
report=build/release/test-report.txt

machine() {
  if [ "$(uname)" = Darwin ]; then
    sw_vers
    echo "SDK $(xcrun --show-sdk-version)"
    sysctl machdep.cpu.brand_string hw.memsize hw.perflevel0.physicalcpu hw.perflevel1.physicalcpu iogpu.wired_limit_mb
    system_profiler SPDisplaysDataType | grep -E 'Chipset Model|Total Number of Cores|Metal'
  else
    uname -srm
    lscpu | grep -E '^(Model name|CPU\(s\)|Thread|L[23])'
    grep -E '^(MemTotal|MemAvailable)' /proc/meminfo
    command -v nvidia-smi >/dev/null && nvidia-smi -L
  fi
}

{
  echo "== Calla $(git describe --always --dirty 2>/dev/null), $(date -u +%Y-%m-%dT%H:%MZ)"
  echo "== Machine"
  machine
  c++ --version
  cmake --version
  echo "== calla info"
  build/release/calla info
  echo "== Tests"
} >"$report" 2>&1

ctest --test-dir build/release --output-on-failure "$@" 2>&1 | tee -a "$report"
failed=$?
{
  echo "== All they print"
  cat build/release/Testing/Temporary/LastTest.log
} >>"$report"
[ $failed -eq 0 ] || echo "== Something failed. $report has all of it, and what this machine is: please send it."
exit $failed
