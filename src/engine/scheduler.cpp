#include "engine/scheduler.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

namespace calla {

namespace {
// Steps submitted and not collected: one more than the one whose tokens are being handled, so that the device
// never waits.
constexpr std::size_t depth = 2;

// Of what QueueFull says.
constexpr Seconds shortest_wait{1};
constexpr Seconds longest_wait{600};
}  // namespace

Engine::Scheduler::Scheduler(std::unique_ptr<Backend> backend, EngineOptions options)
    : backend_(std::move(backend)), options_(std::move(options)), kept_(*backend_, options_) {
  for (int slot = backend_->memory().slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  thread_ = std::thread([this] { run(); });
}

Engine::Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::shared_ptr<EventStream> Engine::Scheduler::enqueue(GenerationRequest request) {
  auto job = std::make_unique<Job>();
  const int room = backend_->memory().context - static_cast<int>(request.prompt.size());
  job->limit = std::min(request.max_tokens.value_or(room), room);
  job->thinking = request.budget.has_value();
  job->opens = request.opening.has_value();
  job->request = std::move(request);
  job->stream = std::make_shared<EventStream>();
  job->queued_at = Clock::now();
  std::shared_ptr<EventStream> stream = job->stream;
  {
    const std::lock_guard lock(mutex_);
    if (lost_) throw DeviceLost("", *lost_);
    const int slots = backend_->memory().slots;
    if (open_ >= slots + options_.queue_limit) {
      ++stats_.refused;
      const auto waiting = static_cast<int>(waiting_.size());
      throw QueueFull(waiting,
                      std::clamp(usual_service_ * (waiting + 1) / slots, shortest_wait, longest_wait));
    }
    ++open_;
    waiting_.push_back(std::move(job));
  }
  changed_.notify_one();
  return stream;
}

EngineStats Engine::Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.waiting = static_cast<int>(waiting_.size());
  stats.slots = backend_->memory().slots;
  stats.busy = open_ - stats.waiting;
  return stats;
}

std::optional<std::string> Engine::Scheduler::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void Engine::Scheduler::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_one();
}

void Engine::Scheduler::run() {
  while (admit()) {
    try {
      begin_admitted();
      drop_cancelled();
      prefill_one_piece();
      close_thinking();
      open_answers();
      const bool submitted = submit_step();
      if (steps_.size() == depth || (!steps_.empty() && !submitted)) collect_step();
      release_finished();
      if (running_.empty()) read_ahead();
    } catch (const DeviceLost& fault) {
      return lose(fault.what());
    } catch (const std::exception& fault) {
      fail_all(fault.what());
    }
  }
  for (const auto& job : running_) finish(*job, GenerationEnd::cancelled);
  for (const auto& job : waiting_) finish(*job, GenerationEnd::cancelled);
}

bool Engine::Scheduler::admit() {
  bool arrived = false;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return closing_ || woken_ || !running_.empty() || !waiting_.empty() || !ahead_.empty();
    });
    if (closing_) return false;
    woken_ = false;
    arrived = !waiting_.empty();
  }
  if (arrived) pause_reading_ahead();
  std::vector<std::unique_ptr<Job>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto& job : waiting_) {
      if (job->stream->cancelled()) {
        gone.push_back(std::move(job));
      } else if (!free_slots_.empty()) {
        job->slot = free_slots_.back();
        free_slots_.pop_back();
        running_.push_back(std::move(job));
      }
    }
    std::erase(waiting_, nullptr);
  }
  for (const auto& job : gone) finish(*job, GenerationEnd::cancelled);
  return true;
}

void Engine::Scheduler::begin_admitted() {
  for (const auto& job : running_) {
    if (job->started_at != Clock::time_point{}) continue;
    job->started_at = Clock::now();
    alone(*job, [&] {
      with_room([&] {
        backend_->reset(job->slot);
        backend_->set_sampling(job->slot, job->request.sampling, job->request.prompt);
      });
    });
  }
}

void Engine::Scheduler::drop_cancelled() {
  const bool any =
      std::any_of(running_.begin(), running_.end(), [](const auto& job) { return job->stream->cancelled(); });
  if (!any) return;
  // Steps under way may hold the slot: let them come to rest first.
  while (!steps_.empty()) collect_step();
  release_finished();
}

bool Engine::Scheduler::answering() const {
  return std::any_of(running_.begin(), running_.end(), [](const auto& job) { return !job->reading(); });
}

bool Engine::Scheduler::may_step(const Job& job) const {
  if (job.fault || job.reading() || job.end_token || job.submitted == job.limit) return false;
  // What follows a marker must not be drawn before it is known whether it has come.
  if (job.opens && (job.opening_due || job.in_flight > 0)) return false;
  // Whether the reasoning has ended by itself is known only when all its tokens are here.
  return !(job.thinking && job.submitted >= job.request.budget->tokens);
}

void Engine::Scheduler::close_thinking() {
  for (const auto& job : running_) {
    const bool due = job->thinking && !job->fault && !job->end_token && !job->reading() &&
                     job->in_flight == 0 && job->submitted >= job->request.budget->tokens &&
                     job->submitted < job->limit;
    if (!due) continue;
    alone(*job, [&] { append(*job, job->request.budget->closing); });
    job->thinking = false;
    job->opening_due = job->opens;
  }
}

void Engine::Scheduler::open_answers() {
  for (const auto& job : running_) {
    if (!job->opening_due || job->fault) continue;
    alone(*job, [&] {
      if (job->end_token) {
        append(*job, job->request.opening->closing);
        job->end_token.reset();
        job->thinking = false;
      }
      append(*job, job->request.opening->tokens);
    });
    job->opens = false;
    job->opening_due = false;
  }
}

