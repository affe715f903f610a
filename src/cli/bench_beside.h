// Speeds that were measured elsewhere, to be drawn beside a benchmark's own.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace calla::cli {

/// A speed in tokens per second at a context length.
struct SpeedPoint {
  int context = 0;
  double speed = 0;
};

struct OtherSpeeds {
  std::string name;
  std::vector<SpeedPoint> prefill;
  std::vector<SpeedPoint> decode;  // of all slots together
};

/// Reads a CSV file as `bench --csv` writes it; its name without the ending is the speeds' name. Of the
/// columns, `context`, `prefill_tokens_per_second` and `decode_tokens_per_second_all_slots` count, the last
/// also as `decode_tokens_per_second`; a cell of the speeds may be empty. Throws Error that names file and
/// line.
OtherSpeeds read_other_speeds(const std::filesystem::path& path);

}  // namespace calla::cli
