#!/usr/bin/env bash
# Builds with CUDA for the GPU of this machine and runs whatever needs one: every kernel and the backend against plain
# loops and the reference, the quality on the held-out text, and the speed on synthetic weights of the 35B.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== Building for this machine's GPU"
cmake --preset release -B build/gpu -DCALLA_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DCALLA_BENCH=OFF >/dev/null
cmake --build build/gpu --target calla cuda_tests -j "${JOBS:-$(nproc)}"
calla=build/gpu/calla

echo "== Tests"
build/gpu/tests/cuda_tests --gtest_brief=1

echo "== Quality: the demonstration model against the reference"
$calla eval tests/data/held_out.jsonl --backend cuda --against reference --max-positions 2048
$calla eval tests/data/held_out.jsonl --backend cuda --against reference --max-positions 2048 --prefill 16
$calla eval tests/data/held_out.jsonl --backend cuda --against reference --max-positions 2048 --prefill 64

echo "== Quality: four layers of the 35B's dimensions"
$calla eval tests/data/held_out.jsonl --backend cuda --synthetic 35b:4 --against reference --max-positions 64

echo "== Speed"
$calla bench --backend cuda --synthetic 35b --contexts 1,4,16,17,64 --steps 32 --rounds 3
$calla bench --backend cuda --synthetic 35b --contexts 512,4096,8192,32768,131072 --steps 128 --rounds 2
$calla bench --backend cuda --synthetic 35b --contexts 1024 --batch 16 --steps 64 --rounds 2
