#!/usr/bin/env bash
# Checks the form of the sources: clang-format, clang-tidy, and that no room includes one above it. clang-tidy takes half a
# minute a file, those that changed last first; LINT_SECONDS bounds it.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t sources < <(git ls-files 'src/*.cpp' 'src/*.h' 'src/*.inl' 'src/*.cu' 'src/*.cuh' 'src/*.metal' 'src/*.mm' 'tests/*.cpp' 'tests/*.h' 'bench/*.cpp' 'fuzz/*.cpp')
echo "== clang-format: ${#sources[@]} files"
clang-format --dry-run --Werror "${sources[@]}"

echo "== Rooms: nothing includes upward"
rooms=(base model text checkpoint reference cpu cuda metal engine chat server cli)
for i in "${!rooms[@]}"; do
  for above in "${rooms[@]:i+1}"; do
    if grep -rn "#include \"$above/" "src/${rooms[i]}"; then
      echo "src/${rooms[i]} includes $above, which stands above it" >&2
      exit 1
    fi
  done
done

echo "== Kernels: no function that the linker could take for another processor's"
cmake --build build/release --target calla_cpu >/dev/null
for object in build/release/src/CMakeFiles/calla_cpu.dir/cpu/kernels_*.o; do
  if nm "$object" | grep -E ' [WVu] '; then
    echo "$object has weak symbols: kernel sources include nothing that defines inline functions" >&2
    exit 1
  fi
done

echo "== clang-tidy"
# Clang cannot read the precompiled headers of another compiler.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
cmake --preset release -B build/lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCALLA_CUDA=$([ -n "$nvcc" ] && echo ON || echo OFF) >/dev/null
export deadline_at=$(($(date +%s) + ${LINT_SECONDS:-86400}))
tidy() {
  if [ "$(date +%s)" -gt "$deadline_at" ]; then
    echo "$1" >>build/lint/not_reached
  else
    clang-tidy -p build/lint --quiet "$1" 2>/dev/null
  fi
}
export -f tidy
rm -f build/lint/not_reached
# Without NVIDIA's toolkit there are no headers to read the CUDA backend with.
{ git log --name-only --pretty=format: -- 'src/*.cpp'; git ls-files 'src/*.cpp'; } | awk 'NF && !seen[$0]++' |
  { [ -n "$nvcc" ] && cat || grep -v '^src/cuda/[^/]*$'; } |
  while read -r file; do [ ! -f "$file" ] || echo "$file"; done |
  xargs -P "$(nproc)" -I{} bash -c 'tidy {}'
if [ -f build/lint/not_reached ]; then
  echo "not reached in $LINT_SECONDS s: $(wc -l <build/lint/not_reached) files"
fi
