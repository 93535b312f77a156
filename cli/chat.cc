// dsv4 chat: a conversation in the terminal, or line by line through a pipe.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsv4/chat.h"
#include "dsv4/engine.h"
#include "dsv4/output_parser.h"
#include "dsv4/sampling.h"
#include "dsv4/session.h"
#include "dsv4/state_folder.h"
#include "dsv4/stop_strings.h"
#include "dsv4/tokenizer.h"
#include "errors.h"
#include "format.h"
#include "io.h"
#include "line_editor.h"
#include "model.h"
#include "options.h"
#include "progress.h"
#include "suggestion.h"

namespace dsv4::cli {

namespace {

struct CommandHelp {
  std::string_view usage, help;
};
constexpr CommandHelp kCommands[] = {
    {"/think [on|off]", "turn reasoning on or off; without a word, switch it"},
    {"/system TEXT", "set the system message and start a new conversation"},
    {"/tool TEXT", "give the result of the model's tool call"},
    {"/save FILE", "write the conversation to a file, as JSON in OpenAI form"},
    {"/load FILE", "continue the conversation in a file"},
    {"/reset", "start a new conversation"},
    {"/help [WORD]", "list the commands, or only commands whose name or description has the word"},
    {"/quit", "end the chat (also Ctrl-D)"},
};
constexpr std::string_view kHelp = "End a line with \\ to continue the message on the next line. Ctrl-C stops a reply.";
constexpr std::string_view kEditorHelp =
    "Pasted lines are one message. Alt+Enter begins a new line. Arrow up recalls earlier lines, also of earlier chats. "
    "Ctrl-C clears the line; pressed twice on an empty line, it ends the chat.";
constexpr std::string_view kPlainHelp = "At the prompt Ctrl-C ends the chat.";

// The lines of /help for a terminal of `columns`; `word`: only the commands that have it.
std::string Help(std::string_view word, bool with_editor, size_t columns) {
  constexpr size_t kIndent = 19;
  std::string out;
  for (const CommandHelp& command : kCommands) {
    const std::string line = std::string(command.usage) + " " + std::string(command.help);
    if (line.find(word) == std::string::npos) continue;
    out += "  " + std::string(command.usage) + std::string(kIndent - 2 - command.usage.size(), ' ') +
           Wrapped(command.help, columns, kIndent) + "\n";
  }
  if (out.empty()) return "no command has the word " + Printable(word) + " (/help lists them)\n";
  if (!word.empty()) return out;
  out += Wrapped(kHelp, columns, 0) + "\n";
  return out + Wrapped(with_editor ? kEditorHelp : kPlainHelp, columns, 0) + "\n";
}

// Prints a reply while it is parsed. Reasoning is dim on a terminal and between <think> tags in a pipe; tool calls are
// text.
class ReplyPrinter {
 public:
  explicit ReplyPrinter(bool terminal) : terminal_(terminal) {}

  void Show(const OutputDelta& delta) {
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        if (!in_reasoning_) terminal_ ? PrintRaw("\033[2m") : Emit("<think>\n");
        in_reasoning_ = true;
        Emit(delta.text);
        break;
      case OutputDelta::Kind::kContent:
        EndReasoning();
        Emit(delta.text);
        break;
      case OutputDelta::Kind::kToolCallBegin:
        EndReasoning();
        EndLine();
        Emit("[tool call] " + delta.text + " ", /*wrap=*/false);
        break;
      case OutputDelta::Kind::kToolCallArguments:
        Emit(delta.text, /*wrap=*/false);
        break;
      case OutputDelta::Kind::kToolCallEnd:
        EndLine();
        break;
    }
  }

  void Finish() {
    EndReasoning();
    EndLine();
  }

 private:
  // On a terminal lines break between words, except in the arguments of calls.
  void Emit(std::string_view text, bool wrap = true) {
    if (text.empty()) return;
    at_line_start_ = text.back() == '\n';
    if (!terminal_ || !wrap) return Print(text);
    PrintRaw(wrap_.Push(ForTerminal(text), StdoutColumns()));
  }
  void EmitHeld() {
    if (terminal_) PrintRaw(wrap_.Finish(StdoutColumns()));
  }
  void EndLine() {
    EmitHeld();
    if (!at_line_start_) Emit("\n");
  }
  void EndReasoning() {
    if (!in_reasoning_) return;
    in_reasoning_ = false;
    EmitHeld();
    if (terminal_) PrintRaw("\033[0m");
    EndLine();
    if (!terminal_) Emit("</think>\n");
  }

