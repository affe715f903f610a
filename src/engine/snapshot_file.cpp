#include "engine/snapshot_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/error.h"
#include "model/snapshot_stream.h"

namespace calla {
namespace {
namespace fs = std::filesystem;

constexpr std::array<char, 8> file_magic{'C', 'a', 'l', 'l', 'a', 'S', 'n', 'p'};
constexpr std::uint32_t file_version = 1;
constexpr std::uint32_t longest_text = 1 << 16;
constexpr std::uint32_t most_tokens = 1 << 24;

struct Fixed {
  std::array<char, 8> magic = file_magic;
  std::uint32_t version = file_version;
  std::uint32_t identity_bytes = 0;
  std::uint32_t parent_bytes = 0;
  std::int32_t from = 0;
  std::uint32_t tokens = 0;
};

struct Trailer {
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_crc = 0;
  std::array<char, 8> magic = file_magic;
};
static_assert(std::has_unique_object_representations_v<Fixed> &&
              std::has_unique_object_representations_v<Trailer>);

[[noreturn]] void damaged(const fs::path& path, std::string_view how) { throw Error(path.string(), how); }

/// Passes bytes through and adds them up. Unbuffered: what uses it moves large blocks.
class ChecksumBuffer final : public std::streambuf {
 public:
  explicit ChecksumBuffer(std::filebuf& file, std::uint64_t readable = 0)
      : file_(file), readable_(readable) {}
  std::uint32_t crc() const { return static_cast<std::uint32_t>(crc_); }
  std::uint64_t bytes() const { return bytes_; }

 protected:
  std::streamsize xsputn(const char* data, std::streamsize count) override {
    const std::streamsize written = file_.sputn(data, count);
    add(data, written);
    return written;
  }
  int_type overflow(int_type byte) override {
    const char value = traits_type::to_char_type(byte);
    return xsputn(&value, 1) == 1 ? byte : traits_type::eof();
  }
  std::streamsize xsgetn(char* data, std::streamsize count) override {
    const auto wanted = std::min(static_cast<std::uint64_t>(count), readable_ - bytes_);
    const std::streamsize got = file_.sgetn(data, static_cast<std::streamsize>(wanted));
    add(data, got);
    return got;
  }

 private:
  void add(const char* data, std::streamsize count) {
    crc_ = ::crc32_z(crc_, reinterpret_cast<const Bytef*>(data), static_cast<z_size_t>(count));
    bytes_ += static_cast<std::uint64_t>(count);
  }

  std::filebuf& file_;
  std::uint64_t readable_;
  std::uint64_t bytes_ = 0;
  uLong crc_ = ::crc32_z(0, nullptr, 0);
};

template <class T>
void write_one(std::ostream& out, const T& value) {
  write_values(out, std::span<const T>(&value, 1));
}
template <class T>
T read_one(std::istream& in) {
  T value{};
  read_values(in, std::span<T>(&value, 1));
  return value;
}

/// Waits until a file, or the names in a folder, have reached the disk.
void flush_to_disk(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // NOLINT(cppcoreguidelines-pro-type-vararg)
  const bool flushed = file >= 0 && ::fsync(file) == 0;
  const int fault = errno;
  if (file >= 0) ::close(file);
  if (!flushed)
    throw Error(path.string(), "cannot be written to disk: " + std::generic_category().message(fault));
}

/// Reads the header, and leaves the file at the payload. Nothing without the magic.
std::optional<SnapshotFileHeader> read_header(std::filebuf& file, const fs::path& path) {
  ChecksumBuffer checked(file, std::numeric_limits<std::uint64_t>::max());
  std::istream in(&checked);
  std::array<char, 8> found{};
  in.read(found.data(), found.size());
  if (found != file_magic) return std::nullopt;
  Fixed fixed;
  read_values(in, std::as_writable_bytes(std::span(&fixed, 1)).subspan(sizeof file_magic));
  if (fixed.version != file_version)
    damaged(path, fmt::format("has version {} of the format", fixed.version));
  if (fixed.identity_bytes > longest_text || fixed.parent_bytes > longest_text ||
      fixed.tokens > most_tokens || fixed.from < 0 || fixed.from > static_cast<std::int32_t>(most_tokens)) {
    damaged(path, "has a damaged header");
  }
  SnapshotFileHeader header;
  header.identity.resize(fixed.identity_bytes);
  header.parent.resize(fixed.parent_bytes);
  header.from = fixed.from;
  header.tokens.resize(fixed.tokens);
  read_values(in, std::span(header.identity));
  read_values(in, std::span(header.parent));
  read_values(in, std::span(header.tokens));
  const std::uint32_t sum = checked.crc();
  if (read_one<std::uint32_t>(in) != sum) damaged(path, "has a damaged header");
  return header;
}

std::uint64_t header_bytes(const SnapshotFileHeader& header) {
  return sizeof(Fixed) + header.identity.size() + header.parent.size() +
         header.tokens.size() * sizeof(Token) + sizeof(std::uint32_t);
}

/// The trailer, which must agree with the size of the file. Leaves the file at the payload.
Trailer read_trailer(std::filebuf& file, const SnapshotFileHeader& header, const fs::path& path) {
  const std::uint64_t before = header_bytes(header);
  const std::uint64_t size = fs::file_size(path);
  if (size < before + sizeof(Trailer)) damaged(path, "ends early");
  file.pubseekpos(static_cast<std::streamoff>(size - sizeof(Trailer)));
  std::istream in(&file);
  const auto trailer = read_one<Trailer>(in);
  if (trailer.magic != file_magic || trailer.payload_bytes != size - before - sizeof(Trailer))
    damaged(path, "ends early");
  file.pubseekpos(static_cast<std::streamoff>(before));
  return trailer;
}

/// An empty file that nobody else may read: it is made of what people wrote.
void create_private(const fs::path& path) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg)
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) throw Error(path.string(), "cannot be written: " + std::generic_category().message(errno));
  ::close(file);
}

