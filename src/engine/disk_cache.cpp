#include "engine/disk_cache.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/token_hash.h"
#include "model/memory_plan.h"

namespace calla {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view file_prefix = "calla-";
constexpr std::string_view file_suffix = ".snapshot";
constexpr std::string_view partial_suffix = ".partial";
constexpr std::string_view lock_name = "calla.lock";
// Snapshots that wait to be written keep their memory: no more than these.
constexpr std::size_t most_pending = 4;
// How long the end of the process may wait for files that have not been begun.
constexpr std::chrono::seconds patience{1};
// What a file has besides the snapshot's own memory and the tokens.
constexpr std::uint64_t overhead = 4096;

bool begins_with(std::span<const Token> tokens, std::span<const Token> prefix) {
  return prefix.size() <= tokens.size() && std::equal(prefix.begin(), prefix.end(), tokens.begin());
}

std::string file_name(std::span<const Token> tokens, std::string_view identity) {
  TokenHash hash;
  for (const char c : identity) hash.add(static_cast<unsigned char>(c));
  for (const Token token : tokens) hash.add(token);
  return fmt::format("{}{:016x}-{}{}", file_prefix, hash.value(), tokens.size(), file_suffix);
}

bool ends_with_ours(const std::string& name, std::string_view suffix) {
  return name.starts_with(file_prefix) && name.ends_with(suffix);
}
}  // namespace

DiskCache::DiskCache(fs::path folder, std::uint64_t limit, std::string identity, Log log)
    : folder_(std::move(folder)), limit_(limit), identity_(std::move(identity)), log_(std::move(log)) {
  std::error_code fault;
  const bool made = fs::create_directories(folder_, fault);
  if (!fs::is_directory(folder_)) {
    throw Error(folder_.string(), "cannot be made into the folder of the cache: " + fault.message(),
                "choose another --cache-dir");
  }
  if (made) fs::permissions(folder_, fs::perms::owner_all, fault);
  lock_folder();
  scan();
  writer_ = std::thread([this] { write_all(); });
}

DiskCache::~DiskCache() {
  {
    const std::lock_guard guard(mutex_);
    closing_ = Clock::now();
  }
  offered_.notify_one();
  writer_.join();
  to_write_.clear();
  collect();
  ::close(lock_);
}

void DiskCache::lock_folder() {
  const fs::path path = folder_ / lock_name;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg)
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) throw Error(path.string(), "cannot be written", "choose another --cache-dir");
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) return;
  ::close(lock_);
  throw Error(folder_.string(), "is in use by another process", "give each one a --cache-dir of its own");
}

void DiskCache::log(const std::string& line) const {
  if (log_) log_(line);
}

void DiskCache::remove_file(const std::string& file) const {
  std::error_code fault;
  fs::remove(folder_ / file, fault);
  if (fault) log(fmt::format("cache: {} cannot be deleted: {}", file, fault.message()));
}

void DiskCache::scan() {
  std::map<std::string, SnapshotFileHeader> found;
  std::vector<std::pair<fs::file_time_type, std::string>> by_age;
  std::error_code fault;
  for (fs::directory_iterator at(folder_, fault), end; !fault && at != end; at.increment(fault)) {
    const std::string name = at->path().filename().string();
    if (ends_with_ours(name, partial_suffix)) {
      log(fmt::format("cache: {} was left half-written, and is deleted", name));
      remove_file(name);
    } else if (ends_with_ours(name, file_suffix)) {
      try {
        std::optional<SnapshotFileHeader> header = read_snapshot_header(at->path());
        if (!header) {
          log(fmt::format("cache: {} is no snapshot, and is left alone", name));
          continue;
        }
        by_age.emplace_back(at->last_write_time(), name);
        found.emplace(name, *std::move(header));
      } catch (const std::exception& damage) {
        log(fmt::format("cache: {}, and is deleted", damage.what()));
        remove_file(name);
      }
    } else if (name != lock_name) {
      log(fmt::format("cache: {} is not ours, and is left alone", name));
    }
  }
  if (fault)
    throw Error(folder_.string(), "cannot be read: " + fault.message(), "choose another --cache-dir");
  adopt(found);
  std::sort(by_age.begin(), by_age.end());
  for (const auto& [time, name] : by_age) {
    if (const auto entry = entries_.find(name); entry != entries_.end()) entry->second.used = ++uses_;
  }
  make_room(0, {});
}

