// The tolerant parser. Prose is read here, blocks of calls by CallReader. Decisions depend on the bytes alone, never on
// how the input was split.
#include "dsv4/output_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "text/call_reader.h"
#include "text/dsml.h"
#include "text/format.h"

namespace dsv4 {

namespace {

using namespace format;

enum class Tag : uint8_t { kNone, kEos, kThink, kEndThink, kCalls };

enum class State : uint8_t { kReasoning, kContent, kCalls, kDone };

Match MatchLiteral(std::string_view text, std::string_view literal) {
  if (text.starts_with(literal)) return Match::kYes;
  return literal.starts_with(text) ? Match::kMaybe : Match::kNo;
}

// Follows the lines of a text: whether it is inside a code fence, which lines that begin with "```" open and close, and
// whether a line outside of it began with a tag of calls.
class Lines {
 public:
  void Add(std::string_view text) {
    for (const char c : text) Add(c);
  }
  bool in_fence() const { return in_fence_; }
  bool tag_seen() const { return tag_seen_; }

 private:
  void Add(char c) {
    if (c == '\n') {
      begin_.clear();
      in_begin_ = true;
    } else if (in_begin_ && (c != ' ' || !begin_.empty())) {
      begin_ += c;
      std::string_view tag = begin_;
      if (tag.size() > 1 && tag[0] == '<') tag.remove_prefix(tag[1] == '/' ? 2 : 1);
      if (begin_ == "```") in_fence_ = !in_fence_;
      if (begin_[0] == '<' && tag == kDsml) tag_seen_ = tag_seen_ || !in_fence_;
      in_begin_ = begin_ == "<" || std::string_view("```").starts_with(begin_) ||
                  (begin_[0] == '<' && kDsml.starts_with(tag));
    }
  }

  bool in_fence_ = false, tag_seen_ = false;
  bool in_begin_ = true;  // the line may still be one of these
  std::string begin_;     // of the line, without spaces
};

}  // namespace

class OutputParser::Impl {
 public:
  explicit Impl(OutputParserOptions options)
      : options_(std::move(options)), state_(options_.thinking ? State::kReasoning : State::kContent) {}

  std::vector<OutputDelta> Push(std::string_view bytes) {
    if (state_ == State::kDone) return {};
    held_ += bytes;
    Read();
    return std::exchange(deltas_, {});
  }

  std::vector<OutputDelta> EndReasoning() {
    if (state_ == State::kCalls && prose_ == State::kReasoning) {
      GiveUpCalls();
      Read();
    }
    if (state_ == State::kReasoning) {
      TakeProse(std::exchange(held_, ""));
      TakeTag(Tag::kEndThink);
    }
    return std::exchange(deltas_, {});
  }

  std::vector<OutputDelta> Finish() {
    if (state_ != State::kDone) EndText();
    return std::exchange(deltas_, {});
  }

  void StreamCalls() { streams_calls_ = true; }
  bool done() const { return state_ == State::kDone; }
  bool in_content() const { return state_ == State::kContent; }
  bool in_calls() const { return state_ == State::kCalls; }
  bool at_call() const {
    return (state_ == State::kContent || state_ == State::kReasoning) && CallsCount() && !lines_.in_fence() &&
           held_ == "<" && (at_start_ || newlines_ >= 2);
  }
  const ParsedMessage& message() const { return message_; }

 private:
  struct Scan {
    size_t text_length;   // bytes that belong to no tag
    Tag tag;              // the tag after them; kNone: none yet
    size_t tag_size = 0;  // kCalls: up to the first call
  };

  // Whether a block may begin. A damaged tag shows that the calls of this reply are not to be trusted.
  bool CallsCount() const { return options_.calls && !calls_off_ && !lines_.tag_seen(); }

  void Read() {
    while (!held_.empty() && state_ != State::kDone && (state_ == State::kCalls ? ReadCalls() : ReadProse())) {
    }
    if (state_ == State::kDone) held_.clear();
  }

  // Takes text up to the next tag, and the tag. False: the rest may become a tag.
  bool ReadProse() {
    const bool calls_count = CallsCount();
    const Scan scan = ScanTags(held_);
    TakeProse(std::string_view(held_).substr(0, scan.text_length));
    held_.erase(0, scan.text_length);
    if (calls_count && !CallsCount()) return true;  // the tag may be text now
    if (scan.tag == Tag::kNone) return false;
    if (scan.tag == Tag::kCalls) {
      BeginCalls(scan.tag_size);
    } else {
      held_.erase(0, scan.tag_size);
      TakeTag(scan.tag);
    }
    return true;
  }

