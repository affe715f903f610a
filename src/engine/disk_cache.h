// Snapshots in a folder, so that they outlive the process. A file holds what a snapshot has beyond its
// parent's, that of the longest prefix that was there when it was written: a conversation's keys and values
// are written once.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/token.h"
#include "engine/snapshot_file.h"
#include "model/backend.h"

namespace calla {

/// Of the engine's thread; a thread of its own writes. Faults of files are lines of the log and never
/// exceptions: a file that cannot be used is as good as none.
///
/// Files are written under a temporary name, flushed and renamed, so that whatever happens to the process,
/// all but the file being written is whole. Damaged files of ours, and those left behind half-written, are
/// deleted; files of another model or version are left until the room is needed; what is not ours is not
/// touched.
class DiskCache {
 public:
  using Log = std::function<void(const std::string& line)>;

  /// `identity` names the checkpoint, the version and the arithmetic. Throws Error where the folder cannot be
  /// made or read, or another process uses it.
  DiskCache(std::filesystem::path folder, std::uint64_t limit, std::string identity, Log log);
  /// Goes on writing what was offered for about a second.
  ~DiskCache();
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;
  DiskCache(DiskCache&&) = delete;
  DiskCache& operator=(DiskCache&&) = delete;

  /// The longest prefix of the prompt, of at most `most` tokens, that files hold: their names, the first one
  /// to be loaded first, with the positions they reach.
  struct Step {
    std::string file;
    int position = 0;
  };
  std::vector<Step> find(std::span<const Token> prompt, int most) const;
  /// Loads one file on top of the snapshot that its `from` asks for. Null, with a line in the log, where it
  /// turns out to be of no use; it is gone then.
  std::unique_ptr<Snapshot> load(const std::string& file, Backend& backend, const Snapshot* base);

  /// Writes a snapshot when there is time, unless it is there already or too many wait to be written.
  void offer(std::span<const Token> tokens, std::shared_ptr<const Snapshot> snapshot);
  /// Takes over what has been written since; called now and then.
  void collect();

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t limit() const { return limit_; }
  std::uint64_t entries() const { return entries_.size(); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    std::vector<Token> tokens;  // from the beginning
    std::string parent;         // file name
    int from = 0;
    std::uint64_t bytes = 0;  // of the file; before it is written, what it may take at most
    std::uint64_t used = 0;   // when, counted
    bool written = false;
  };
  /// A file of another model or version.
  struct Stranger {
    std::string file;
    std::uint64_t bytes = 0;
  };
  struct Writing {
    std::string file;
    SnapshotFileHeader header;
    std::shared_ptr<const Snapshot> snapshot;
    std::string fault = {};
    std::uint64_t bytes = 0;
  };

  void lock_folder();
  void scan();
  void adopt(std::map<std::string, SnapshotFileHeader>& found);
  bool make_room(std::uint64_t bytes, const std::string& keep);
  /// An entry and all that stand on it.
  void drop(const std::string& file);
  void remove_file(const std::string& file) const;
  SnapshotFileHeader header_of(const Entry& entry) const;
  void write_all();
  void log(const std::string& line) const;

  std::filesystem::path folder_;
  std::uint64_t limit_;
  std::string identity_;
  Log log_;
  int lock_ = -1;
  std::map<std::string, Entry> entries_;  // by file name
  std::vector<Stranger> strangers_;
  std::uint64_t bytes_ = 0;  // of entries and strangers
  std::uint64_t uses_ = 0;

  std::mutex mutex_;  // guards the rest
  std::condition_variable offered_;
  std::deque<Writing> to_write_;
  std::vector<Writing> written_;              // the snapshots come back to the engine's thread
  std::size_t pending_ = 0;                   // offered and not collected
  std::optional<Clock::time_point> closing_;  // since when

  std::thread writer_;
};

}  // namespace calla
