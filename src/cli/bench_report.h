// What a benchmark found, and its forms for people and programs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/bench_measure.h"
#include "cli/process_memory.h"
#include "model/cost.h"

namespace calla::cli {

/// The rounds of one context and the ceilings beside them.
struct BenchRow {
  int context = 0;
  std::vector<Round> rounds;
  double prefill_operations = 0;  // of one prompt
  DecodeBytes decode_bytes;       // of one step
};

struct BenchReport {
  std::string processor;
  int processor_threads = 0;
  int threads = 0;  // of the processor that the backend uses, and that the ceilings were measured with
  double read_bandwidth = 0;                         // bytes per second
  double product_peak = 0;                           // multiply-adds a second
  std::string products = "4-bit by 8-bit products";  // that the peak is of
  std::string device;
  std::string model;
  std::uint64_t weight_bytes = 0;
  std::optional<ProcessMemory> memory;  // when all was measured
  int steps = 0;
  int rounds = 0;
  int batch = 0;
  std::vector<BenchRow> rows;
};

// Figures of a row, from the medians of its rounds.
double prefill_rate(const BenchReport& report,
                    const BenchRow& row);  // tokens per second, one prompt at a time
double prefill_operation_rate(const BenchReport& report, const BenchRow& row);  // operations per second
double decode_rate(const BenchReport& report, const BenchRow& row);   // tokens per second of one slot
double decode_bound(const BenchReport& report, const BenchRow& row);  // the same, at the read bandwidth
/// Whether all rounds decoded the same tokens.
bool repeats(const BenchRow& row);

std::string bench_table(const BenchReport& report);
Json bench_json(const BenchReport& report);
std::string bench_csv(const BenchReport& report);

}  // namespace calla::cli
