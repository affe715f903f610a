#include "cli/bench_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "model/memory_plan.h"

namespace calla::cli {
namespace {

double median(const std::vector<Round>& rounds, double Round::*seconds) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const Round& round : rounds) values.push_back(round.*seconds);
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double peak_operations(const BenchReport& report) { return 2 * report.product_peak; }

/// Three digits: "0.712", "18.6", "1234".
std::string three(double value) {
  return fmt::format("{:.{}f}", value, value < 0.9995 ? 3 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string percent(double share) { return fmt::format("{:.0f} %", share * 100); }

std::string digest_text(const BenchRow& row) {
  return repeats(row) ? fmt::format("{:016x}", row.rounds.front().digest) : "differs";
}

Json seconds_json(const std::vector<Round>& rounds, double Round::*seconds) {
  Json list = Json::array();
  for (const Round& round : rounds) list.push_back(round.*seconds);
  return list;
}

Json row_json(const BenchReport& report, const BenchRow& row) {
  const DecodeBytes& bytes = row.decode_bytes;
  return {{"context", row.context},
          {"prefill",
           {{"seconds", seconds_json(row.rounds, &Round::prefill_seconds)},
            {"tokens_per_second", prefill_rate(report, row)},
            {"operations", row.prefill_operations},
            {"operations_per_second", prefill_operation_rate(report, row)},
            {"share_of_peak", prefill_operation_rate(report, row) / peak_operations(report)}}},
          {"decode",
           {{"seconds", seconds_json(row.rounds, &Round::decode_seconds)},
            {"tokens_per_second", decode_rate(report, row)},
            {"tokens_per_second_all_slots", decode_rate(report, row) * report.batch},
            {"bytes_per_step",
             {{"weights", bytes.weights},
              {"embedding", bytes.embedding},
              {"states", bytes.states},
              {"kv_cache", bytes.kv_cache},
              {"total", bytes.total()}}},
            {"bound_tokens_per_second", decode_bound(report, row)},
            {"share_of_bound", decode_rate(report, row) / decode_bound(report, row)}}},
          {"digest", digest_text(row)},
          {"repeats", repeats(row)}};
}

std::string memory_line(const BenchReport& report) {
  if (!report.memory) return "";
  const double share = report.memory->large_page_share;
  constexpr std::uint64_t worth_a_word = 1'000'000'000;
  constexpr double enough = 0.9;
  const bool small = report.memory->resident > worth_a_word && share < enough;
  return fmt::format("memory    {} resident, {} of it in pages of 2 MiB{}\n",
                     format_bytes(report.memory->resident), percent(share),
                     small ? "; more would be faster:\n"
                             "          echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
                           : "");
}

}  // namespace

double prefill_rate(const BenchReport& report, const BenchRow& row) {
  return double{1} * report.batch * row.context / median(row.rounds, &Round::prefill_seconds);
}

double prefill_operation_rate(const BenchReport& report, const BenchRow& row) {
  return prefill_rate(report, row) / row.context * row.prefill_operations;
}

double decode_rate(const BenchReport& report, const BenchRow& row) {
  return report.steps / median(row.rounds, &Round::decode_seconds);
}

double decode_bound(const BenchReport& report, const BenchRow& row) {
  return report.read_bandwidth / row.decode_bytes.total();
}

bool repeats(const BenchRow& row) {
  return std::all_of(row.rounds.begin(), row.rounds.end(),
                     [&](const Round& round) { return round.digest == row.rounds.front().digest; });
}

std::string bench_table(const BenchReport& report) {
  const bool batched = report.batch > 1;
  std::string text = fmt::format(
      "machine   {}, {} thread{}\n"
      "ceilings  {} GB/s read, {} GOP/s of {}{}\n"
      "backend   {}\n"
      "model     {}, {} of weights\n"
      "{}"
      "workload  {} decode step{}, {} slot{}, median of {} round{}\n\n",
      report.processor, report.processor_threads, report.processor_threads == 1 ? "" : "s",
      three(report.read_bandwidth / 1e9), three(peak_operations(report) / 1e9), report.products,
      report.threads > 0 ? fmt::format(", with {} thread{}", report.threads, report.threads == 1 ? "" : "s")
                         : "",
      report.device, report.model, format_bytes(report.weight_bytes), memory_line(report), report.steps,
      report.steps == 1 ? "" : "s", report.batch, batched ? "s" : "", report.rounds,
      report.rounds == 1 ? "" : "s");

  const std::string all_head = batched ? fmt::format("{:>10}", "all slots") : "";
  text += fmt::format("{:>9} │ {:<34} │ {:<{}} │\n", "", "prefill", "decode", batched ? 45 : 35);
  text += fmt::format("{:>9} │{:>8}{:>10}{:>8}{:>9} │{:>8}{}{:>10}{:>8}{:>10} │ {}\n", "context", "tok/s",
                      "GOP/token", "GOP/s", "of peak", "tok/s", all_head, "GB/step", "bound", "of bound",
                      "digest");
  for (const BenchRow& row : report.rows) {
    const double decode = decode_rate(report, row);
    const double operations = prefill_operation_rate(report, row);
    const std::string all = batched ? fmt::format("{:>10}", three(decode * report.batch)) : "";
    text += fmt::format("{:>9} │{:>8}{:>10}{:>8}{:>9} │{:>8}{}{:>10}{:>8}{:>10} │ {}\n", row.context,
                        three(prefill_rate(report, row)), three(row.prefill_operations / row.context / 1e9),
                        three(operations / 1e9), percent(operations / peak_operations(report)), three(decode),
                        all, three(row.decode_bytes.total() / 1e9), three(decode_bound(report, row)),
                        percent(decode / decode_bound(report, row)), digest_text(row));
  }
  return text;
}

Json bench_json(const BenchReport& report) {
  Json rows = Json::array();
  for (const BenchRow& row : report.rows) rows.push_back(row_json(report, row));
  return {{"machine",
           {{"processor", report.processor},
            {"threads", report.processor_threads},
            {"threads_used", report.threads},
            {"read_bytes_per_second", report.read_bandwidth},
            {"product_peak", report.product_peak}}},
          {"memory", report.memory ? Json{{"resident_bytes", report.memory->resident},
                                          {"large_page_share", report.memory->large_page_share}}
                                   : Json(nullptr)},
          {"backend", report.device},
          {"model", {{"name", report.model}, {"weight_bytes", report.weight_bytes}}},
          {"workload", {{"steps", report.steps}, {"rounds", report.rounds}, {"batch", report.batch}}},
          {"contexts", rows}};
}

std::string bench_csv(const BenchReport& report) {
  std::string text =
      "context,batch,prefill_tokens_per_second,prefill_operations_per_second,prefill_share_of_peak,"
      "decode_tokens_per_second,decode_tokens_per_second_all_slots,decode_bytes_per_step,"
      "decode_bound_tokens_per_second,decode_share_of_bound,digest\n";
  for (const BenchRow& row : report.rows) {
    const double decode = decode_rate(report, row);
    const double operations = prefill_operation_rate(report, row);
    text +=
        fmt::format("{},{},{:.6g},{:.6g},{:.4f},{:.6g},{:.6g},{:.0f},{:.6g},{:.4f},{}\n", row.context,
                    report.batch, prefill_rate(report, row), operations, operations / peak_operations(report),
                    decode, decode * report.batch, row.decode_bytes.total(), decode_bound(report, row),
                    decode / decode_bound(report, row), digest_text(row));
  }
  return text;
}

}  // namespace calla::cli
