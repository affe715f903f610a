// calla serve as a process: from its first line to its end by a signal.
#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"
#include "support/http_client.h"
#include "support/support.h"

extern char** environ;  // which not every system's headers declare

namespace calla {
namespace {

using namespace test;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// A running server; its log goes into a file.
class ServeProcess {
 public:
  explicit ServeProcess(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {calla_program().string(), "serve", "--port", "0"});
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, log_path().c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn(&pid_, pointers[0], &files, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&files);
  }
  ~ServeProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  ServeProcess(const ServeProcess&) = delete;
  ServeProcess& operator=(const ServeProcess&) = delete;

  std::string log() const {
    std::ifstream in(log_path());
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  /// The log, as soon as it has this: a request's line comes after its answer.
  std::string log_with(std::string_view part) const {
    for (const auto end = Clock::now() + std::chrono::seconds(20); Clock::now() < end;) {
      std::string text = log();
      if (text.find(part) != std::string::npos) return text;
      std::this_thread::sleep_for(milliseconds(5));
    }
    throw std::runtime_error(std::string(part) + " is not in the log: " + log());
  }
  /// The port, as soon as the log tells it.
  int port() const {
    for (const auto end = Clock::now() + std::chrono::seconds(20); Clock::now() < end;) {
      const std::string text = log();
      std::smatch found;
      if (std::regex_search(text, found, std::regex("listening on http://[^ ]+:([0-9]+)\n")))
        return std::stoi(found[1]);
      std::this_thread::sleep_for(milliseconds(5));
    }
    throw std::runtime_error("no port in the log: " + log());
  }
  int ready_port() const {
    const int found = port();
    for (const auto end = Clock::now() + std::chrono::seconds(60); Clock::now() < end;) {
      if (ask(found, "GET", "/health").status == 200) return found;
      std::this_thread::sleep_for(milliseconds(10));
    }
    throw std::runtime_error("not ready: " + log());
  }
  /// Sends a signal and waits for the end: the exit code, and how long it took.
  std::pair<int, milliseconds> end_by(int signal) {
    const auto begin = Clock::now();
    kill(pid_, signal);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            std::chrono::duration_cast<milliseconds>(Clock::now() - begin)};
  }

 private:
  std::string log_path() const { return (folder_.path() / "log").string(); }

  TemporaryFolder folder_;
  pid_t pid_ = -1;
};

TEST(Serve, TellsItsPlanAndAnswers) {
  ServeProcess server({"--slots", "2", "--context", "1024", "--cache-memory", "1M"});
  const int port = server.ready_port();
  const HttpAnswer answer = ask(
      port, "POST", "/v1/chat/completions",
      R"({"messages": [{"role": "user", "content": "What is the capital of Thailand?"}], "temperature": 0})");
  EXPECT_EQ(answer.json().at("choices").at(0).at("message").at("content"),
            "The capital of Thailand is Bangkok.");
  EXPECT_EQ(ask(port, "GET", "/v1/models").json().at("data").at(0).at("context_length"), 1024);
  const std::string log = server.log_with("finish=stop");
  for (const char* part : {"2 slots of 1024 tokens", "weights", "KV cache", "prefix cache up to 1.05 MB",
                           "web page: http://127.0.0.1:", "try: curl http://127.0.0.1:"}) {
    EXPECT_NE(log.find(part), std::string::npos) << part << " in\n" << log;
  }
  EXPECT_EQ(log.find("Thailand is Bangkok"), std::string::npos) << "no text of answers";
  EXPECT_EQ(log.find("warn"), std::string::npos) << "nor questions after its health: " << log;
}

TEST(Serve, EndsBySignalWithinASecondAndSaysSoToItsClients) {
  for (const int signal : {SIGTERM, SIGINT}) {
    ServeProcess server({});
    const int port = server.ready_port();
    HttpClient client(port);
    client.send_request("POST", "/v1/chat/completions",
                        R"({"messages": [{"role": "user", "content": "Tell me a story."}], "stream": true,
                            "logit_bias": {"2420": -100, "2422": -100}})");
    EXPECT_EQ(client.read_answer(true).status, 200);
    const auto [code, took] = server.end_by(signal);
    EXPECT_EQ(code, 0);
    EXPECT_LT(took, milliseconds(2000)) << "a second, and one for a busy machine";
    std::string rest;
    while (const auto line = client.read_line()) rest += *line + "\n";
    EXPECT_NE(rest.find("shutting_down"), std::string::npos);
    EXPECT_NE(rest.find("[DONE]"), std::string::npos);
  }
}

TEST(Serve, EndsWithOneLineWhereTheModelCannotBeLoaded) {
  const TemporaryFolder folder;
  for (const char* name : {"config.json", "tokenizer.json", "generation_config.json"}) {
    std::filesystem::copy_file(demo_model() / name, folder.path() / name);
  }
  write_file(folder.path() / "model.safetensors", "nonsense");
  const ProgramResult result = run_calla({"serve", "--port", "0", "--model", folder.path().string()});
  EXPECT_EQ(result.code, 1);
  const std::size_t at = result.err.find("calla: ");
  ASSERT_NE(at, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find('\n', at), result.err.size() - 1) << "one line, the last: " << result.err;
  EXPECT_NE(result.err.find("model.safetensors", at), std::string::npos) << result.err;
}

