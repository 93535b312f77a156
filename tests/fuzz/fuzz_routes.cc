// Requests to every route, and replies of every form. The input is a route, a body, and the text that the model writes,
// one token per byte. The route answers, or refuses in the form of its API. Replies and events are JSON. Streams keep
// their API's order of events.
//   byte 0: the route;  then the body;  0xFF;  then the model's text, up to EOS
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/require.h"
#include "server/api/api.h"
#include "server/fake_engine.h"
#include "server/structured/grammar.h"

namespace {

using namespace dsv4;
using namespace dsv4::server;
using dsv4::fuzz::Require;

constexpr size_t kMaxText = 400;

// Writes the bytes of a text after any prompt; then EOS.
class ScriptEngine : public FakeEngine {
 public:
  explicit ScriptEngine(const Tokenizer& tokenizer) : FakeEngine(tokenizer.vocab_size()) {
    ModelInfo& info = mutable_info();
    info.max_context = 4096;
    info.eos_token_ids = {tokenizer.eos_token_id()};
    bytes_.resize(256, tokenizer.eos_token_id());
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string_view bytes = tokenizer.TokenBytes(id);
      if (bytes.size() == 1 && !tokenizer.IsAdded(id)) bytes_[static_cast<unsigned char>(bytes[0])] = id;
    }
    marker_ = tokenizer.FindToken("｜DSML｜").value_or(-1);
    end_think_ = tokenizer.FindToken("</think>").value_or(-1);
    next = [this](const Session& session) { return Next(session.tokens().size()); };
  }

  // Sets the next reply. Bytes 0x01 and 0x02 stand for two added tokens: the marker of tags and "</think>".
  void SetText(std::string_view text) {
    text_ = text.substr(0, kMaxText);
    first_ = 0;
  }

 private:
  TokenId Next(size_t length) {
    if (first_ == 0) first_ = length;
    const size_t at = length - std::min(first_, length);
    if (at >= text_.size()) return info().eos_token_ids[0];
    if (text_[at] == 1 && marker_ >= 0) return marker_;
    if (text_[at] == 2 && end_think_ >= 0) return end_think_;
    return bytes_[static_cast<unsigned char>(text_[at])];
  }

  std::string text_;
  size_t first_ = 0;  // tokens before the first one of the reply
  std::vector<TokenId> bytes_;
  TokenId marker_ = -1, end_think_ = -1;
};

// Stores one reply.
class Collector : public Exchange {
 public:
  Collector(std::string path, std::string body) {
    request_.method = "POST";
    request_.path = std::move(path);
    request_.body = std::move(body);
    request_.id = "req_1";
  }
  const HttpRequest& request() const override { return request_; }
  void DropBody() override {}
  void OutOfMemory() noexcept override { std::abort(); }
  void Respond(int status, std::string_view, std::string body, HeaderList) override {
    const std::lock_guard lock(mutex_);
    Require(!over_ && !streaming_);
    status_ = status;
    body_ = std::move(body);
    over_ = true;
    changed_.notify_all();
  }
  void StartStream(int status, std::string_view, HeaderList) override {
    const std::lock_guard lock(mutex_);
    Require(!over_ && !streaming_);
    status_ = status;
    streaming_ = true;
  }
  void Write(std::string bytes) override {
    const std::lock_guard lock(mutex_);
    Require(streaming_ && !over_);
    body_ += bytes;
  }
  void FinishStream() override {
    const std::lock_guard lock(mutex_);
    Require(streaming_ && !over_);
    over_ = true;
    changed_.notify_all();
  }
  void SetPing(std::string, std::chrono::seconds) override {}
  void OnClose(std::function<void()>) override {}
  void OnPressure(std::function<void(bool)>) override {}

  void Wait() {
    std::unique_lock lock(mutex_);
    Require(changed_.wait_for(lock, std::chrono::seconds(15), [this] { return over_; }));
  }
  int status() const { return status_; }
  bool streaming() const { return streaming_; }
  const std::string& body() const { return body_; }

 private:
  HttpRequest request_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool streaming_ = false, over_ = false;
  int status_ = 0;
  std::string body_;
};

struct RouteEntry {
  const char* path;
  Route serve;
  ErrorForm form;
};
constexpr RouteEntry kRoutes[] = {{"/v1/chat/completions", ServeChat, ErrorForm::kOpenAi},
                                  {"/v1/completions", ServeCompletions, ErrorForm::kOpenAi},
                                  {"/v1/responses", ServeResponses, ErrorForm::kOpenAi},
                                  {"/v1/messages", ServeMessages, ErrorForm::kAnthropic},
                                  {"/v1/messages/count_tokens", ServeCountTokens, ErrorForm::kAnthropic},
                                  {"/tokenize", ServeTokenize, ErrorForm::kOpenAi},
                                  {"/detokenize", ServeDetokenize, ErrorForm::kOpenAi}};

