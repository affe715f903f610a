// What a backend is going to allocate, known before it allocates.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace calla {

/// Bytes that snapshots of sequences may take.
struct SnapshotMemory {
  std::uint64_t device = 0;  // where the slots' sequences are, too
  std::uint64_t host = 0;    // of the machine, for those that the device has no room for

  std::uint64_t total() const { return device + host; }
};

/// Bytes, by purpose. KV is counted for the whole context, although it is committed as a conversation grows.
struct MemoryPlan {
  int slots = 0;
  int context = 0;  // positions a slot
  std::uint64_t weights = 0;
  std::uint64_t kv_cache = 0;
  std::uint64_t states = 0;       // recurrent states and convolution windows
  std::uint64_t workspace = 0;    // activations of the largest prefill chunk, logits
  SnapshotMemory snapshots = {};  // of what all that leaves: they come and go, and are no part of the total

  std::uint64_t total() const { return weights + kv_cache + states + workspace; }
};

/// "1.25 GB": three digits, decimal units, as disks and checkpoints are measured.
std::string format_bytes(std::uint64_t bytes);

/// Memory that processes can still get on this machine, in bytes; nothing where the system does not say.
std::optional<std::uint64_t> available_memory();

/// What snapshots may take: `asked` bytes in all, or a part of what is left. `left` is what the plan leaves
/// of the device's memory, and `host` what the machine has available for those that move there; nothing where
/// they cannot.
SnapshotMemory plan_snapshots(std::optional<std::uint64_t> asked, std::uint64_t left,
                              std::optional<std::uint64_t> host);

/// Throws Error with the plan's numbers when it exceeds `available`; `where` is whose memory it is.
void require_fit(const MemoryPlan& plan, std::uint64_t available, std::string_view where = "memory");

}  // namespace calla
