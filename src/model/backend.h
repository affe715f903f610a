// What every backend implements: the whole model on one device. There is no graph of operations; a backend
// owns the weights in the form it likes and a fixed number of slots.
//
// A slot is one sequence: its tokens so far, KV cache, Gated DeltaNet states, convolution windows and
// sampling state. Slots do not influence each other: a sequence's tokens are the same whatever runs beside
// it.
#pragma once
#include <cstddef>
#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/token.h"
#include "model/memory_plan.h"
#include "model/sampling.h"

namespace calla {

/// The device has no memory for what a call asks. Nothing has changed, and the call may be made again when
/// there is room.
class OutOfMemory : public Error {
 public:
  using Error::Error;
  /// Of Backend::submit: the slot that there is no memory for; else -1.
  int slot() const { return slot_; }
  void set_slot(int slot) { slot_ = slot; }

 private:
  int slot_ = -1;
};

/// The device has failed, and so would every further call of this process.
class DeviceLost : public Error {
 public:
  using Error::Error;
};

/// What is wrong where a model computes a value that is not a number.
Error not_a_number();

/// Memory that a snapshot holds; the same identity in two snapshots is the same memory.
struct MemoryPiece {
  const void* identity = nullptr;
  std::size_t bytes = 0;
};

/// The state of a slot at one position, to go on from there later, in any slot of the same backend.
class Snapshot {
 public:
  virtual ~Snapshot() = default;
  virtual int position() const = 0;
  /// All that it holds: snapshots of one sequence may share the keys and values of what they have in common.
  virtual std::vector<MemoryPiece> memory() const = 0;
  /// Writes what Backend::load_snapshot needs besides a snapshot of the sequence's first `from` tokens; 0:
  /// everything. May be called on any thread, whatever the backend is doing; the last owner of a snapshot,
  /// though, is the backend's thread. Whether the stream took it is the caller's to look after.
  virtual void save(std::ostream& out, int from) const = 0;

  /// The sum of memory().
  std::size_t bytes() const;
};

/// Called with the index of a token among those given and the logits after it, [vocabulary], valid during the
/// call.
using LogitsVisitor = std::function<void(std::size_t index, std::span<const float> logits)>;

/// One thread at a time may call a backend. Faults of the device throw Error: OutOfMemory and DeviceLost
/// where it is one of those, and anything else after which it can still be used. Arguments are the caller's
/// duty: a slot below slots(), tokens below the vocabulary, and no more tokens than the context has room for.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Where it runs, for people: "CPU (reference)".
  virtual std::string_view device() const = 0;
  /// What is allocated; names the number of slots and the context.
  virtual const MemoryPlan& memory() const = 0;
  /// The number of tokens that prefill likes to take at once: a longer prompt is best given in pieces of this
  /// size, so that a caller can turn to other work between them.
  virtual int prefill_chunk() const = 0;
  /// A sequence that is prefilled from its beginning has the same state and logits, to the bit, however it is
  /// cut into pieces, as long as every piece but the last is a multiple of this many tokens and the last has
  /// at least as many: so the state at such a cut serves every sequence that begins with the same tokens.
  /// Divides prefill_chunk(), and is at most half of it.
  virtual int prefill_grain() const = 0;

  /// Empties a slot: no tokens, zero state.
  virtual void reset(int slot) = 0;
  /// The number of tokens in a slot.
  virtual int position(int slot) const = 0;
  /// How the slot's next tokens are drawn. Forgets what was drawn before: penalties and the random stream
  /// start anew. `prompt` is what the repetition penalty counts besides the output.
  virtual void set_sampling(int slot, const SamplingParams& params, std::span<const Token> prompt) = 0;

  /// Appends tokens. With `last`, the logits after the last one are what the next step draws from; without it
  /// they are not computed and more tokens must follow before a step.
  virtual void prefill(int slot, std::span<const Token> tokens, bool last) = 0;

  /// Starts one decode step: each of the slots draws a token from its logits with its sampling parameters,
  /// and the token is appended to it, unless it is one of its end tokens. Nothing waits for the host: step n
  /// + 1 may be submitted before step n is collected; a slot that has ended stays as it is and gives no
  /// token. Until its steps are collected, a slot may only be submitted again. OutOfMemory names the slot.
  virtual void submit(std::span<const int> slots) = 0;
  /// Waits for the oldest step that was submitted and not collected. A value that is not a number is the
  /// fault of its slot alone, which gives no more tokens.
  virtual std::vector<SampledToken> collect() = 0;
  /// Forgets all steps that were submitted and not collected, after a fault; their slots need a reset.
  virtual void abandon() noexcept = 0;

  /// Appends tokens, with the arithmetic of decoding, and shows the logits after each of them.
  virtual void score(int slot, std::span<const Token> tokens, const LogitsVisitor& visit) = 0;

  /// The recurrent state cannot be cut back to an earlier position, so a prefix is reused through snapshots
  /// of it.
  virtual std::unique_ptr<Snapshot> snapshot(int slot) = 0;
  /// Puts a slot into the state of a snapshot of this backend.
  virtual void restore(int slot, const Snapshot& snapshot) = 0;

  /// Names the form of saved snapshots and the arithmetic behind them, on one line: one saved under another
  /// name, or with other weights, must not be loaded.
  virtual std::string snapshot_format() const = 0;
  /// Reads what Snapshot::save has written. `base` is a snapshot of the first `from` tokens, and null where
  /// `from` was 0. Throws Error when the stream ends early or holds something else.
  virtual std::unique_ptr<Snapshot> load_snapshot(std::istream& in, const Snapshot* base) = 0;
};

}  // namespace calla
