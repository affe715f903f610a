#include "cli/program.h"

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "base/json.h"
#include "cli/commands.h"

namespace calla::cli {
namespace {

/// Checks that a number is at least `least`, without a word of its own in the help.
CLI::Validator at_least(int least) {
  return CLI::Validator(
      [least](const std::string& text) {
        int value = 0;
        const bool holds = CLI::detail::lexical_cast(text, value) && value >= least;
        return holds ? std::string() : fmt::format("{} must be a whole number of at least {}", text, least);
      },
      "");
}

void add_model_flag(CLI::App& command, ModelFlags& flags) {
  CLI::Option* model =
      command
          .add_option("-m,--model", flags.model,
                      "Directory of the checkpoint (default: $CALLA_MODEL, else the demonstration model)")
          ->option_text("DIR");
  command
      .add_option("--synthetic", flags.synthetic,
                  "Made-up weights instead, of the shape 35b or demo; 35b:4 has its first 4 layers alone")
      ->option_text("SHAPE[:LAYERS]")
      ->excludes(model);
}

void add_backend_flag(CLI::App& command, ModelFlags& flags) {
  static const std::map<std::string, BackendKind> kinds{{"auto", BackendKind::automatic},
                                                        {"cuda", BackendKind::cuda},
                                                        {"metal", BackendKind::metal},
                                                        {"cpu", BackendKind::cpu},
                                                        {"reference", BackendKind::reference}};
  command
      .add_option(
          "--backend", flags.backend,
          "auto: the GPU where there is one that can be used, else the CPU (default). cuda: an NVIDIA "
          "GPU. metal: the GPU of a Mac. cpu. reference: plain float32 loops, slow, the truth for the others")
      ->type_name("KIND")
      ->transform(CLI::Validator(
          [](std::string& word) -> std::string {
            const auto kind = kinds.find(word);
            if (kind == kinds.end())
              return "is " + quote(word) + ", and must be auto, cuda, metal, cpu or reference";
            word = std::to_string(static_cast<int>(kind->second));
            return {};
          },
          ""));
  command.add_option("--threads", flags.threads, "Threads of the CPU backend (default: one a core)")
      ->type_name("N")
      ->check(at_least(1));
}

void add_context_flag(CLI::App& command, ModelFlags& flags) {
  command
      .add_option("--context", flags.context,
                  "Tokens a conversation may have (default: as many as the model and the memory allow)")
      ->type_name("N")
      ->check(at_least(1));
}

void add_request_flags(CLI::App& command, RequestFlags& flags) {
  command.add_flag("--no-think", flags.no_think, "Answer at once, without reasoning first");
  command
      .add_option("--thinking-budget", flags.thinking_budget, "Close the reasoning after this many tokens")
      ->type_name("N")
      ->check(at_least(0));
  command
      .add_option("--max-tokens", flags.max_tokens,
                  "End the reply after this many tokens, reasoning included")
      ->type_name("N")
      ->check(at_least(1));
  command.add_option("--stop", flags.stop, "End the answer before this text (may be given several times)")
      ->type_name("TEXT")
      ->allow_extra_args(false);

  constexpr const char* sampling = "Sampling (defaults: the model's generation_config.json)";
  const auto option = [&](const char* name, auto& value, const char* help, const char* type) {
    command.add_option(name, value, help)->type_name(type)->group(sampling);
  };
  command.add_flag("--greedy", flags.greedy, "Always the most probable token")->group(sampling);
  option("--seed", flags.sampling.seed, "The same seed gives the same reply", "N");
  option("--temperature", flags.sampling.temperature, "0 to 2; lower is safer, higher is more varied", "X");
  option("--top-k", flags.sampling.top_k, "Only the K most probable tokens; 0: all", "K");
  option("--top-p", flags.sampling.top_p, "Only the most probable tokens that together have this share", "X");
  option("--min-p", flags.sampling.min_p, "Only tokens at least this probable relative to the best", "X");
  option("--presence-penalty", flags.sampling.presence_penalty, "-2 to 2; against words already used", "X");
  option("--frequency-penalty", flags.sampling.frequency_penalty, "-2 to 2; against words used often", "X");
  option("--repetition-penalty", flags.sampling.repetition_penalty,
         "1: off; above 1 against words of prompt and reply", "X");
}

void add_run(CLI::App& program) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App& command = *program.add_subcommand("run", "Answer one prompt");
  command.add_option("PROMPT", flags->prompt, "What to answer (default: read from standard input)")
      ->option_text(" ");
  add_model_flag(command, flags->model);
  add_backend_flag(command, flags->model);
  add_context_flag(command, flags->model);
  command.add_option("--system", flags->system, "Instructions for the model")->type_name("TEXT");
  command.add_option("--tools", flags->tools_file, "JSON file with an array of tools in the OpenAI form")
      ->type_name("FILE");
  command
      .add_option("--messages", flags->messages_file,
                  "JSON file with a whole conversation: {\"messages\", \"tools\", \"chat_template_kwargs\"}")
      ->type_name("FILE");
  command.add_flag("--show-thinking", flags->show_thinking, "Print the reasoning too");
  command.add_flag("--json", flags->json,
                   "Print one JSON object when the reply is finished, instead of streaming it");
  add_request_flags(command, flags->request);
  command.footer(
      "Examples:\n"
      "  calla run \"What is the capital of Thailand?\"\n"
      "  git diff | calla run --system \"Review this change.\" --show-thinking");
  command.callback([flags] { run(*flags); });
}

void add_chat(CLI::App& program) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App& command = *program.add_subcommand("chat", "Talk with the model");
  add_model_flag(command, flags->model);
  add_backend_flag(command, flags->model);
  add_context_flag(command, flags->model);
  command.add_option("--system", flags->system, "Instructions for the model")->type_name("TEXT");
  command.add_flag("--hide-thinking", flags->hide_thinking, "Show only a count while it reasons");
  add_request_flags(command, flags->request);
  command.footer(std::string("In the conversation:\n") + std::string(chat_help()));
  command.callback([flags] { chat(*flags); });
}