  bool terminal_;
  WordWrap wrap_;
  bool in_reasoning_ = false;
  bool at_line_start_ = true;
};

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

Message MakeMessage(Role role, const std::string& content) {
  Message message;
  message.role = role;
  message.content = content;
  return message;
}

// Returns the JSON text of each tool's "function" object in a list of tools in OpenAI form.
std::vector<std::string> ReadTools(const std::string& path) {
  if (path.empty()) return {};
  using Json = nlohmann::ordered_json;
  const Json list = Json::parse(ReadInput(path), nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) throw RunError(path + " is not a JSON list of tools; see 'dsv4 chat --help' for --tools");
  const Json request = {{"messages", Json::array({{{"role", "user"}, {"content", ""}}})}, {"tools", list}};
  auto parsed = ParseChatRequest(request.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!parsed.ok()) throw RunError(path + ": " + parsed.status().message());
  return std::move(parsed->tools);
}

class Chat {
 public:
  Chat(const ChatOptions& options, const std::string& model_dir)
      : options_(options),
        dialect_(options.dialect ? *options.dialect : DetectDialect(model_dir)),
        interactive_(StdinIsTerminal()),
        tokenizer_(Must(Tokenizer::Load(model_dir))) {
    request_.thinking = options.thinking;
    request_.effort = options.effort;
    request_.tools = ReadTools(options.tools_file);
    SetSystem(options.system);
    // Fails if the dialect does not have the effort.
    MustBeUsable(RenderServedPrompt(WithUser("x"), dialect_).status());
    EngineOptions engine_options = options.model;
    engine_options.model_dir = model_dir;
    ProgressLine progress;
    engine_ = LoadEngine(engine_options, progress);
    sampling_ = SamplingOf(options.sampling, options.given_sampling, model_dir);
    MustBeUsable(ValidateSampling(sampling_, engine_->info().vocab_size));
    stop_ids_ = StopIds(options.stops, engine_->info(), /*with_eos=*/true);
    session_ = Must(engine_->NewSession());
    if (interactive_) editor_ = LineEditor::Create(options.keep_history ? HistoryFile() : "");
  }

  int Run() {
    if (interactive_) PrintError("/help lists the commands, Ctrl-D ends the chat\n");
    std::string text;
    while (ReadMessage(&text)) {
      if (text.empty()) continue;
      if (editor_ != nullptr) editor_->Remember(text);
      // Pasted text of several lines may begin with a slash. A command is one line.
      if (text.front() == '/' && text.find('\n') == std::string::npos) {
        if (!Command(text)) return ExitStatus();
        continue;
      }
      request_.messages.push_back(MakeMessage(Role::kUser, text));
      Reply();
    }
    if (interactive_) PrintError("\n");
    return ExitStatus();
  }

 private:
  // Tells a script that the disk was full.
  int ExitStatus() const { return is_unsaved_ && !interactive_ ? kExitFailed : kExitDone; }

  static std::string HistoryFile() {
    const std::string folder = StateFolder();
    return folder.empty() ? "" : folder + "/chat-history";
  }

  // Reads a message of one or more lines. Returns false at the end of the input.
  bool ReadMessage(std::string* text) {
    text->clear();
    while (true) {
      std::string line;
      const LineEditor::Read read = ReadLine(text->empty() ? "> " : ". ", &line);
      if (read == LineEditor::Read::kEnd) return !text->empty();
      if (read == LineEditor::Read::kCleared) {
        NoteCleared(line.empty() && text->empty());
        text->clear();
        continue;
      }
      num_empty_clears_ = 0;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      const bool continues = !line.empty() && line.back() == '\\';
      if (continues) line.back() = '\n';
      *text += line;
      if (!continues) return true;
    }
  }

  LineEditor::Read ReadLine(const std::string& prompt, std::string* line) {
    if (editor_ != nullptr) return editor_->Next(prompt, line);
    if (interactive_) PrintError(prompt);
    return reader_.Next(line) ? LineEditor::Read::kLine : LineEditor::Read::kEnd;
  }

  // Ends the chat at the second Ctrl-C on an empty line. The first may have been meant for a reply that has just ended.
  void NoteCleared(bool was_empty) {
    num_empty_clears_ = was_empty ? num_empty_clears_ + 1 : 0;
    if (num_empty_clears_ == 1) PrintError("(Ctrl-C again or Ctrl-D ends the chat)\n");
    if (num_empty_clears_ == 2) throw QuietExit{kExitInterrupted};
  }

  // Runs a line that starts with a slash. Returns false to end the chat.
  bool Command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/quit" || name == "/exit" || name == "/bye") return false;
    if (name == "/help" || name == "/?") {
      PrintError(Help(Trimmed(rest), editor_ != nullptr, interactive_ ? StderrColumns() : 80));
    } else if (name == "/think") {
      Think(Trimmed(rest));
    } else if (name == "/save") {
      Save(Trimmed(rest));
    } else if (name == "/load") {
      Load(Trimmed(rest));
    } else if (name == "/reset" || name == "/clear") {
      SetSystem(system_);
      PrintError("new conversation\n");
    } else if (name == "/system") {
      SetSystem(rest);
      PrintError("new conversation\n");
    } else if (name == "/tool") {
      ToolResult(rest);
    } else {
      PrintError("unknown command " + Printable(name) +
                 Suggestion(name, {"/think", "/save", "/load", "/reset", "/system", "/tool", "/help", "/quit"}) +
                 " (/help lists them)\n");
    }
    return true;
  }

