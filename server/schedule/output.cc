#include "server/schedule/output.h"

#include <algorithm>
#include <utility>

#include "dsv4/chat.h"

namespace dsv4::server {

namespace {

constexpr std::string_view kEndThinkText = "</think>";

}  // namespace

OutputWriter::OutputWriter(const Tokenizer& tokenizer, const GenerationParams& params)
    : decoder_(tokenizer, {.skip_special = params.skip_special}),
      stop_strings_(params.stops),
      end_think_(tokenizer.FindToken(kEndThinkText)),
      include_stop_(params.include_stop),
      parallel_calls_(params.parallel_calls),
      thinking_(params.thinking),
      content_(params.plain_content ? Content::kUndecided : Content::kParsed),
      in_reasoning_(params.thinking),
      reasoning_closed_(!params.thinking) {
  if (!params.chat) return;
  // The ends of the reply and of the reasoning are tokens. Their texts in letters are text.
  parser_.emplace(OutputParserOptions{.thinking = params.thinking,
                                      .calls = params.calls_allowed,
                                      .one_call = !params.parallel_calls,
                                      .eos_text = false,
                                      .think_text = !end_think_,
                                      .tools = params.signatures});
  if (params.content_grammar != nullptr && params.exact_calls) parser_->StreamCalls();
}

bool OutputWriter::Push(TokenId id, StepOutput* out) {
  if (!stops_ && !stop_strings_.empty()) {
    auto matcher = StopMatcher::Create(stop_strings_);
    if (matcher.ok()) stops_ = std::move(*matcher);
  }
  const Result<std::string> text = decoder_.Push(id);
  if (!text.ok() || text->empty()) return false;
  if (parser_ && content_ != Content::kParsed && parser_->in_content()) {
    // A grammar's calls begin with a newline or a tag, its JSON with neither.
    if (content_ == Content::kUndecided) {
      content_ = text->front() == '\n' || text->front() == '<' ? Content::kParsed : Content::kPlain;
    }
    if (content_ == Content::kPlain) {
      plain_text_ += *text;
      TakeContent(*text, out);
      return finish_ != FinishReason::kNone;
    }
  }
  if (parser_) return Take(Parse(id, *text), out);
  TakeText(*text, out);
  return finish_ != FinishReason::kNone;
}

std::vector<OutputDelta> OutputWriter::Parse(TokenId id, const std::string& text) {
  if (id != end_think_ || !in_reasoning_ || !text.ends_with(kEndThinkText)) return parser_->Push(text);
  std::vector<OutputDelta> deltas = parser_->Push(std::string_view(text).substr(0, text.size() - kEndThinkText.size()));
  for (OutputDelta& delta : parser_->EndReasoning()) deltas.push_back(std::move(delta));
  return deltas;
}

void OutputWriter::Finish(StepOutput* out) {
  if (finish_ != FinishReason::kNone) return;
  const std::string rest = decoder_.Finish();
  if (!parser_) {
    TakeText(rest, out);
    if (stops_ && finish_ == FinishReason::kNone) out->text += stops_->Finish();
    return;
  }
  if (content_ == Content::kPlain) {
    plain_text_ += rest;
    TakeContent(rest, out);
    if (finish_ != FinishReason::kNone) return;
  } else if (!rest.empty() && Take(parser_->Push(rest), out)) {
    return;
  }
  std::vector<OutputDelta> deltas = parser_->Finish();
  if (call_open_) std::erase_if(deltas, [](const OutputDelta& d) { return d.index >= 0; });
  if (Take(std::move(deltas), out)) return;
  if (stops_ && finish_ == FinishReason::kNone) AddContent(stops_->Finish(), out);
  if (num_calls_ > 0) finish_ = FinishReason::kToolCalls;
}

std::optional<RenderedPrompt> OutputWriter::Rendered() const {
  if (!parser_ || call_open_ || !reasoning_closed_ || !matched_stop_.empty()) return std::nullopt;
  const ParsedMessage& parsed = parser_->message();
  ChatRequest request{.thinking = thinking_, .drop_thinking = false};
  request.messages.push_back({.role = Role::kUser});
  const auto before = RenderPrompt(request, ChatDialect::kV4Preview);  // replies look the same in all dialects
  request.messages.push_back({.role = Role::kAssistant,
                              .content = parsed.content + plain_text_,
                              .reasoning_content = parsed.reasoning_content,
                              .tool_calls = parsed.tool_calls,
                              .wo_eos = true});
  auto all = RenderPromptWithRanges(request, ChatDialect::kV4Preview);
  if (!before.ok() || !all.ok()) return std::nullopt;
  RenderedPrompt reply{.text = all->text.substr(before->size()), .content_ranges = {}};
  for (const TextRange& range : all->content_ranges) {
    if (range.begin >= before->size())
      reply.content_ranges.push_back({range.begin - before->size(), range.end - before->size()});
  }
  return reply;
}

bool OutputWriter::Take(std::vector<OutputDelta> deltas, StepOutput* out) {
  for (OutputDelta& delta : deltas) {
    if (finish_ != FinishReason::kNone) return true;
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        out->deltas.push_back(std::move(delta));
        break;
      case OutputDelta::Kind::kContent:
        in_reasoning_ = false;
        TakeContent(delta.text, out);
        break;
      case OutputDelta::Kind::kToolCallBegin:
        in_reasoning_ = false;
        if (stops_ && num_calls_ == 0 && !call_open_) AddContent(stops_->Finish(), out);
        call_open_ = true;
        out->deltas.push_back(std::move(delta));
        break;
      case OutputDelta::Kind::kToolCallArguments:
        out->deltas.push_back(std::move(delta));
        break;
      case OutputDelta::Kind::kToolCallEnd:
        call_open_ = false;
        ++num_calls_;
        out->deltas.push_back(std::move(delta));
        if (!parallel_calls_) finish_ = FinishReason::kToolCalls;
        break;
    }
  }
  if (parser_->in_content()) {
    in_reasoning_ = false;
    reasoning_closed_ = true;
  }
  if (finish_ == FinishReason::kNone && parser_->done()) {
    finish_ = num_calls_ > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
  }
  return finish_ != FinishReason::kNone;
}