void add_info(CLI::App& program) {
  auto flags = std::make_shared<InfoFlags>();
  CLI::App& command =
      *program.add_subcommand("info", "Describe the checkpoint, the machine and the memory plan");
  add_model_flag(command, flags->model);
  add_backend_flag(command, flags->model);
  add_context_flag(command, flags->model);
  command.add_flag(
      "--plan", flags->plan,
      "With --backend metal, on any machine: what the GPU does for a token, and what that implies for "
      "Apple's chips");
  command.callback([flags] { info(*flags); });
}

void add_bench(CLI::App& program) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App& command = *program.add_subcommand("bench", "Measure the speed, beside what the machine can do");
  add_model_flag(command, flags->model);
  add_backend_flag(command, flags->model);
  command
      .add_option(
          "--contexts", flags->contexts,
          "Lengths of the prompt, with commas between (default: 256,512,... to 131072, as far as the model "
          "and the memory allow)")
      ->option_text("N,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(at_least(1));
  const auto count = [&](const char* name, int& value, const char* help) {
    command.add_option(name, value, help)->type_name("N")->check(at_least(1));
  };
  count("--steps", flags->steps, "Decode steps that are timed (default: 64)");
  count("--rounds", flags->rounds, "How often each length is measured; figures are medians (default: 3)");
  count("--batch", flags->batch, "Sequences that decode together (default: 1)");
  const auto file = [&](const char* name, std::string& value, const char* help) {
    command.add_option(name, value, help)->type_name("FILE");
  };
  file("--json", flags->json_file, "Write all figures as JSON; - in place of the table");
  file("--csv", flags->csv_file, "Write a line for each length; - in place of the table");
  file("--plot", flags->plot_file, "Draw speed against length, as SVG");
  command
      .add_option(
          "--beside", flags->beside_files,
          "Draw these speeds too, from a file as --csv writes it, of another run or program; the curve has "
          "the file's name (repeatable)")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->needs("--plot");
  command.footer(
      "Prefill is timed to the first token, decode over the steps behind it, greedy, with one step always "
      "in\n"
      "flight. A decode step must move the weights it uses, the states and the KV cache: the bound is what "
      "the\n"
      "measured memory bandwidth allows.\n"
      "Example:\n"
      "  calla bench --synthetic 35b:4 --contexts 512,4096 --plot speed.svg");
  command.callback([flags] { bench(*flags); });
}

