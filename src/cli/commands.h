// The commands of the program and their flags. program.cpp reads the flags; each command has a file of its
// own, returns when it is done, and throws Error when it fails.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "chat/chat.h"

namespace calla::cli {

/// The command line asks for something that makes no sense.
class UsageError : public Error {
 public:
  using Error::Error;
};

enum class BackendKind { automatic, cuda, metal, cpu, reference };

struct ModelFlags {
  std::string model;      // a directory; empty: CALLA_MODEL, else the demonstration model
  std::string synthetic;  // "35b", "demo:3": made-up weights of a shape instead of a directory
  BackendKind backend = BackendKind::automatic;
  std::optional<int> threads;  // of the CPU backend; empty: one a core
  std::optional<int> context;  // positions a slot; empty: all that the model has and the memory allows
  int slots = 1;
};

/// How `run` and `chat` shape a request.
struct RequestFlags {
  SamplingChoice sampling;
  bool greedy = false;
  bool no_think = false;
  std::optional<int> thinking_budget;
  std::optional<int> max_tokens;
  std::vector<std::string> stop;

  /// Sets everything but the conversation.
  void apply(ChatRequest& request) const;
};

struct RunFlags {
  ModelFlags model;
  RequestFlags request;
  std::optional<std::string> prompt;  // empty: standard input
  std::string system;
  std::string tools_file;
  std::string messages_file;
  bool show_thinking = false;
  bool json = false;
};
/// Answers one prompt or conversation.
void run(const RunFlags& flags);

struct ChatFlags {
  ModelFlags model;
  RequestFlags request;
  std::string system;
  bool hide_thinking = false;
};
/// A conversation at the terminal.
void chat(const ChatFlags& flags);
/// What a person may type in it.
std::string_view chat_help();

struct InfoFlags {
  ModelFlags model;
  bool plan = false;  // what a token takes on the Metal backend instead
};
/// What the checkpoint is, what the machine has, and whether they fit together.
void info(const InfoFlags& flags);

struct BenchFlags {
  ModelFlags model;           // its context and slots are chosen by the benchmark
  std::vector<int> contexts;  // empty: 256, 512, ... as far as model and memory allow
  int steps = 64;
  int rounds = 3;
  int batch = 1;
  std::string json_file;  // "-": standard output, in place of the table
  std::string csv_file;   // the same
  std::string plot_file;
  std::vector<std::string> beside_files;  // whose speeds the plot shows too
};
/// Measures prefill and decode against what the machine can do. Throws Error when rounds disagree in what
/// they decode.
void bench(const BenchFlags& flags);

inline constexpr std::string_view against_reference = "reference";

struct EvalFlags {
  ModelFlags model;  // its context is the window that documents are cut to
  std::string file;
  int prefill = 0;  // tokens of each document that are read as a prompt, and not scored
  std::optional<int> max_positions;
  std::string against;  // against_reference, or a file of logits; empty: nothing
  bool json = false;
};
/// How well the model predicts the tokens of a file, and how far the backend is from the reference there.
void eval(const EvalFlags& flags);

struct SynthFlags {
  std::string shape;          // as in ModelFlags::synthetic, without layers
  std::optional<int> layers;  // empty: all
  std::string directory;
};
/// Writes a checkpoint of made-up weights.
void synth(const SynthFlags& flags);

struct ServeFlags {
  ModelFlags model;
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string api_key;
  std::string api_key_file;
  std::vector<std::string> cors;
  bool no_thinking = false;
  bool preserve_thinking = false;
  bool log_text = false;
  int queue = 64;                             // requests that may wait for a slot
  std::optional<std::uint64_t> cache_memory;  // bytes; empty: a part of the memory that is free
  std::string cache_dir;
  std::uint64_t cache_disk = std::uint64_t{16} << 30U;
};
/// Answers over HTTP until SIGINT or SIGTERM.
void serve(const ServeFlags& flags);

struct TokenizeFlags {
  ModelFlags model;
  std::optional<std::string> text;  // empty: standard input
  bool special = false;
  bool json = false;
};
/// From text to ids.
void tokenize(const TokenizeFlags& flags);

struct DetokenizeFlags {
  ModelFlags model;
  std::vector<Token> ids;  // empty: standard input
  bool json = false;
};
/// From ids to text.
void detokenize(const DetokenizeFlags& flags);

struct RenderFlags {
  ModelFlags model;
  std::string messages_file;
  bool json = false;
};
/// The prompt that the model would be given for a conversation.
void render(const RenderFlags& flags);

}  // namespace calla::cli
