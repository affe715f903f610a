// Many faults of one file, told in one message.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace calla {

/// Where the weights that Calla reads come from; the end of many a message.
inline constexpr std::string_view wanted_checkpoint =
    "Calla reads the MLX 4-bit checkpoint (mlx-community/Qwen3.6-35B-A3B-4bit)";

/// Collects faults and joins the first eight on one line, "a; b; and 3 more".
class FaultList {
 public:
  void add(std::string fault);
  bool empty() const { return count_ == 0; }
  std::string joined() const;

  /// Throws Error "where: PREFIX a; b; and 3 more; ADVICE" if there is any fault.
  void raise(std::string_view where, std::string_view prefix, std::string_view advice) const;

 private:
  static constexpr std::size_t told = 8;
  std::vector<std::string> first_;
  std::size_t count_ = 0;
};

}  // namespace calla
