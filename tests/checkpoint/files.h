// Making checkpoint files, right and wrong, and reading the faults they raise.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/tensor_table.h"
#include "support/support.h"

namespace calla::test {

/// The bytes of a safetensors file with this header, then `data`.
std::string safetensors(std::string_view header, std::string_view data);

/// The header of a file that holds these tensors one after another.
std::string header_of(const std::vector<TensorSpec>& tensors);
std::uint64_t data_bytes(const std::vector<TensorSpec>& tensors);

/// Writes a file of these tensors, all zeros, as a sparse file: the data takes no disk.
void write_zeros(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors);

/// Whether the message is of one line and holds every part.
::testing::AssertionResult tells(std::string_view message, std::initializer_list<std::string_view> parts);

}  // namespace calla::test