void DiskCache::adopt(std::map<std::string, SnapshotFileHeader>& found) {
  std::size_t strangers = 0;
  std::erase_if(found, [&](const auto& file) {
    if (file.second.identity == identity_) return false;
    std::error_code fault;
    const std::uint64_t size = fs::file_size(folder_ / file.first, fault);
    strangers_.push_back({file.first, fault ? 0 : size});
    bytes_ += strangers_.back().bytes;
    ++strangers;
    return true;
  });
  if (strangers > 0)
    log(fmt::format("cache: {} files belong to another model or version, and are not used", strangers));
  // Parents before children: a child's tokens go on from its parent's.
  for (bool more = true; more;) {
    more = false;
    for (auto& [name, header] : found) {
      if (entries_.contains(name)) continue;
      Entry entry;
      if (header.from > 0) {
        const auto parent = entries_.find(header.parent);
        if (parent == entries_.end() || static_cast<int>(parent->second.tokens.size()) != header.from)
          continue;
        entry.tokens = parent->second.tokens;
      }
      entry.tokens.insert(entry.tokens.end(), header.tokens.begin(), header.tokens.end());
      entry.parent = header.parent;
      entry.from = header.from;
      std::error_code fault;
      entry.bytes = fs::file_size(folder_ / name, fault);
      entry.written = true;
      bytes_ += entry.bytes;
      entries_.emplace(name, std::move(entry));
      more = true;
    }
  }
  for (const auto& [name, header] : found) {
    if (entries_.contains(name)) continue;
    log(fmt::format("cache: {} stands on a file that is gone, and is deleted", name));
    remove_file(name);
  }
}

bool DiskCache::make_room(std::uint64_t bytes, const std::string& keep) {
  while (bytes_ + bytes > limit_) {
    if (!strangers_.empty()) {
      remove_file(strangers_.back().file);
      bytes_ -= strangers_.back().bytes;
      strangers_.pop_back();
      continue;
    }
    // The one not used for the longest time, of those that nothing stands on.
    std::set<std::string_view> parents;
    for (const auto& [name, entry] : entries_) parents.insert(entry.parent);
    const std::string* oldest = nullptr;
    for (const auto& [name, entry] : entries_) {
      if (!entry.written || parents.contains(name) || name == keep) continue;
      if (oldest == nullptr || entry.used < entries_.at(*oldest).used) oldest = &name;
    }
    if (oldest == nullptr) return false;
    drop(std::string(*oldest));
  }
  return true;
}

void DiskCache::drop(const std::string& file) {
  const auto entry = entries_.find(file);
  if (entry == entries_.end()) return;
  bytes_ -= entry->second.bytes;
  if (entry->second.written) remove_file(file);
  entries_.erase(entry);
  std::vector<std::string> children;
  for (const auto& [name, other] : entries_) {
    if (other.parent == file) children.push_back(name);
  }
  for (const std::string& child : children) drop(child);
}

SnapshotFileHeader DiskCache::header_of(const Entry& entry) const {
  return {.identity = identity_,
          .parent = entry.parent,
          .from = entry.from,
          .tokens = {entry.tokens.begin() + entry.from, entry.tokens.end()}};
}

