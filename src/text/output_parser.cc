// The tolerant parser. In every state only a few tags have a meaning; bytes up to the next of them are text of that
// state. Decisions depend on the bytes alone, never on how the input was split.
#include "dsv4/output_parser.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "text/format.h"
#include "text/json_value.h"

namespace dsv4 {

namespace {

using namespace format;

enum class Tag : uint8_t {
  kEos,
  kThink,
  kEndThink,
  kCallsBegin,
  kCallsEnd,
  kInvokeBegin,
  kInvokeEnd,
  kParameterBegin,
  kCloser,     // any "</｜DSML｜": ends a value
  kQuote,      // ends the name of a call
  kStringKey,  // ends a key; the value is a string
  kJsonKey,    // ends a key; the value is JSON
};

struct TagText {
  std::string_view text;
  Tag tag;
};

// No text is a prefix of another text of the same table.
constexpr std::array<TagText, 6> kReasoningTags = {{{kEos, Tag::kEos},
                                                    {kEndThink, Tag::kEndThink},
                                                    {kCallsBegin, Tag::kCallsBegin},
                                                    {kSpacedCallsBegin, Tag::kCallsBegin},
                                                    {kInvokeBegin, Tag::kInvokeBegin},
                                                    {kSpacedInvokeBegin, Tag::kInvokeBegin}}};
constexpr std::array<TagText, 7> kReasoningStartTags = {{{kThink, Tag::kThink},
                                                         {kEos, Tag::kEos},
                                                         {kEndThink, Tag::kEndThink},
                                                         {kCallsBegin, Tag::kCallsBegin},
                                                         {kSpacedCallsBegin, Tag::kCallsBegin},
                                                         {kInvokeBegin, Tag::kInvokeBegin},
                                                         {kSpacedInvokeBegin, Tag::kInvokeBegin}}};
constexpr std::array<TagText, 9> kBlockTags = {{{kEos, Tag::kEos},
                                                {kInvokeBegin, Tag::kInvokeBegin},
                                                {kSpacedInvokeBegin, Tag::kInvokeBegin},
                                                {kParameterBegin, Tag::kParameterBegin},
                                                {kSpacedParameterBegin, Tag::kParameterBegin},
                                                {kInvokeEnd, Tag::kInvokeEnd},
                                                {kSpacedInvokeEnd, Tag::kInvokeEnd},
                                                {kCallsEnd, Tag::kCallsEnd},
                                                {kSpacedCallsEnd, Tag::kCallsEnd}}};
constexpr std::array<TagText, 2> kNameTags = {{{kEos, Tag::kEos}, {"\"", Tag::kQuote}}};
// The rest of its tag ends a key, so a key may contain quotes.
constexpr std::array<TagText, 4> kKeyTags = {{{kEos, Tag::kEos},
                                              {"\" string=\"true\">", Tag::kStringKey},
                                              {"\" string=\"false\">", Tag::kJsonKey},
                                              {"\">", Tag::kJsonKey}}};
constexpr std::array<TagText, 6> kValueTags = {{{kEos, Tag::kEos},
                                                {"</｜DSML｜", Tag::kCloser},
                                                {kInvokeBegin, Tag::kInvokeBegin},
                                                {kSpacedInvokeBegin, Tag::kInvokeBegin},
                                                {kParameterBegin, Tag::kParameterBegin},
                                                {kSpacedParameterBegin, Tag::kParameterBegin}}};

enum class State : uint8_t {
  kReasoning,
  kContent,
  kBlock,  // in the tool calls, outside of names, keys and values
  kName,   // of a call
  kKey,    // of a parameter
  kStringValue,
  kJsonValue,
  kDone,
};

}  // namespace

class OutputParser::Impl {
 public:
  explicit Impl(bool thinking) : state_(thinking ? State::kReasoning : State::kContent) {}

  std::vector<OutputDelta> Push(std::string_view bytes) {
    if (state_ == State::kDone) return {};
    held_ += bytes;
    size_t at = 0;
    while (at < held_.size() && state_ != State::kDone) {
      const Scan scan = ScanTags(std::string_view(held_).substr(at));
      TakeText(std::string_view(held_).substr(at, scan.text_length));
      at += scan.text_length;
      if (scan.tag == nullptr) break;  // the rest may become a tag
      // The closer of a value is read again, as a tag of the block.
      if (scan.tag->tag != Tag::kCloser) at += scan.tag->text.size();
      TakeTag(scan.tag->tag);
    }
    held_.erase(0, state_ == State::kDone ? held_.size() : at);
    return std::exchange(deltas_, {});
  }