TEST(Serve, RefusesAPortThatIsTaken) {
  ServeProcess server({});
  const ProgramResult result = run_calla({"serve", "--port", std::to_string(server.port())});
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.err.find("cannot be listened on"), std::string::npos) << result.err;
}

TEST(Serve, WarnsWhenEveryoneCanAsk) {
  ServeProcess open({"--host", "0.0.0.0"});
  EXPECT_EQ(ask(open.ready_port(), "GET", "/v1/models").status, 200);
  EXPECT_NE(open.log().find("set --api-key"), std::string::npos) << open.log();
  ServeProcess keyed({"--host", "0.0.0.0", "--api-key", "k"});
  EXPECT_EQ(ask(keyed.ready_port(), "GET", "/v1/models").status, 401);
  EXPECT_EQ(keyed.log().find("set --api-key"), std::string::npos) << keyed.log();
}

TEST(Serve, TakesItsKeysFromAFile) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "keys").string();
  write_file(file, "one\n\ntwo\r\n");
  ServeProcess server({"--api-key-file", file});
  const int port = server.ready_port();
  for (const char* key : {"one", "two"}) {
    EXPECT_EQ(ask(port, "GET", "/v1/models", "", {{"x-api-key", key}}).status, 200) << key;
  }
  EXPECT_EQ(ask(port, "GET", "/v1/models").status, 401);
  write_file(file, "\n");
  EXPECT_NE(run_calla({"serve", "--port", "0", "--api-key-file", file}).err.find("holds no key"),
            std::string::npos);
  EXPECT_EQ(run_calla({"serve", "--port", "70000"}).code, 2);
  EXPECT_EQ(run_calla({"serve", "--api-key", "k", "--api-key-file", file}).code, 2);
}

TEST(Serve, ReusesAConversation) {
  ServeProcess server({"--cache-memory", "64M"});
  const int port = server.ready_port();
  Json body =
      Json::parse(R"({"messages": [{"role": "user", "content": ""}], "temperature": 0, "max_tokens": 20,
      "reasoning_effort": "none"})");
  std::string text = "Remember these numbers:";
  for (int i = 0; i < 60; ++i) text += fmt::format(" {}", i);
  body["messages"][0]["content"] = text;
  const Json first = ask(port, "POST", "/v1/chat/completions", body.dump()).json();
  EXPECT_EQ(first.at("usage").at("prompt_tokens_details").at("cached_tokens"), 0);
  const Json second = ask(port, "POST", "/v1/chat/completions", body.dump()).json();
  EXPECT_GT(second.at("usage").at("prompt_tokens_details").at("cached_tokens"), 50);
  EXPECT_EQ(second.at("choices"), first.at("choices"));
}

/// A conversation of about a thousand tokens, and what of it came from the cache.
class CachedConversation {
 public:
  explicit CachedConversation(int port) : port_(port) {
    std::string text = "Remember these numbers:";
    for (int i = 0; i < 400; ++i) text += fmt::format(" {}", i);
    messages = Json::array(
        {{{"role", "system"}, {"content", "You are helpful."}}, {{"role", "user"}, {"content", text}}});
  }
  struct Asked {
    int prompt = 0;
    int cached = 0;
  };
  Asked ask_all() const { return ask_with(messages); }
  Asked ask_with(const Json& all) const {
    const Json answer =
        ask(port_, "POST", "/v1/chat/completions",
            Json{{"messages", all}, {"temperature", 0}, {"max_tokens", 4}, {"reasoning_effort", "none"}}
                .dump())
            .json();
    const Json& usage = answer.at("usage");
    return {usage.at("prompt_tokens"), usage.at("prompt_tokens_details").at("cached_tokens")};
  }

  Json messages;

 private:
  int port_;
};

TEST(Serve, Q088_AChangeCostsWhatFollowsIt) {
  ServeProcess server({"--cache-memory", "256M"});
  CachedConversation conversation(server.ready_port());
  const auto first = conversation.ask_all();
  ASSERT_GT(first.prompt, 800);
  EXPECT_EQ(first.cached, 0);
  conversation.messages.push_back({{"role", "assistant"}, {"content", "Yes."}});
  conversation.messages.push_back({{"role", "user"}, {"content", "It is 10:31. What is the first?"}});
  EXPECT_GT(conversation.ask_all().cached, first.prompt - 64);
  conversation.messages.back()["content"] = "It is 10:32. What is the first?";
  EXPECT_GT(conversation.ask_all().cached, first.prompt - 64) << "a new time in the last line";
  conversation.messages[0]["content"] = "You are very helpful.";
  EXPECT_LT(conversation.ask_all().cached, 64) << "all that follows the beginning is new";
}

TEST(Serve, Q089_ASideRequestDoesNotCostTheConversationItsState) {
  ServeProcess server({"--cache-memory", "256M", "--slots", "1"});
  CachedConversation conversation(server.ready_port());
  const auto first = conversation.ask_all();
  conversation.ask_with(
      Json::array({{{"role", "user"}, {"content", "A title of three words for: numbers"}}}));
  conversation.messages.push_back({{"role", "assistant"}, {"content", "Yes."}});
  conversation.messages.push_back({{"role", "user"}, {"content", "And now?"}});
  EXPECT_GT(conversation.ask_all().cached, first.prompt - 64);
}

}  // namespace
}  // namespace calla
