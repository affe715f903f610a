// Which of the memory that snapshots hold lies on the device, and which has moved to the host's: who goes, in
// what order, and what is counted. How memory moves is the blocks' own affair.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>

namespace calla::cuda {

class Residency;

/// A piece of memory that snapshots hold, and that slots may need on the device: a page of keys and values,
/// or a recurrent state. What no slot needs may lie in host memory. Of the backend's thread alone.
class Block {
 public:
  /// On the device, and needed by no slot. The residency must outlive it.
  Block(Residency& residency, std::size_t bytes);
  virtual ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  Block(Block&&) = delete;
  Block& operator=(Block&&) = delete;

  std::size_t bytes() const { return bytes_; }
  bool on_device() const { return on_device_; }

 private:
  friend class Residency;
  /// Begins to move it to the host; false where there is no room for it.
  virtual bool move_out() = 0;
  /// Begins to move it back. Throws OutOfMemory.
  virtual void move_in() = 0;

  Residency& residency_;
  std::size_t bytes_;
  bool on_device_ = true;
  int holds_ = 0;                   // of slots
  std::list<Block*>::iterator at_;  // in one of the residency's lists
};

/// Bounds the device memory of the blocks that no slot needs: those used least recently move out. Blocks that
/// slots need are a part of the slots' own memory, whoever shares them.
class Residency {
 public:
  explicit Residency(std::uint64_t budget) : budget_(budget) {}

  /// A slot needs it on the device from now on: moves it back if it is not there. Where that throws, nothing
  /// has changed.
  void hold(Block& block);
  /// A slot needs it no more. It is the one used last.
  void release(Block& block) noexcept;
  /// It is used: what was used before goes first.
  void touch(Block& block) noexcept;

  /// Moves out what is over the budget, as far as the host has room, but no more blocks than take a moment of
  /// the thread that calls; there is always a next time.
  void settle();
  /// Moves out `bytes` at least, or all there is, whatever the budget: a slot needs the memory. False where
  /// nothing moved.
  bool make_room(std::size_t bytes);

  std::uint64_t idle_bytes() const { return idle_bytes_; }    // what the budget bounds
  std::uint64_t moved_bytes() const { return moved_bytes_; }  // on the host

 private:
  friend class Block;
  void add(Block& block);
  void remove(Block& block) noexcept;
  void make_idle(Block& block) noexcept;
  void end_idle(Block& block) noexcept;
  bool move_out_oldest();

  std::uint64_t budget_;
  std::list<Block*> idle_;   // on the device, needed by no slot; used least recently first
  std::list<Block*> other_;  // so that a block takes its place along
  std::uint64_t idle_bytes_ = 0;
  std::uint64_t moved_bytes_ = 0;
};

}  // namespace calla::cuda