  void Think(const std::string& word) {
    if (!word.empty() && word != "on" && word != "off") return PrintError("/think accepts on, off, or no word\n");
    request_.thinking = word.empty() ? !request_.thinking : word == "on";
    PrintError(request_.thinking ? "reasoning is on\n" : "reasoning is off\n");
  }

  // Overwrites only files with a conversation.
  void Save(const std::string& path) {
    if (path.empty()) return PrintError("/save needs a file name: /save FILE\n");
    try {
      if (std::filesystem::exists(path) && !ReadConversation(path).ok()) {
        return PrintError(Printable(path) + " exists and is not a conversation; choose another name\n");
      }
      CheckWritable(path);
      is_unsaved_ = true;
      WriteOutput(path, ChatRequestToJson(request_));
      is_unsaved_ = false;
      PrintError("saved to " + Printable(path) + "\n");
    } catch (const std::exception& error) {
      PrintError(Printable(error.what()) + "\n");
    }
  }

  static Result<ChatRequest> ReadConversation(const std::string& path) {
    if (!std::filesystem::is_regular_file(path)) return NotFound(path + " is not a file");
    return ParseChatRequest(ReadInput(path));
  }

  // Takes messages and tools from the file. Replies if its last message waits for a reply.
  void Load(const std::string& path) {
    if (path.empty()) return PrintError("/load needs a file name: /load FILE\n");
    try {
      Result<ChatRequest> loaded = ReadConversation(path);
      if (loaded.ok()) {
        loaded->thinking = request_.thinking;
        loaded->effort = request_.effort;
        if (loaded->tools.empty()) loaded->tools = request_.tools;
      }
      const Status status = loaded.ok() ? RenderServedPrompt(*loaded, dialect_).status() : loaded.status();
      if (!status.ok()) return PrintError("cannot load " + Printable(path + ": " + status.message()) + "\n");
      request_ = *std::move(loaded);
    } catch (const std::exception& error) {
      return PrintError(Printable(error.what()) + "\n");
    }
    const bool has_system = !request_.messages.empty() && request_.messages.front().role == Role::kSystem;
    system_ = has_system ? request_.messages.front().content : "";
    pending_calls_ = request_.messages.empty() ? 0 : request_.messages.back().tool_calls.size();
    PrintError("loaded " + std::to_string(request_.messages.size()) + " messages\n");
    if (request_.messages.empty()) return;
    const Role last = request_.messages.back().role;
    if (last == Role::kUser || last == Role::kTool) Reply();
  }

  void SetSystem(const std::string& text) {
    system_ = text;
    request_.messages.clear();
    pending_calls_ = 0;
    if (!text.empty()) request_.messages.push_back(MakeMessage(Role::kSystem, text));
  }

  ChatRequest WithUser(const std::string& text) const {
    ChatRequest request = request_;
    request.messages.push_back(MakeMessage(Role::kUser, text));
    return request;
  }

  // Replies when every tool call of the last message has a result.
  void ToolResult(const std::string& text) {
    if (pending_calls_ == 0) {
      PrintError("the model has not called a tool\n");
      return;
    }
    request_.messages.push_back(MakeMessage(Role::kTool, text));
    if (--pending_calls_ == 0) Reply();
  }

  // Processes the prompt. Processes only the new tokens if the session's tokens are a prefix of it. Returns false after
  // Ctrl-C.
  bool ReadPrompt(std::span<const TokenId> prompt, std::vector<float>* logits) {
    const std::vector<TokenId>& known = session_->tokens();
    const bool extends = known.size() < prompt.size() && std::equal(known.begin(), known.end(), prompt.begin());
    if (!extends) session_->Reset();
    ProgressLine progress;
    const Status status = session_->Append(prompt.subspan(session_->tokens().size()), LogitRows::kLast, logits,
                                           progress.Callback());
    progress.Clear();
    if (status.code() == StatusCode::kCancelled) return false;
    Must(status);
    return true;
  }