struct World {
  World()
      : tokenizer(std::move(Tokenizer::Load(std::string(DSV4_SOURCE_DIR) + "/models/nano")).value()),
        engine(*tokenizer),
        scheduler(engine, *tokenizer,
                  {.kv_budget_bytes = int64_t{1} << 40,
                   .kv_fixed_bytes = kFakeFixedBytes,
                   .kv_bytes_per_token = kFakeTokenBytes,
                   .prefix_cache = {.enabled = false}},
                  metrics, [](std::function<void()> call) { call(); }),
        grammars(GrammarCompiler::Create(*tokenizer, tokenizer->vocab_size(), engine.info().eos_token_ids)),
        api{.options = options,
            .model = engine.info(),
            .tokenizer = *tokenizer,
            .scheduler = scheduler,
            .metrics = metrics,
            .grammars = grammars.get(),
            .default_sampling = {.temperature = 0},
            .created = 1} {}

  ServerOptions options;
  Metrics metrics{"fuzz"};
  std::unique_ptr<Tokenizer> tokenizer;
  ScriptEngine engine;
  Scheduler scheduler;
  std::unique_ptr<GrammarCompiler> grammars;
  Api api;
};

// Returns the events of a stream. Each must be a JSON object.
std::vector<Json> Events(const std::string& body, bool* done) {
  std::vector<Json> events;
  *done = false;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    Require(end != std::string::npos && !*done);
    std::string_view block(body.data() + at, end - at);
    at = end + 2;
    std::string_view name;
    if (block.starts_with("event: ")) {
      const size_t line = block.find('\n');
      Require(line != std::string_view::npos);
      name = block.substr(7, line - 7);
      block.remove_prefix(line + 1);
    }
    Require(block.starts_with("data: ") && block.find('\n') == std::string_view::npos);
    block.remove_prefix(6);
    if (block == "[DONE]") {
      *done = true;
      continue;
    }
    events.push_back(Json::parse(block, nullptr, /*allow_exceptions=*/false));
    Require(events.back().is_object());
    Require(name.empty() || events.back()["type"] == std::string(name));
  }
  return events;
}

void CheckStream(size_t route, const std::string& body) {
  bool done = false;
  const std::vector<Json> events = Events(body, &done);
  const bool failed = !events.empty() && (events.back().contains("error") && !events.back()["error"].is_null());
  Require(!events.empty());
  if (route < 2) {  // chat, completions
    Require(done || failed);
    for (const Json& e : events) Require(failed || (e.contains("object") && e.contains("choices")));
  } else if (route == 2) {
    const std::string last = events.back()["type"].get<std::string>();
    Require(failed || last == "response.completed" || last == "response.incomplete" || last == "response.failed");
    for (size_t i = 0; i < events.size(); ++i) Require(failed || events[i]["sequence_number"] == i);
  } else {  // messages: one block after the other
    Require(events.front()["type"] == "message_start");
    int64_t open = -1, count = 0;
    for (const Json& e : events) {
      const std::string type = e["type"].get<std::string>();
      if (type == "content_block_start") {
        Require(open < 0 && e["index"] == count);
        open = count++;
      }
      if (type == "content_block_delta") Require(open >= 0 && e["index"] == open);
      if (type == "content_block_stop") Require(open >= 0 && e["index"] == std::exchange(open, -1));
    }
    Require(failed || (open < 0 && events.back()["type"] == "message_stop"));
  }
}

// Tool calls of a complete chat reply have JSON arguments.
void CheckChat(const Json& reply) {
  for (const Json& choice : reply["choices"]) {
    const Json& message = choice["message"];
    if (!message.contains("tool_calls") || choice["finish_reason"] == "length") continue;
    for (const Json& call : message["tool_calls"])
      Require(Json::accept(call["function"]["arguments"].get<std::string>()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World& world = *new World;
  if (size == 0) return 0;
  const size_t number = data[0] % std::size(kRoutes);
  const RouteEntry& route = kRoutes[number];
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t split = rest.find('\xFF');
  const std::string body(rest.substr(0, split));
  world.engine.SetText(split == std::string_view::npos ? std::string_view() : rest.substr(split + 1));

  const auto exchange = std::make_shared<Collector>(route.path, body);
  try {
    route.serve(world.api, exchange);
  } catch (const ApiError& error) {
    Require(error.status >= 400 && error.status < 600 && *error.what() != '\0');
    RespondError(*exchange, route.form, error);
  }
  exchange->Wait();
  while (!world.scheduler.idle()) std::this_thread::yield();
  if (exchange->streaming()) {
    Require(exchange->status() == 200);
    CheckStream(number, exchange->body());
    return 0;
  }
  const Json reply = Json::parse(exchange->body(), nullptr, /*allow_exceptions=*/false);
  Require(reply.is_object());
  if (exchange->status() != 200) {
    Require(reply.contains("error") && reply["error"]["message"].is_string());
  } else if (number == 0) {
    CheckChat(reply);
  }
  return 0;
}
