// calla eval: how well the model predicts a text, and how far a backend is from the reference.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/eval_documents.h"
#include "cli/eval_score.h"
#include "cli/open.h"
#include "cli/terminal.h"

namespace calla::cli {
namespace {

/// Everything that the output tells.
struct EvalReport {
  const EvalFlags& flags;
  const Tokenizer& tokenizer;
  std::string model;
  std::string device;
  const std::vector<Document>& documents;
  Evaluation result;
};

double percent_above(double value, double base) { return (value / base - 1) * 100; }

std::string place_text(const EvalReport& report, const Place& place) {
  return fmt::format("{}, position {}", report.documents[place.document].name, place.position);
}

std::string token_text(const EvalReport& report, Token token) {
  return fmt::format("{} ({})", quote(report.tokenizer.decode(std::span(&token, 1))), token);
}

/// A tenth of a per cent where that tells it from all.
std::string share_text(double share) { return fmt::format("{:.2f} %", share * 100); }

void print_row(std::string_view name, const std::string& value) {
  put(STDOUT_FILENO, fmt::format("{:<12} {}\n", name, value));
}

/// Nothing where there is no difference at all.
std::string clear_differences_text(const Comparison& comparison) {
  if (!comparison.first) return {};
  return fmt::format(
      "; {} of the others where the reference's first is {} above its second",
      comparison.clear_differences == 0 ? "none" : std::to_string(comparison.clear_differences), clear_gap);
}

void print_comparison(const EvalReport& report, const Comparison& comparison) {
  const auto positions = static_cast<double>(report.result.backend.positions());
  print_row("reference", fmt::format("perplexity {:.4f}, top-1 {}", comparison.reference.perplexity(),
                                     share_text(comparison.reference.accuracy())));
  print_row("difference",
            fmt::format("{:+.4f} % perplexity, same top-1 at {} of the positions{}",
                        percent_above(report.result.backend.perplexity(), comparison.reference.perplexity()),
                        share_text(static_cast<double>(comparison.agreements) / positions),
                        clear_differences_text(comparison)));
  std::string divergence = fmt::format("mean {:.3g}", comparison.divergence / positions);
  if (comparison.worst_divergence > 0) {
    divergence += fmt::format(", worst {:.3g} at {}", comparison.worst_divergence,
                              place_text(report, comparison.worst));
  }
  print_row("divergence", divergence + " (KL(reference || backend), nats)");
  if (!comparison.first) return;
  const Disagreement& first = *comparison.first;
  print_row("first other",
            fmt::format("{}: the reference expects {}, this backend {}; the text has {}",
                        place_text(report, first.place), token_text(report, first.reference),
                        token_text(report, first.backend), token_text(report, first.expected)));
}

void print_report(const EvalReport& report) {
  const Tally& tally = report.result.backend;
  print_row("file", fmt::format("{}: {} document{}, {} position{}", report.flags.file,
                                report.documents.size(), report.documents.size() == 1 ? "" : "s",
                                tally.positions(), tally.positions() == 1 ? "" : "s"));
  print_row("model", report.model);
  print_row("backend", report.device);
  print_row("perplexity", fmt::format("{:.4f}", tally.perplexity()));
  print_row("top-1", share_text(tally.accuracy()));
  if (report.result.comparison) print_comparison(report, *report.result.comparison);
}

Json place_json(const EvalReport& report, const Place& place) {
  return {{"document", report.documents[place.document].name}, {"position", place.position}};
}

Json comparison_json(const EvalReport& report, const Comparison& comparison) {
  const auto positions = static_cast<double>(report.result.backend.positions());
  Json json{
      {"reference",
       {{"perplexity", comparison.reference.perplexity()}, {"top1", comparison.reference.accuracy()}}},
      {"perplexity_difference_percent",
       percent_above(report.result.backend.perplexity(), comparison.reference.perplexity())},
      {"top1_agreement", static_cast<double>(comparison.agreements) / positions},
      {"clear_differences", comparison.clear_differences},
      {"kl_mean", comparison.divergence / positions},
      {"kl_worst", comparison.worst_divergence},
      {"kl_worst_at", comparison.worst_divergence > 0 ? place_json(report, comparison.worst) : Json(nullptr)},
      {"first_difference", nullptr}};
  if (comparison.first) {
    const auto token = [&](Token id) {
      return Json{{"id", id}, {"text", report.tokenizer.decode(std::span(&id, 1))}};
    };
    Json first = place_json(report, comparison.first->place);
    first["expected"] = token(comparison.first->expected);
    first["reference"] = token(comparison.first->reference);
    first["backend"] = token(comparison.first->backend);
    json["first_difference"] = std::move(first);
  }
  return json;
}

Json report_json(const EvalReport& report) {
  const Tally& tally = report.result.backend;
  Json json{{"file", report.flags.file},      {"model", report.model},
            {"backend", report.device},       {"documents", report.documents.size()},
            {"positions", tally.positions()}, {"perplexity", tally.perplexity()},
            {"top1", tally.accuracy()}};
  if (report.result.comparison) json["against"] = comparison_json(report, *report.result.comparison);
  return json;
}

/// The window that the flags ask for or that the model knows, and no more than the longest document needs.
std::size_t choose_window(const EvalFlags& flags, const ModelConfig& config,
                          const std::vector<Document>& documents) {
  std::size_t longest = 0;
  for (const Document& document : documents) longest = std::max(longest, document.tokens.size());
  return std::min(longest, static_cast<std::size_t>(flags.model.context.value_or(config.context)));
}

/// The reference backend beside the one that is evaluated. Its weights stay where they are mapped, in pages
/// that the system may drop.
std::unique_ptr<Backend> load_reference(const ModelWeights& model, int context) {
  ModelFlags flags;
  flags.backend = BackendKind::reference;
  MemoryPlan plan = plan_backend(flags, model.config.shape, model.weights.bytes, 1, context);
  plan.weights = 0;
  if (const auto available = available_memory(flags)) require_fit(plan, *available);
  return make_backend(flags, model, plan, {});
}

}  // namespace

void eval(const EvalFlags& flags) {
  const std::filesystem::path directory = model_directory(flags.model);
  const ModelWeights model = find_weights(flags.model, directory);
  const Tokenizer tokenizer = Tokenizer::load(directory);
  const std::vector<Document> documents =
      read_documents(flags.file, tokenizer, model.config.shape.vocabulary);

  ModelFlags fitted = flags.model;
  EvalLimits limits{.window = choose_window(flags, model.config, documents)};
  limits.prefill = static_cast<std::size_t>(flags.prefill);
  if (flags.max_positions) limits.positions = static_cast<std::uint64_t>(*flags.max_positions);
  const std::uint64_t total = positions_of(documents, limits);
  if (total == 0)
    throw Error("--prefill", fmt::format("{} leaves nothing to score: no document is longer", flags.prefill));
  if (!fitted.context) fitted.context = static_cast<int>(limits.window);
  const MemoryPlan plan = plan_memory(fitted, model.config, model.weights.bytes, std::nullopt);
  const std::unique_ptr<Backend> backend = load_backend(fitted, model, plan);
  std::unique_ptr<ReferenceLogits> reference;
  if (flags.against == against_reference) {
    reference = logits_of_backend(load_reference(model, plan.context));
  } else if (!flags.against.empty()) {
    reference = logits_of_file(flags.against, documents, model.config.shape.vocabulary, limits.window);
  }

  Evaluation result;
  {
    ProgressBar bar("Evaluating");
    result = evaluate(*backend, reference.get(), documents, limits, [&](std::uint64_t done) {
      bar.draw(done, total, fmt::format("{} of {} positions", done, total));
    });
  }
  const EvalReport report{.flags = flags,
                          .tokenizer = tokenizer,
                          .model = model_title(model),
                          .device = std::string(backend->device()),
                          .documents = documents,
                          .result = result};
  if (flags.json) {
    put(STDOUT_FILENO, report_json(report).dump() + "\n");
  } else {
    print_report(report);
  }
}

}  // namespace calla::cli
