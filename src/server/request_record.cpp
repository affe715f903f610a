#include "server/request_record.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "base/json.h"

namespace calla::server {

void ReplyRecord::add(const ChatFinished& finished, bool counts_prompt) {
  if (choices++ == 0) {
    finish = name(finished.end);
    cache_note = finished.timing.cache_note;
  }
  if (counts_prompt) {
    usage.prompt_tokens += finished.usage.prompt_tokens;
    usage.cached_tokens += finished.usage.cached_tokens;
  }
  usage.completion_tokens += finished.usage.completion_tokens;
  usage.reasoning_tokens += finished.usage.reasoning_tokens;
  queued = std::max(queued, finished.timing.queued);
  prefill = std::max(prefill, finished.timing.prefill);
  decode = std::max(decode, finished.timing.decode);
}

std::string log_line(const RequestRecord& record) {
  const Seconds took = RequestRecord::Clock::now() - record.began;
  std::string line = fmt::format("id={} peer={} method={} path={} status={} seconds={:.3f}", record.id,
                                 record.peer, record.method, quote(record.path), record.status, took.count());
  if (record.first_token) line += fmt::format(" first_token={:.3f}", record.first_token->count());
  if (const auto& reply = record.reply) {
    line += fmt::format(
        " stream={} prompt={} cached={} out={} reasoning={} queued={:.3f} prefill={:.3f} decode={:.3f} "
        "finish={}",
        reply->streamed, reply->usage.prompt_tokens, reply->usage.cached_tokens,
        reply->usage.completion_tokens, reply->usage.reasoning_tokens, reply->queued.count(),
        reply->prefill.count(), reply->decode.count(), reply->finish);
    if (reply->choices > 1) line += fmt::format(" choices={}", reply->choices);
    if (!reply->cache_note.empty()) line += " cache=" + quote(reply->cache_note);
  }
  if (!record.fault.empty()) line += " error=" + quote(record.fault);
  if (!record.body.empty()) line += " request=" + quote(record.body);
  if (record.reply && !record.reply->text.empty()) line += " answer=" + quote(record.reply->text);
  return line;
}

std::string fresh_request_id() {
  constexpr std::string_view alphabet = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device entropy;
  std::uniform_int_distribution<std::size_t> letter(0, alphabet.size() - 1);
  std::string id = "req_";
  for (int i = 0; i < 16; ++i) id += alphabet[letter(entropy)];
  return id;
}

}  // namespace calla::server