std::vector<DiskCache::Step> DiskCache::find(std::span<const Token> prompt, int most) const {
  std::string best;
  std::size_t length = 0;
  for (const auto& [name, entry] : entries_) {
    const std::size_t here = entry.tokens.size();
    if (entry.written && here > length && here <= static_cast<std::size_t>(most) &&
        begins_with(prompt, entry.tokens)) {
      best = name;
      length = here;
    }
  }
  std::vector<Step> steps;
  for (std::string at = best; !at.empty();) {
    const Entry& entry = entries_.at(at);
    steps.push_back({at, static_cast<int>(entry.tokens.size())});
    at = entry.parent;
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

std::unique_ptr<Snapshot> DiskCache::load(const std::string& file, Backend& backend, const Snapshot* base) {
  const auto entry = entries_.find(file);
  if (entry == entries_.end()) return nullptr;
  try {
    std::unique_ptr<Snapshot> snapshot =
        read_snapshot_file(folder_ / file, header_of(entry->second), backend, base);
    entry->second.used = ++uses_;
    std::error_code ignored;  // the order of use is a matter of taste
    fs::last_write_time(folder_ / file, fs::file_time_type::clock::now(), ignored);
    return snapshot;
  } catch (const OutOfMemory&) {
    throw;  // which is no fault of the file
  } catch (const DeviceLost&) {
    throw;
  } catch (const std::exception& damage) {
    log(fmt::format("cache: {}, and is deleted", damage.what()));
    drop(file);
    return nullptr;
  }
}

void DiskCache::offer(std::span<const Token> tokens, std::shared_ptr<const Snapshot> snapshot) {
  collect();
  const std::string name = file_name(tokens, identity_);
  if (entries_.contains(name)) return;
  {
    const std::lock_guard guard(mutex_);
    if (pending_ == most_pending) return;
  }
  Entry entry;
  entry.tokens.assign(tokens.begin(), tokens.end());
  for (const auto& [other_name, other] : entries_) {
    if (static_cast<int>(other.tokens.size()) <= entry.from || !begins_with(tokens, other.tokens)) continue;
    entry.parent = other_name;
    entry.from = static_cast<int>(other.tokens.size());
  }
  entry.bytes = snapshot->bytes() + tokens.size_bytes() + overhead;
  entry.used = ++uses_;
  if (!make_room(entry.bytes, entry.parent)) return;
  bytes_ += entry.bytes;
  Writing writing{.file = name, .header = header_of(entry), .snapshot = std::move(snapshot)};
  entries_.emplace(name, std::move(entry));
  {
    const std::lock_guard guard(mutex_);
    ++pending_;
    to_write_.push_back(std::move(writing));
  }
  offered_.notify_one();
}

void DiskCache::write_all() {
  std::unique_lock guard(mutex_);
  for (;;) {
    offered_.wait(guard, [&] { return closing_.has_value() || !to_write_.empty(); });
    if (to_write_.empty() || (closing_ && Clock::now() - *closing_ > patience)) return;
    Writing writing = std::move(to_write_.front());
    to_write_.pop_front();
    guard.unlock();
    const fs::path path = folder_ / writing.file;
    const fs::path partial = path.string() + std::string(partial_suffix);
    try {
      write_snapshot_file(partial, writing.header, *writing.snapshot);
      writing.bytes = fs::file_size(partial);
      fs::rename(partial, path);
    } catch (const std::exception& fault) {
      writing.fault = fault.what();
    }
    guard.lock();
    written_.push_back(std::move(writing));
  }
}

void DiskCache::collect() {
  std::vector<Writing> done;
  {
    const std::lock_guard guard(mutex_);
    done = std::exchange(written_, {});
    pending_ -= done.size();
  }
  for (const Writing& writing : done) {
    const auto entry = entries_.find(writing.file);
    if (entry == entries_.end()) {
      // What it stands on turned out to be damaged meanwhile.
      if (writing.fault.empty()) remove_file(writing.file);
    } else if (writing.fault.empty()) {
      bytes_ = bytes_ - entry->second.bytes + writing.bytes;
      entry->second.bytes = writing.bytes;
      entry->second.written = true;
    } else {
      log("cache: " + writing.fault);
      remove_file(writing.file + std::string(partial_suffix));
      drop(writing.file);
    }
  }
}

}  // namespace calla