/// Appends tokens to a reply, as many as its limit leaves. No step of it is in flight.
void Engine::Scheduler::append(Job& job, std::span<const Token> tokens) {
  tokens = tokens.first(std::min(tokens.size(), static_cast<std::size_t>(job.limit - job.submitted)));
  if (tokens.empty()) return;
  with_room([&] { backend_->prefill(job.slot, tokens, true); });
  for (const Token token : tokens) job.stream->push(GeneratedToken{.token = token, .forced = true});
  job.reply.insert(job.reply.end(), tokens.begin(), tokens.end());
  job.submitted += static_cast<int>(tokens.size());
  const std::lock_guard lock(mutex_);
  stats_.generated_tokens += tokens.size();
}

bool Engine::Scheduler::submit_step() {
  const Clock::time_point begin = Clock::now();
  std::vector<int> slots;
  for (bool submitted = false; !submitted;) {
    slots.clear();
    for (const auto& job : running_) {
      if (may_step(*job)) slots.push_back(job->slot);
    }
    if (slots.empty()) return false;
    try {
      with_room([&] { backend_->submit(slots); });
      submitted = true;
    } catch (const OutOfMemory& fault) {
      const auto at = std::find_if(running_.begin(), running_.end(),
                                   [&](const auto& job) { return job->slot == fault.slot(); });
      if (at == running_.end()) throw;
      (*at)->fault = fault.what();  // and the others go on without it
    }
  }
  for (const auto& job : running_) {
    if (std::find(slots.begin(), slots.end(), job->slot) == slots.end()) continue;
    ++job->submitted;
    ++job->in_flight;
  }
  steps_.push_back(std::move(slots));
  const std::lock_guard lock(mutex_);
  stats_.decode += Clock::now() - begin;
  return true;
}

void Engine::Scheduler::collect_step() {
  const Clock::time_point begin = Clock::now();
  const std::vector<SampledToken> tokens = backend_->collect();
  {
    const std::lock_guard lock(mutex_);
    stats_.decode += Clock::now() - begin;
    ++stats_.steps;
    stats_.generated_tokens += static_cast<std::size_t>(
        std::count_if(tokens.begin(), tokens.end(), [](const auto& token) { return token.fault.empty(); }));
  }
  const auto job_of = [&](int slot) -> Job& {
    return **std::find_if(running_.begin(), running_.end(),
                          [&](const auto& job) { return job->slot == slot; });
  };
  for (const int slot : steps_.front()) --job_of(slot).in_flight;
  steps_.pop_front();
  for (const SampledToken& sampled : tokens) {
    Job& job = job_of(sampled.slot);
    if (!sampled.fault.empty()) {
      job.fault = sampled.fault;  // and the others go on without it
      continue;
    }
    if (sampled.end) {
      job.end_token = sampled.token;
      job.opening_due = job.opens;
      continue;
    }
    job.reply.push_back(sampled.token);
    if (job.thinking && sampled.token == job.request.budget->end) job.thinking = false;
    if (job.opens && sampled.token == job.request.opening->after) job.opening_due = true;
    job.stream->push(GeneratedToken{sampled.token, false, sampled.logprob, sampled.top_logprobs});
  }
}

void Engine::Scheduler::release_finished() {
  for (auto& job : running_) {
    if (job->in_flight > 0) continue;
    if (job->fault) {
      free_slots_.push_back(job->slot);
      finish(*job, GenerationEnd::failed, *job->fault);
      job.reset();
      continue;
    }
    const bool cancelled = job->stream->cancelled();
    const bool goes_on = !job->end_token || job->opening_due;
    if (!cancelled && goes_on && job->submitted < job->limit) continue;
    free_slots_.push_back(job->slot);
    if (!cancelled || job->end_token) remember_reply(*job);
    finish(*job, job->end_token ? GenerationEnd::stop
                 : cancelled    ? GenerationEnd::cancelled
                                : GenerationEnd::length);
    job.reset();
  }
  std::erase(running_, nullptr);
}

void Engine::Scheduler::finish(Job& job, GenerationEnd end, const std::string& error) {
  const Clock::time_point now = Clock::now();
  const Clock::time_point started = job.started_at == Clock::time_point{} ? now : job.started_at;
  const Clock::time_point prefilled = job.prefilled_at == Clock::time_point{} ? now : job.prefilled_at;
  {
    const std::lock_guard lock(mutex_);
    --open_;
    ++stats_.finished.at(static_cast<std::size_t>(end));
    if (job.slot >= 0) usual_service_ = 0.8 * usual_service_ + 0.2 * Seconds(now - started);
  }
  job.stream->push(GenerationFinished{.end = end,
                                      .error = error,
                                      .end_token = job.end_token,
                                      .cached_tokens = job.cached,
                                      .cache_note = job.cache_note,
                                      .queued = started - job.queued_at,
                                      .prefill = prefilled - started,
                                      .decode = now - prefilled});
}

void Engine::Scheduler::fail_all(const std::string& error) {
  for (const auto& job : running_) {
    free_slots_.push_back(job->slot);
    finish(*job, GenerationEnd::failed, error);
  }
  running_.clear();
  if (!ahead_.empty() && ahead_.back().slot >= 0) free_slots_.push_back(ahead_.back().slot);
  ahead_.clear();
  backend_->abandon();
  steps_.clear();
}

/// Nothing can be served any more.
void Engine::Scheduler::lose(const std::string& error) {
  std::deque<std::unique_ptr<Job>> waiting;
  {
    const std::lock_guard lock(mutex_);
    lost_ = error;
    waiting.swap(waiting_);
  }
  fail_all(error);
  for (const auto& job : waiting) finish(*job, GenerationEnd::failed, error);
}

}  // namespace calla
