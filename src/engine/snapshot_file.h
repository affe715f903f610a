// A snapshot as a file: whose it is, of which tokens, the snapshot, and checksums.
//
//   fixed    magic, version, sizes
//   text     identity of model and arithmetic; name of the file that holds the tokens before `from`, or
//   nothing tokens   [from, position) crc      of all before payload  what Snapshot::save writes from `from`
//   on trailer  bytes and crc of the payload, magic
//
// In this machine's own order of bytes. The trailer is written last, so that a file without one is known for
// what it is.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/token.h"
#include "model/backend.h"

namespace calla {

struct SnapshotFileHeader {
  std::string identity;
  std::string parent;  // file name; empty where `from` is 0
  std::int32_t from = 0;
  std::vector<Token> tokens;  // those from `from` to the snapshot's position

  int position() const { return from + static_cast<int>(tokens.size()); }
};

/// Writes a file that only its owner may read, and sees to it that it is on the disk. Throws Error; what is
/// there of the file then is of no use.
void write_snapshot_file(const std::filesystem::path& path, const SnapshotFileHeader& header,
                         const Snapshot& snapshot);

/// The header of a file whose header is sound and whose trailer says that it is complete; the payload has not
/// been looked at. Nothing for a file that has not even the magic. Throws Error for one that has it and is
/// damaged.
std::optional<SnapshotFileHeader> read_snapshot_header(const std::filesystem::path& path);

/// The snapshot of a file, on top of `base`, which has its first `from` tokens. Throws Error where the header
/// is not `expected` or anything is damaged.
std::unique_ptr<Snapshot> read_snapshot_file(const std::filesystem::path& path,
                                             const SnapshotFileHeader& expected, Backend& backend,
                                             const Snapshot* base);

}  // namespace calla