void add_eval(CLI::App& program) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App& command = *program.add_subcommand("eval", "Measure how well the model predicts a text");
  command
      .add_option("FILE", flags->file,
                  "Conversations, one a line (.jsonl); token ids as a JSON array or an array of arrays "
                  "(.json, .ids) or as tensors 0.ids, 1.ids, ... (.safetensors); or plain text")
      ->option_text(" ")
      ->required();
  add_model_flag(command, flags->model);
  add_backend_flag(command, flags->model);
  command
      .add_option("--context", flags->model.context,
                  "Cut longer documents into windows of N tokens, each scored by itself (default: all the "
                  "model knows)")
      ->type_name("N")
      ->check(at_least(2));
  command
      .add_option(
          "--prefill", flags->prefill,
          "Read the first N tokens of each document (or window) as a prompt, unscored: what the arithmetic "
          "of prompts does to the reply (default: 0)")
      ->type_name("N")
      ->check(at_least(0));
  command.add_option("--max-positions", flags->max_positions, "Stop after N positions")
      ->type_name("N")
      ->check(at_least(1));
  command
      .add_option(
          "--against", flags->against,
          "Tell how far the backend is from the reference backend (reference), or from the logits that "
          "other software has computed of the same tokens (a .safetensors file with N.ids and N.logits)")
      ->type_name("reference|FILE")
      ->check(CLI::Validator(
          [](const std::string& value) {
            return value == against_reference || value.ends_with(".safetensors")
                       ? std::string()
                       : "must be reference or a .safetensors file, not " + value;
          },
          ""));
  command.add_flag("--json", flags->json, "Print one JSON object");
  command.footer(
      "Each token is predicted from those before it. Perplexity is exp of the mean surprise; top-1 is the "
      "share of\n"
      "tokens that were the most probable.\n"
      "Example:\n"
      "  calla eval conversations.jsonl --against reference --max-positions 2000");
  command.callback([flags] { eval(*flags); });
}

void add_synth(CLI::App& program) {
  auto flags = std::make_shared<SynthFlags>();
  CLI::App& command = *program.add_subcommand("synth", "Write a checkpoint of made-up weights");
  command.add_option("--shape", flags->shape, "The model whose dimensions it has: 35b or demo")
      ->type_name("SHAPE")
      ->required();
  command.add_option("--layers", flags->layers, "Only the first N layers (default: all)")
      ->type_name("N")
      ->check(at_least(1));
  command.add_option("--out", flags->directory, "The directory to write, new or empty")
      ->type_name("DIR")
      ->required();
  command.footer(
      "It runs as a real one does, at the same speed; what it writes means nothing. --synthetic makes the "
      "same\n"
      "weights in memory.");
  command.callback([flags] { synth(*flags); });
}

void add_serve(CLI::App& program) {
  auto flags = std::make_shared<ServeFlags>();
  flags->model.slots = 4;
  CLI::App& command = *program.add_subcommand("serve", "Answer over HTTP: the OpenAI API and a web page");
  add_model_flag(command, flags->model);
  add_backend_flag(command, flags->model);
  add_context_flag(command, flags->model);
  command.add_option("--slots", flags->model.slots, "Requests that are answered at once (default: 4)")
      ->type_name("N")
      ->check(at_least(1));
  command.add_option("--queue", flags->queue, "Requests that may wait for a slot (default: 64)")
      ->type_name("N")
      ->check(at_least(0));

  command.add_flag("--no-thinking", flags->no_thinking,
                   "Answer without thinking where a request does not say (default: think)");
  command.add_flag("--preserve-thinking", flags->preserve_thinking,
                   "Keep the thoughts of earlier turns in the prompt where a request does not say");
  command.add_flag("--log-text", flags->log_text, "Log what is asked and answered, too");

  constexpr const char* network = "Network";
  command.add_option("--host", flags->host, "Address to listen on (default: 127.0.0.1, this machine alone)")
      ->type_name("ADDRESS")
      ->group(network);
  command.add_option("--port", flags->port, "Port to listen on; 0: any that is free (default: 8080)")
      ->type_name("N")
      ->check(CLI::Range(0, 65535).description(""))
      ->group(network);
  CLI::Option* key = command.add_option("--api-key", flags->api_key, "Key that requests must carry")
                         ->type_name("KEY")
                         ->group(network);
  command.add_option("--api-key-file", flags->api_key_file, "File of such keys, one a line")
      ->type_name("FILE")
      ->excludes(key)
      ->group(network);
  command
      .add_option("--cors", flags->cors,
                  "Origin of web pages that may call, as https://example.org (several times; *: all)")
      ->type_name("ORIGIN")
      ->allow_extra_args(false)
      ->group(network);

  constexpr const char* cache = "Prefix cache";
  const CLI::AsSizeValue bytes(false);
  command
      .add_option("--cache-memory", flags->cache_memory,
                  "Bytes, as 8G; 0: off (default: a part of the free memory). With an NVIDIA GPU, what its "
                  "memory has no room for goes to the machine's")
      ->option_text("SIZE")
      ->transform(bytes)
      ->group(cache);
  command
      .add_option("--cache-dir", flags->cache_dir,
                  "Directory where it outlives the program (default: nowhere)")
      ->type_name("DIR")
      ->group(cache);
  command.add_option("--cache-disk", flags->cache_disk, "Bytes that it may take there (default: 16G)")
      ->option_text("SIZE")
      ->transform(bytes)
      ->group(cache);
  command.footer(
      "Example:\n"
      "  calla serve --host 0.0.0.0 --api-key-file ~/.calla-key");
  command.callback([flags] { serve(*flags); });
}

