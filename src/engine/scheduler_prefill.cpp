// How the scheduler reads prompts: from what is kept of them, in pieces, and replies in advance.
#include <algorithm>
#include <utility>

#include "engine/prompt_cuts.h"
#include "engine/scheduler.h"

namespace calla {

namespace {
// Replies that wait to be read in advance; of more, the newest are likely to be needed.
constexpr std::size_t most_ahead = 4;
// How long a piece is beside running answers: a part of the backend's own choice.
constexpr int part_beside_answers = 8;
// Waiting for another prompt's state is worth it from so many grains on.
constexpr int least_shared_grains = 4;
}  // namespace

void Engine::Scheduler::prefill_one_piece() {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const std::size_t turn = (next_prefill_ + i) % running_.size();
    Job& job = *running_[turn];
    if (!job.reading()) continue;
    if (!job.begun && !job.loading && waits_for_another(job)) continue;
    alone(job, [&] { read_more(job); });
    next_prefill_ = turn + 1;
    return;
  }
}

void Engine::Scheduler::read_more(Job& job) {
  if (!job.begun && !job.loading) begin_reading(job);
  if (job.loading) {
    load_one_file(job);
  } else {
    read_piece(job);
  }
}

/// Several answers to one prompt, and agents with one system prompt, come at once: the first reads what they
/// share, and the others go on from there.
bool Engine::Scheduler::waits_for_another(const Job& job) {
  if (!kept_.on()) return false;
  const int grain = backend_->prefill_grain();
  const std::span<const Token> prompt = job.request.prompt;
  const int most = last_cut(job.length(), grain);
  const int known = kept_.longest(prompt, most);
  for (const auto& other : running_) {
    const bool ahead = (other->begun || other->loading) && other->reading() && !other->request.side_request;
    if (other.get() == &job || !ahead) continue;
    const std::span<const Token> others = other->request.prompt;
    const std::size_t length = std::min(prompt.size(), others.size());
    const auto differ =
        std::mismatch(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(length), others.begin());
    const auto same = static_cast<int>(differ.first - prompt.begin());
    const int shared = std::min({same / grain * grain, most, last_cut(other->length(), grain)});
    if (shared <= other->read || shared - known < least_shared_grains * grain) continue;
    const auto at = std::lower_bound(other->keep.begin(), other->keep.end(), shared);
    if (at == other->keep.end() || *at != shared) other->keep.insert(at, shared);
    return true;
  }
  return false;
}

void Engine::Scheduler::begin_reading(Job& job) {
  const int grain = backend_->prefill_grain();
  KeptStates::Found found = kept_.find(job.request.prompt, last_cut(job.length(), grain));
  job.cache_note = std::move(found.match.note);
  if (kept_.on() && !job.request.side_request)
    job.keep = kept_positions(job.length(), job.request.boundaries, grain);
  job.miss = found.match.miss;
  job.loading = std::move(found.loading);
  if (!job.loading) start_from(job, found.match.snapshot.get());
}

void Engine::Scheduler::load_one_file(Job& job) {
  KeptStates::Loading& loading = *job.loading;
  kept_.load_next(job.request.prompt, loading);
  if (!loading.files.empty()) return;
  const Snapshot* best = loading.best();
  if (best != nullptr && best != loading.in_memory.get()) job.cache_note.clear();
  start_from(job, best);
  job.loading.reset();
  count_cache();
}

void Engine::Scheduler::start_from(Job& job, const Snapshot* snapshot) {
  if (snapshot != nullptr) {
    with_room([&] { backend_->restore(job.slot, *snapshot); });
    job.read = job.cached = snapshot->position();
    job.stream->push(PromptProgress{job.read, job.length()});
  }
  job.begun = true;
  const std::lock_guard lock(mutex_);
  stats_.prompt_tokens += static_cast<std::uint64_t>(job.length());
  stats_.cached_tokens += static_cast<std::uint64_t>(job.cached);
  ++(job.cached > 0 ? stats_.cache_hits : stats_.cache_misses.at(static_cast<std::size_t>(job.miss)));
}