  void Reply() {
    const std::string text = Must(RenderServedPrompt(request_, dialect_)).text;
    const std::vector<TokenId> prompt = tokenizer_->Encode(text);
    const int64_t limit = engine_->info().max_context;
    if (static_cast<int64_t>(prompt.size()) >= limit) {
      TakeBack();
      const std::string message = "the conversation is longer than the context of " + FormatCount(limit) +
                                  " tokens; start a new one with /reset";
      if (!interactive_) throw RunError(message);
      PrintError(message + "\n");
      return;
    }
    std::vector<float> logits;
    if (!ReadPrompt(prompt, &logits)) {
      Stopped();
      TakeBack();
      return;
    }
    // Without tools the text of a call is text. The reply ends at a token, not at the text of one.
    OutputParser parser({.thinking = request_.thinking, .calls = !request_.tools.empty(), .eos_text = false});
    WriteReply(prompt, logits, parser);

    const ParsedMessage& parsed = parser.message();
    Message reply = MakeMessage(Role::kAssistant, content_);
    reply.reasoning_content = parsed.reasoning_content;
    reply.tool_calls = parsed.tool_calls;
    request_.messages.push_back(std::move(reply));
    pending_calls_ = parsed.tool_calls.size();
    if (pending_calls_ > 0 && interactive_) PrintError("(give the result with /tool RESULT)\n");
    if (Interrupted()) Stopped();
  }

  // Removes the last message, which has no reply. If it was the result of a tool call, the call waits for a result
  // again.
  void TakeBack() {
    if (request_.messages.back().role == Role::kTool) ++pending_calls_;
    request_.messages.pop_back();
  }

  // Handles Ctrl-C during a reply: at a terminal the chat continues, in a pipe it ends.
  void Stopped() {
    if (!interactive_) throw QuietExit{kExitInterrupted};
    PrintError("(stopped)\n");
    ClearInterrupt();
  }

  void WriteReply(std::span<const TokenId> prompt, std::vector<float>& logits, OutputParser& parser) {
    if (sampling_.seed && replies_ > 0) ++*sampling_.seed;  // so that replies with --seed have different draws
    ++replies_;
    const std::unique_ptr<Sampler> sampler = Must(Sampler::Create(sampling_, engine_->info().vocab_size));
    sampler->AddPrompt(prompt);
    StreamDecoder decoder(*tokenizer_);
    StopMatcher stops = Must(StopMatcher::Create(options_.stops.texts));
    ReplyPrinter printer(interactive_ && StdoutIsTerminal());
    content_.clear();
    // Stop strings apply only to the content.
    const auto show = [&](const std::vector<OutputDelta>& deltas) {
      for (OutputDelta delta : deltas) {
        if (delta.kind == OutputDelta::Kind::kContent) {
          delta.text = stops.Push(delta.text);
          content_ += delta.text;
        }
        if (!stops.stopped() || delta.kind == OutputDelta::Kind::kContent) printer.Show(delta);
      }
    };
    int64_t written = 0;
    // Accepts a drawn token. Returns false if it is the last.
    const auto accept = [&](TokenId id) {
      if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end()) return false;
      const auto text = decoder.Push(id);
      if (text.ok()) show(parser.Push(*text));  // an id that the tokenizer does not have has no text
      if (stops.stopped() || parser.done() || ++written == options_.max_tokens) return false;
      return static_cast<int64_t>(session_->tokens().size()) < engine_->info().max_context && !Interrupted();
    };
    if (!Interrupted() && options_.max_tokens != 0) {
      const TokenId first = Must(sampler->Sample(logits)).id;
      if (accept(first)) {
        const int64_t left = options_.max_tokens < 0 ? std::numeric_limits<int64_t>::max()
                                                     : options_.max_tokens - written;
        const DecodeItem item{.session = session_.get(), .sampler = sampler.get(), .first = first, .max_tokens = left};
        Must(engine_->Decode({&item, 1}, [&](size_t, const SampledToken& token) { return accept(token.id); }));
      }
    }
    show(parser.Push(decoder.Finish()));
    show(parser.Finish());
    if (!stops.stopped()) {
      const std::string rest = stops.Finish();
      content_ += rest;
      printer.Show({.kind = OutputDelta::Kind::kContent, .index = -1, .text = rest});
    }
    printer.Finish();
  }

  const ChatOptions& options_;
  ChatDialect dialect_;
  bool interactive_;
  std::unique_ptr<LineEditor> editor_;  // null: reader_ reads the lines
  LineReader reader_;
  int num_empty_clears_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Session> session_;
  SamplingParams sampling_;
  std::vector<TokenId> stop_ids_;
  ChatRequest request_;
  std::string system_;
  std::string content_;       // content of the last reply that was shown
  size_t pending_calls_ = 0;  // tool calls of the last reply that have no result yet
  int64_t replies_ = 0;
  bool is_unsaved_ = false;  // the disk did not take the last /save
};

}  // namespace

int RunChat(const ChatOptions& options) { return Chat(options, FindModelDir(options.model.model_dir)).Run(); }

}  // namespace dsv4::cli