void OutputWriter::TakeContent(const std::string& text, StepOutput* out) {
  if (!stops_) return AddContent(text, out);
  AddContent(stops_->Push(text), out);
  if (!stops_->stopped()) return;
  finish_ = FinishReason::kStop;
  matched_stop_ = stops_->matched();
  if (include_stop_) AddContent(matched_stop_, out);
}

void OutputWriter::AddContent(std::string text, StepOutput* out) {
  if (text.empty()) return;
  out->deltas.push_back({.kind = OutputDelta::Kind::kContent, .text = std::move(text)});
}

void OutputWriter::TakeText(const std::string& text, StepOutput* out) {
  if (!stops_) {
    out->text += text;
    return;
  }
  out->text += stops_->Push(text);
  if (!stops_->stopped()) return;
  finish_ = FinishReason::kStop;
  matched_stop_ = stops_->matched();
  if (include_stop_) out->text += matched_stop_;
}

std::span<const uint32_t> ChoiceConstraint::Allowed() {
  std::fill(allowed_.begin(), allowed_.end(), 0);
  const auto vocab = std::min<int64_t>(tokenizer_->vocab_size(), 32 * static_cast<int64_t>(allowed_.size()));
  for (TokenId id = 0; id < static_cast<TokenId>(vocab); ++id) {
    if (tokenizer_->IsAdded(id)) continue;
    const std::string_view bytes = tokenizer_->TokenBytes(id);
    const bool possible = !bytes.empty() && std::any_of(rest_.begin(), rest_.end(), [&](const std::string& rest) {
      return rest.starts_with(bytes);
    });
    if (possible) allowed_[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  return allowed_;
}

void ChoiceConstraint::Accept(TokenId id) {
  const std::string_view bytes = tokenizer_->TokenBytes(id);
  std::vector<std::string> kept;
  for (const std::string& rest : rest_) {
    if (!rest.starts_with(bytes)) continue;
    if (rest.size() == bytes.size()) {
      rest_.clear();  // complete; a longer choice that starts with it would need another quote
      return;
    }
    kept.push_back(rest.substr(bytes.size()));
  }
  rest_ = std::move(kept);
}

}  // namespace dsv4::server