  Scan ScanTags(std::string_view text) const {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '<' && text[i] != kDsml.front()) continue;  // every tag begins with one of the two
      Scan scan{i, Tag::kNone};
      const Match m = MatchTag(text.substr(i), text.find_first_not_of('\n') == i, &scan);
      if (m == Match::kYes) return scan;
      if (m == Match::kMaybe) return {i, Tag::kNone};
    }
    return {text.size(), Tag::kNone};
  }

  // `first`: only newlines of this piece come before `text`.
  Match MatchTag(std::string_view text, bool first, Scan* scan) const {
    Match best = Match::kNo;
    const auto try_tag = [&](std::string_view literal, Tag tag) {
      const Match m = MatchLiteral(text, literal);
      if (m == Match::kYes) scan->tag = tag, scan->tag_size = literal.size();
      if (m != Match::kNo) best = m;
      return m == Match::kYes;
    };
    const bool at_start = at_start_ && first, reasoning = state_ == State::kReasoning;
    if (options_.eos_text && try_tag(kEos, Tag::kEos)) return best;
    if (reasoning && at_start && !think_taken_ && try_tag(kThink, Tag::kThink)) return best;
    if ((reasoning ? options_.think_text : at_start) && try_tag(kEndThink, Tag::kEndThink)) return best;
    if (!CallsCount()) return best;
    const Match m = ReadBlockBegin(text, &scan->tag_size);
    if (m == Match::kYes) scan->tag = Tag::kCalls;
    return m == Match::kNo ? best : m;
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
    lines_.Add(text);
    const bool reasoning = state_ == State::kReasoning;
    Emit(reasoning ? OutputDelta::Kind::kReasoning : OutputDelta::Kind::kContent, text);
    (reasoning ? message_.reasoning_content : message_.content) += text;
  }

  void TakeTag(Tag tag) {
    if (tag == Tag::kEos) {
      held_.clear();
      return EndText();
    }
    if (tag == Tag::kThink) think_taken_ = true;
    if (tag != Tag::kEndThink || state_ == State::kContent) return;
    newlines_ = 0;
    state_ = State::kContent;
    at_start_ = true;
    calls_off_ = false;
    lines_ = {};
  }

  void BeginCalls(size_t call) {
    prose_ = std::exchange(state_, State::kCalls);
    reader_.emplace(CallReaderOptions{.stream = streams_calls_,
                                      .one_call = options_.one_call,
                                      .in_fence = lines_.in_fence(),
                                      .tools = options_.tools.get()},
                    call);
  }

  // Gives the reader the text up to EOS. False: more is needed, or the output has ended.
  bool ReadCalls() {
    size_t size = held_.size();
    Match eos = Match::kNo;
    for (size_t i = options_.eos_text ? held_.find('<') : held_.npos; i < held_.size(); i = held_.find('<', i + 1)) {
      eos = MatchLiteral(std::string_view(held_).substr(i), kEos);
      if (eos == Match::kNo) continue;
      size = i;
      break;
    }
    const CallReader::State read = reader_->Push(std::string_view(held_).substr(0, size));
    held_.erase(0, size);
    if (read == CallReader::State::kText) {
      GiveUpCalls();
      return true;
    }
    if (streams_calls_ || read == CallReader::State::kCalls) TakeCalls();
    if (read == CallReader::State::kCalls) {
      End();
    } else if (eos == Match::kYes) {
      held_.clear();
      EndText();
    }
    return false;
  }

  // The block is malformed: what was read of it is read again as text. A part of it that is out stays incomplete.
  void GiveUpCalls() {
    if (streams_calls_) TakeCalls();
    if (reader_->call_open() || !message_.tool_calls.empty()) {
      message_.cut_off = reader_->call_open();
      return End();
    }
    state_ = prose_;
    calls_off_ = true;
    held_.insert(0, reader_->raw());
    reader_.reset();
  }

  // Ends the text here, with whatever is open.
  void EndText() {
    while (state_ == State::kCalls) {
      reader_->Push(std::exchange(held_, ""));
      if (reader_->Finish() == CallReader::State::kCalls) {
        TakeCalls();
        return End();
      }
      message_.cut_off = true;
      GiveUpCalls();
      Read();
    }
    if (state_ == State::kDone) return;
    TakeProse(std::exchange(held_, ""));
    FlushNewlines();
    End();
  }

  void End() {
    newlines_ = 0;
    state_ = State::kDone;
  }

  void TakeCalls() {
    using Kind = OutputDelta::Kind;
    for (const OutputDelta& delta : reader_->TakeDeltas()) {
      if (delta.kind == Kind::kToolCallBegin) {
        message_.tool_calls.push_back({.id = "", .name = delta.text, .arguments = ""});
      } else if (delta.kind == Kind::kToolCallArguments) {
        message_.tool_calls.back().arguments += delta.text;
      }
      Emit(delta.kind, delta.text);
    }
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

  const OutputParserOptions options_;
  State state_;
  State prose_ = State::kContent;  // the state before the calls
  std::string held_;               // the beginning of a possible tag
  bool at_start_ = true;           // only newlines so far, in the reasoning or content
  bool think_taken_ = false;       // "<think>" at the start of the reasoning
  size_t newlines_ = 0;            // newlines held back
  Lines lines_;
  std::optional<CallReader> reader_;
  bool calls_off_ = false;  // a block was malformed: later calls are text
  bool streams_calls_ = false;
  std::vector<OutputDelta> deltas_;
  ParsedMessage message_;
};

OutputParser::OutputParser(bool thinking) : OutputParser(OutputParserOptions{.thinking = thinking}) {}
OutputParser::OutputParser(OutputParserOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

std::vector<OutputDelta> OutputParser::Push(std::string_view bytes) { return impl_->Push(bytes); }
std::vector<OutputDelta> OutputParser::EndReasoning() { return impl_->EndReasoning(); }
std::vector<OutputDelta> OutputParser::Finish() { return impl_->Finish(); }
void OutputParser::StreamCalls() { impl_->StreamCalls(); }
bool OutputParser::done() const { return impl_->done(); }
bool OutputParser::in_content() const { return impl_->in_content(); }
bool OutputParser::in_calls() const { return impl_->in_calls(); }
bool OutputParser::at_call() const { return impl_->at_call(); }
const ParsedMessage& OutputParser::message() const { return impl_->message(); }

ParsedMessage ParseOutput(std::string_view text, bool thinking) {
  OutputParser parser(thinking);
  parser.Push(text);
  parser.Finish();
  return parser.message();
}

}  // namespace dsv4
