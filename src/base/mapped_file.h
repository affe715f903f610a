// A file in the address space, read-only.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace calla {

/// Maps a whole file; the mapping ends with the object. An empty file gives an empty span. Throws Error when
/// the file cannot be opened or mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Asks the system to read mapped bytes soon.
void read_ahead(std::span<const std::byte> bytes);
/// Brings mapped bytes into memory. False when the disk fails.
bool bring_in(std::span<const std::byte> bytes);
/// Takes mapped bytes out of this process's memory; when they are read again, they come from the file again.
void drop(std::span<const std::byte> bytes);

}  // namespace calla
