#include "base/mapped_file.h"

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace calla {
namespace {
[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  const std::error_code reason(errno, std::generic_category());
  throw Error(path.string(), std::string(what) + ": " + reason.message());
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t into_page(std::span<const std::byte> bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes.data()) % page_size();
}

/// madvise on the pages that hold the bytes.
int advise(std::span<const std::byte> bytes, int advice) {
  // madvise changes nothing of the mapping's content; its parameter is not const because other advice would.
  auto* start = const_cast<std::byte*>(bytes.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  return ::madvise(start - into_page(bytes), bytes.size() + into_page(bytes), advice);
}

void touch_pages(std::span<const std::byte> bytes) {
  constexpr std::size_t smallest_page = 4096;
  for (std::size_t i = 0; i < bytes.size(); i += smallest_page) {
    static_cast<void>(*const_cast<const volatile std::byte*>(&bytes[i]));
  }
  if (!bytes.empty()) static_cast<void>(*const_cast<const volatile std::byte*>(&bytes.back()));
}
}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC));  // NOLINT(cppcoreguidelines-pro-type-vararg)
  if (file.get() < 0) fail(path, "cannot be opened");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, "cannot be examined");
  if (!S_ISREG(status.st_mode)) throw Error(path.string(), "is not a regular file");
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* mapping = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) fail(path, "cannot be mapped into memory");
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr)
    ::munmap(const_cast<std::byte*>(data_), size_);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void read_ahead(std::span<const std::byte> bytes) { static_cast<void>(advise(bytes, MADV_WILLNEED)); }

bool bring_in(std::span<const std::byte> bytes) {
#ifdef MADV_POPULATE_READ
  if (advise(bytes, MADV_POPULATE_READ) == 0) return true;
  // EFAULT is the disk's fault; touching the page would end the process. Kernels before 5.14 answer EINVAL.
  if (errno == EFAULT) return false;
#endif
  touch_pages(bytes);
  return true;
}

void drop(std::span<const std::byte> bytes) {
  // Only whole pages: the first and the last may hold a neighbour's bytes that are still to be read.
  const std::size_t before = (page_size() - into_page(bytes)) % page_size();
  if (bytes.size() < before + page_size()) return;
  const std::size_t pages = (bytes.size() - before) / page_size() * page_size();
  static_cast<void>(advise(bytes.subspan(before, pages), MADV_DONTNEED));
}

}  // namespace calla
