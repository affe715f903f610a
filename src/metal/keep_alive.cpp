#include "metal/keep_alive.h"

#include <utility>

namespace calla::metal {

KeepAlive::KeepAlive(Actions actions, std::chrono::milliseconds interval, std::chrono::milliseconds linger)
    : actions_(std::move(actions)), interval_(interval), linger_(linger), thread_([this] { run(); }) {}

KeepAlive::~KeepAlive() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void KeepAlive::touch() {
  bool asleep = false;
  {
    const std::scoped_lock lock(mutex_);
    until_ = Clock::now() + linger_;
    asleep = !at_work_;
  }
  if (asleep) changed_.notify_one();
}

void KeepAlive::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    changed_.wait(lock, [this] { return stopped_ || Clock::now() < until_; });
    if (stopped_) return;
    at_work_ = true;
    lock.unlock();
    actions_.begin();
    lock.lock();
    while (!stopped_ && Clock::now() < until_) {
      lock.unlock();
      actions_.beat();
      lock.lock();
      changed_.wait_for(lock, interval_, [this] { return stopped_; });
    }
    at_work_ = false;
    lock.unlock();
    actions_.end();
    lock.lock();
  }
}

}  // namespace calla::metal
