// A server for tests: the whole API on a free port, before a scripted model or the demonstration model.
#pragma once
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "chat/chat.h"
#include "scripted_backend.h"
#include "server/server.h"
#include "support/http_client.h"
#include "support/support.h"

namespace calla::test {

inline const Tokenizer& demo_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(demo_model());
  return tokenizer;
}

/// Tokens of a text in which control tokens are such.
inline std::vector<Token> tokens_of(std::string_view text) {
  return demo_tokenizer().encode(text, Tokenizer::ControlTokens::recognised);
}

/// Each piece encoded by itself: the tokens do not reach over a cut.
inline std::vector<Token> tokens_of_pieces(const std::vector<std::string>& pieces) {
  std::vector<Token> tokens;
  for (const std::string& piece : pieces) {
    const std::vector<Token> more = tokens_of(piece);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  return tokens;
}

/// Waits until a condition holds; false after a minute.
template <class Condition>
bool eventually(Condition&& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

struct ApiOptions {
  server::ServerOptions server = {};
  EngineOptions engine = {};
  int slots = 2;
  int context = 2048;
  bool open = true;  // the model is there from the beginning
  std::string model = "demo";
  PromptOptions prompt = {};  // where a request does not say
};

/// The parts stand in the order in which they lean on each other.
class ApiServer {
 public:
  ApiServer(std::unique_ptr<Backend> backend, ApiOptions options)
      : engine_(std::move(backend), std::move(options.engine)),
        chat_(engine_, demo_tokenizer(), {.temperature = 1.0F, .top_k = 20, .top_p = 0.95F}, {2420, 2422}),
        model_(std::move(options.model)),
        prompt_(options.prompt),
        server_(with_free_port(std::move(options.server)), [this](server::LogLevel, std::string_view line) {
          const std::lock_guard lock(mutex_);
          log_.emplace_back(line);
        }) {
    server_.start();
    if (options.open) open();
  }

  void open() { server_.open({.chat = &chat_, .id = model_, .created = 1700000000, .defaults = prompt_}); }
  int port() const { return server_.port(); }
  Engine& engine() { return engine_; }
  server::Server& server() { return server_; }
  std::vector<std::string> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  /// The first line of the log that has a text; waits for it.
  std::string log_line_with(const std::string& text) const {
    std::string found;
    eventually([&] {
      for (const std::string& line : log()) {
        if (line.find(text) != std::string::npos) found = line;
      }
      return !found.empty();
    });
    return found;
  }

 private:
  static server::ServerOptions with_free_port(server::ServerOptions options) {
    options.port = 0;
    return options;
  }

  mutable std::mutex mutex_;
  std::vector<std::string> log_;
  Engine engine_;
  Chat chat_;
  std::string model_;
  PromptOptions prompt_;
  server::Server server_;
};

/// A server whose model says what the test wants.
class ScriptedServer {
 public:
  explicit ScriptedServer(ApiOptions options = {})
      : control_(std::make_shared<ScriptControl>()),
        api_((say("Hello."), std::make_unique<ScriptedBackend>(control_, options.slots, options.context)),
             options) {}

  /// The reply to each request from now on.
  void say(std::string_view text) { play({.tokens = tokens_of(text)}); }
  void play(Script script) {
    write([script = std::move(script)](auto, const auto&) { return script; });
  }
  void write(ScriptWriter writer) {
    const std::lock_guard lock(control_->mutex);
    control_->writer = std::move(writer);
  }
  ScriptControl& control() { return *control_; }
  ApiServer& api() { return api_; }
  int port() const { return api_.port(); }

  HttpAnswer post(std::string_view path, const Json& body) const {
    return ask(port(), "POST", path, body.dump());
  }
  HttpAnswer chat(const Json& body) const { return post("/v1/chat/completions", body); }

 private:
  std::shared_ptr<ScriptControl> control_;
  ApiServer api_;
};

/// {"messages": [one of the user]}, without thinking, and more members.
inline Json chat_body(const std::string& text, const Json& more = Json::object()) {
  Json body{{"messages", Json::array({{{"role", "user"}, {"content", text}}})},
            {"chat_template_kwargs", {{"enable_thinking", false}}}};
  for (const auto& [key, value] : more.items()) body[key] = value;
  return body;
}

/// What the deltas of one choice of a stream put together.
struct Joined {
  std::string role;
  std::string content;
  std::string reasoning;
  Json tool_calls = Json::array();  // {"id", "name", "arguments"}
  std::string finish_reason;
  std::vector<Json> chunks;
  Json usage;
  bool done = false;  // [DONE] came, and nothing after it
};
Joined join_stream(const std::string& stream, int choice = 0);

}  // namespace calla::test