void Engine::Scheduler::read_piece(Job& job) {
  const std::span<const Token> prompt = job.request.prompt;
  const auto next = std::upper_bound(job.keep.begin(), job.keep.end(), job.read);
  const int stop = next == job.keep.end() ? job.length() : *next;
  const int count =
      next_piece(job.read, job.length(), stop, piece_limit(!answering()), backend_->prefill_grain());
  with_room([&] {
    run_piece(job.slot, prompt.subspan(static_cast<std::size_t>(job.read), static_cast<std::size_t>(count)),
              job.read + count == job.length());
  });
  job.read += count;
  job.stream->push(PromptProgress{job.read, job.length()});
  if (!job.reading()) {
    job.prefilled_at = Clock::now();
  } else if (job.read == stop) {
    kept_.keep(job.slot, prompt.first(static_cast<std::size_t>(job.read)));
    count_cache();
  }
}

int Engine::Scheduler::piece_limit(bool alone) const {
  const int chunk = backend_->prefill_chunk();
  const int grain = backend_->prefill_grain();
  return alone ? chunk : std::max(chunk / part_beside_answers / grain, 2) * grain;
}

void Engine::Scheduler::run_piece(int slot, std::span<const Token> tokens, bool last) {
  const Clock::time_point begin = Clock::now();
  backend_->prefill(slot, tokens, last);
  const std::lock_guard lock(mutex_);
  stats_.prefill += Clock::now() - begin;
  ++stats_.pieces;
}

void Engine::Scheduler::remember_reply(Job& job) {
  const GenerationRequest& request = job.request;
  if (!kept_.on() || request.side_request || !request.reply_continues) return;
  Reading reading;
  reading.known = last_cut(job.length(), backend_->prefill_grain());
  reading.tokens = std::move(job.request.prompt);
  reading.tokens.insert(reading.tokens.end(), job.reply.begin(), job.reply.end());
  if (job.end_token) reading.tokens.push_back(*job.end_token);
  ahead_.push_back(std::move(reading));
  if (ahead_.size() > most_ahead) ahead_.pop_front();
}

void Engine::Scheduler::read_ahead() {
  if (ahead_.empty()) return;
  Reading& reading = ahead_.back();
  const int grain = backend_->prefill_grain();
  const int end = static_cast<int>(reading.tokens.size()) / grain * grain;
  const std::span<const Token> tokens = reading.tokens;
  if (reading.slot < 0) {
    const int kept = kept_.longest(tokens, end);
    if (kept < reading.known || kept == 0 || kept == end) {
      ahead_.pop_back();
      return;
    }
    reading.slot = free_slots_.back();
    free_slots_.pop_back();
    backend_->reset(reading.slot);
    backend_->restore(reading.slot, *kept_.exactly(tokens.first(static_cast<std::size_t>(kept))));
    reading.read = reading.known = kept;
  }
  // In small pieces: who comes meanwhile waits for the end of one.
  const int count = std::min(piece_limit(false), end - reading.read);
  run_piece(reading.slot,
            tokens.subspan(static_cast<std::size_t>(reading.read), static_cast<std::size_t>(count)), false);
  reading.read += count;
  if (reading.read < end) return;
  pause_reading_ahead();
  ahead_.pop_back();
}

void Engine::Scheduler::pause_reading_ahead() {
  if (ahead_.empty() || ahead_.back().slot < 0) return;
  Reading& reading = ahead_.back();
  if (reading.read > reading.known)
    kept_.keep(reading.slot, std::span(reading.tokens).first(static_cast<std::size_t>(reading.read)));
  free_slots_.push_back(std::exchange(reading.slot, -1));
  count_cache();
}

void Engine::Scheduler::count_cache() {
  const std::lock_guard lock(mutex_);
  kept_.count(stats_);
}

}  // namespace calla