void open_for_reading(std::filebuf& file, const fs::path& path) {
  if (file.open(path, std::ios::in | std::ios::binary) == nullptr) damaged(path, "cannot be read");
}
}  // namespace

void write_snapshot_file(const fs::path& path, const SnapshotFileHeader& header, const Snapshot& snapshot) {
  create_private(path);
  std::filebuf file;
  if (file.open(path, std::ios::out | std::ios::binary | std::ios::trunc) == nullptr)
    throw Error(path.string(), "cannot be written");
  bool good = true;
  {
    ChecksumBuffer checked(file);
    std::ostream out(&checked);
    Fixed fixed;
    fixed.identity_bytes = static_cast<std::uint32_t>(header.identity.size());
    fixed.parent_bytes = static_cast<std::uint32_t>(header.parent.size());
    fixed.from = header.from;
    fixed.tokens = static_cast<std::uint32_t>(header.tokens.size());
    write_one(out, fixed);
    write_values(out, std::span<const char>(header.identity));
    write_values(out, std::span<const char>(header.parent));
    write_values(out, std::span<const Token>(header.tokens));
    write_one(out, checked.crc());
    good = out.good();
  }
  ChecksumBuffer checked(file);
  std::ostream out(&checked);
  snapshot.save(out, header.from);
  Trailer trailer;
  trailer.payload_bytes = checked.bytes();
  trailer.payload_crc = checked.crc();
  write_one(out, trailer);
  good = good && out.good();
  if (file.close() == nullptr || !good) throw Error(path.string(), "cannot be written: is the disk full?");
  flush_to_disk(path);
}

std::optional<SnapshotFileHeader> read_snapshot_header(const fs::path& path) {
  std::filebuf file;
  open_for_reading(file, path);
  std::optional<SnapshotFileHeader> header = read_header(file, path);
  if (header) read_trailer(file, *header, path);
  return header;
}

std::unique_ptr<Snapshot> read_snapshot_file(const fs::path& path, const SnapshotFileHeader& expected,
                                             Backend& backend, const Snapshot* base) {
  std::filebuf file;
  open_for_reading(file, path);
  const std::optional<SnapshotFileHeader> header = read_header(file, path);
  if (!header || header->identity != expected.identity || header->from != expected.from ||
      header->tokens != expected.tokens) {
    damaged(path, "is not what it was");
  }
  const Trailer trailer = read_trailer(file, *header, path);
  ChecksumBuffer checked(file, trailer.payload_bytes);
  std::istream in(&checked);
  std::unique_ptr<Snapshot> snapshot = backend.load_snapshot(in, base);
  if (checked.bytes() != trailer.payload_bytes || checked.crc() != trailer.payload_crc ||
      snapshot->position() != expected.position()) {
    damaged(path, "is damaged: its checksum differs");
  }
  return snapshot;
}

}  // namespace calla