  std::vector<OutputDelta> Finish() {
    if (state_ == State::kDone) return {};
    TakeText(held_);
    held_.clear();
    EndText();
    return std::exchange(deltas_, {});
  }

  bool done() const { return state_ == State::kDone; }
  bool in_content() const { return state_ == State::kContent; }
  const ParsedMessage& message() const { return message_; }

 private:
  struct Scan {
    size_t text_length;  // bytes that belong to no tag
    const TagText* tag;  // the tag after them; null: none yet
  };

  std::span<const TagText> Tags() const {
    switch (state_) {
      case State::kReasoning:
        if (at_start_ && !think_taken_) return kReasoningStartTags;
        return kReasoningTags;
      case State::kContent:
        return kReasoningTags;
      case State::kBlock:
        return kBlockTags;
      case State::kName:
        return kNameTags;
      case State::kKey:
        return kKeyTags;
      case State::kStringValue:
      case State::kJsonValue:
        return kValueTags;
      case State::kDone:
        break;
    }
    return {};
  }

  Scan ScanTags(std::string_view text) const {
    const std::span<const TagText> tags = Tags();
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '<' && text[i] != '"') continue;  // every tag begins with one of the two
      const std::string_view rest = text.substr(i);
      for (const TagText& tag : tags) {
        if (tag.tag == Tag::kThink && text.find_first_not_of('\n') < i) continue;  // not at the start
        if (rest.starts_with(tag.text)) return {i, &tag};
        if (tag.text.starts_with(rest)) return {i, nullptr};
      }
    }
    return {text.size(), nullptr};
  }

  void TakeText(std::string_view text) {
    if (text.empty()) return;
    switch (state_) {
      case State::kReasoning:
      case State::kContent:
        TakeProse(text);
        return;
      case State::kName:
        name_ += text;
        return;
      case State::kKey:
        key_ += text;
        return;
      case State::kStringValue:
        TakeString(text);
        return;
      case State::kJsonValue:
        json_ += text;
        return;
      case State::kBlock:
      case State::kDone:
        return;
    }
  }

  // Drops newlines at the start. Holds other newlines back until more text follows.
  void TakeProse(std::string_view text) {
    if (at_start_) text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    if (text.empty()) return;
    at_start_ = false;
    const size_t last = text.find_last_not_of('\n');
    const size_t solid = last == text.npos ? 0 : last + 1;
    if (solid > 0) {
      FlushNewlines();
      EmitProse(text.substr(0, solid));
    }
    newlines_ += text.size() - solid;
  }

  void FlushNewlines() {
    if (newlines_ > 0) EmitProse(std::string(std::exchange(newlines_, 0), '\n'));
  }

  void EmitProse(std::string_view text) {
    if (state_ == State::kReasoning) {
      Emit(OutputDelta::Kind::kReasoning, text);
      message_.reasoning_content += text;
    } else {
      Emit(OutputDelta::Kind::kContent, text);
      message_.content += text;
    }
  }

  void TakeTag(Tag tag) {
    if (tag == Tag::kEos) {
      EndText();
      return;
    }
    if (state_ == State::kReasoning || state_ == State::kContent) {
      TakeProseTag(tag);
      return;
    }
    switch (tag) {
      case Tag::kQuote:
        BeginCall();
        return;
      case Tag::kStringKey:
        BeginValue();
        EmitArguments("\"");
        state_ = State::kStringValue;
        return;
      case Tag::kJsonKey:
        BeginValue();
        state_ = State::kJsonValue;
        return;
      default:
        break;
    }
    EndValue();
    state_ = State::kBlock;
    if (tag == Tag::kParameterBegin) {
      if (call_open_ || call_skipped_) state_ = State::kKey;
      key_.clear();
    } else if (tag == Tag::kInvokeBegin) {
      EndCall();
      BeginName();
    } else if (tag == Tag::kInvokeEnd) {
      EndCall();
    } else if (tag == Tag::kCallsEnd) {
      End();
    }
  }

  void TakeProseTag(Tag tag) {
    if (tag == Tag::kThink) {
      think_taken_ = true;
    } else if (tag == Tag::kEndThink) {
      if (state_ == State::kContent) return;  // an unmatched </think>
      newlines_ = 0;
      state_ = State::kContent;
      at_start_ = true;
    } else {
      newlines_ = 0;
      state_ = State::kBlock;
      if (tag == Tag::kInvokeBegin) BeginName();
    }
  }

  void BeginName() {
    state_ = State::kName;
    name_.clear();
  }

  void BeginCall() {
    state_ = State::kBlock;
    call_skipped_ = name_.empty();
    if (call_skipped_) return;
    call_open_ = true;
    no_parameters_ = true;
    message_.tool_calls.push_back({.id = "", .name = name_, .arguments = ""});
    Emit(OutputDelta::Kind::kToolCallBegin, name_);
  }

  void BeginValue() {
    std::string text = no_parameters_ ? "{\"" : ", \"";
    AppendJsonEscaped(key_, &text);
    EmitArguments(text + "\": ");
    no_parameters_ = false;
    json_.clear();
  }

  void TakeString(std::string_view text) {
    std::string escaped;
    AppendJsonEscaped(text, &escaped);
    EmitArguments(escaped);
  }

  void EndValue() {
    if (state_ == State::kStringValue) {
      EmitArguments("\"");
    } else if (state_ == State::kJsonValue) {
      if (ParseJsonValue(json_, {.python_constants = false}).ok()) {
        EmitArguments(json_);
      } else {
        EmitArguments("\"");
        TakeString(json_);
        EmitArguments("\"");
      }
    }
  }

  void EndCall() {
    if (call_open_) {
      EmitArguments(no_parameters_ ? "{}" : "}");
      Emit(OutputDelta::Kind::kToolCallEnd, "");
    }
    call_open_ = call_skipped_ = false;
  }

  // Ends the text here, with whatever is open.
  void EndText() {
    FlushNewlines();
    message_.cut_off = call_open_ || state_ == State::kName;
    End();
  }

  void End() {
    EndValue();
    EndCall();
    state_ = State::kDone;
  }

  void EmitArguments(std::string_view text) {
    if (!call_open_) return;  // the call has no name
    Emit(OutputDelta::Kind::kToolCallArguments, text);
    message_.tool_calls.back().arguments += text;
  }

  void Emit(OutputDelta::Kind kind, std::string_view text) {
    using Kind = OutputDelta::Kind;
    const bool joins = kind == Kind::kReasoning || kind == Kind::kContent || kind == Kind::kToolCallArguments;
    if (joins && !deltas_.empty() && deltas_.back().kind == kind) {
      deltas_.back().text += text;
      return;
    }
    const bool of_call = kind != Kind::kReasoning && kind != Kind::kContent;
    deltas_.push_back({kind, of_call ? static_cast<int>(message_.tool_calls.size()) - 1 : -1, std::string(text)});
  }

  State state_;
  std::string held_;          // the beginning of a possible tag
  bool at_start_ = true;      // only newlines so far, in the reasoning or content
  bool think_taken_ = false;  // "<think>" at the start of the reasoning
  size_t newlines_ = 0;       // newlines held back
  std::string name_, key_, json_;
  bool call_open_ = false;
  bool call_skipped_ = false;  // inside a call without a name
  bool no_parameters_ = true;
  std::vector<OutputDelta> deltas_;
  ParsedMessage message_;
};

OutputParser::OutputParser(bool thinking) : impl_(std::make_unique<Impl>(thinking)) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

std::vector<OutputDelta> OutputParser::Push(std::string_view bytes) { return impl_->Push(bytes); }
std::vector<OutputDelta> OutputParser::Finish() { return impl_->Finish(); }
bool OutputParser::done() const { return impl_->done(); }
bool OutputParser::in_content() const { return impl_->in_content(); }
const ParsedMessage& OutputParser::message() const { return impl_->message(); }

ParsedMessage ParseOutput(std::string_view text, bool thinking) {
  OutputParser parser(thinking);
  parser.Push(text);
  parser.Finish();
  return parser.message();
}

}  // namespace dsv4