void add_tokenize(CLI::App& program) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App& command = *program.add_subcommand("tokenize", "Print the token ids of a text");
  command.add_option("TEXT", flags->text, "The text (default: read from standard input)")->option_text(" ");
  add_model_flag(command, flags->model);
  command.add_flag("--special", flags->special,
                   "Read control tokens such as <|im_end|> as tokens, not as text");
  command.add_flag("--json", flags->json, "Print {\"ids\": [...]}");
  command.callback([flags] { tokenize(*flags); });
}

void add_detokenize(CLI::App& program) {
  auto flags = std::make_shared<DetokenizeFlags>();
  CLI::App& command = *program.add_subcommand("detokenize", "Print the text of token ids");
  command.add_option("IDS", flags->ids, "The ids (default: read from standard input)")->option_text("...");
  add_model_flag(command, flags->model);
  command.add_flag("--json", flags->json, "Print {\"text\": \"...\"}");
  command.callback([flags] { detokenize(*flags); });
}

void add_render(CLI::App& program) {
  auto flags = std::make_shared<RenderFlags>();
  CLI::App& command = *program.add_subcommand("render", "Print the prompt of a conversation");
  command
      .add_option("--messages", flags->messages_file,
                  "JSON file with a conversation: {\"messages\", \"tools\", \"chat_template_kwargs\"}")
      ->type_name("FILE")
      ->required();
  add_model_flag(command, flags->model);
  command.add_flag("--json", flags->json, "Print {\"prompt\": \"...\", \"ids\": [...]}");
  command.callback([flags] { render(*flags); });
}

}  // namespace

void run_program(int argc, const char* const* argv) {
  CLI::App program(
      "Calla runs Qwen3.6-35B-A3B, as the MLX 4-bit checkpoint, on this machine.\n"
      "Without --model it runs the small demonstration model that comes with it.",
      "calla");
  program.set_version_flag("--version", CALLA_VERSION);
  program.require_subcommand(0, 1);
  program.footer("calla COMMAND --help describes a command.\n");
  program.get_formatter()->label("SUBCOMMAND", "COMMAND");
  program.get_formatter()->label("Subcommands", "Commands");
  add_run(program);
  add_chat(program);
  add_serve(program);
  add_info(program);
  add_bench(program);
  add_eval(program);
  add_synth(program);
  add_tokenize(program);
  add_detokenize(program);
  add_render(program);
  const auto help_of = [&] {
    const auto chosen = program.get_subcommands();
    return fmt::format("see calla {}--help", chosen.empty() ? "" : chosen.front()->get_name() + " ");
  };
  try {
    program.parse(argc, argv);
    if (program.get_subcommands().empty()) throw UsageError("", "which command?", help_of());
  } catch (const CLI::Success& asked) {  // --help, --version
    program.exit(asked);
  } catch (const CLI::ParseError& fault) {
    throw UsageError("", fault.what(), help_of());
  }
}

}  // namespace calla::cli
