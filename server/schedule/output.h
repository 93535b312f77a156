// Tokens of one sequence to what a client sees: text, or reasoning, content and calls; ended by stop strings and calls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dsv4/chat.h"
#include "dsv4/output_parser.h"
#include "dsv4/stop_strings.h"
#include "dsv4/tokenizer.h"
#include "server/schedule/generation.h"

namespace dsv4::server {

class OutputWriter {
 public:
  // The stop strings of `params`, which outlives the writer, have been checked: none is empty.
  OutputWriter(const Tokenizer& tokenizer, const GenerationParams& params);

  // Adds the token's text to `out`. True: the reply ends here (finish(), matched_stop()).
  bool Push(TokenId id, StepOutput* out);

  // The end of the tokens for another reason: adds what was held back. A call that is streamed and was not completed
  // stays as it is, so that its arguments are not taken for complete ones.
  void Finish(StepOutput* out);

  bool in_reasoning() const { return parser_.has_value() && in_reasoning_ && !parser_->in_calls(); }
  // Whether the next token may be the marker of a call's first tag, at the usual place of calls.
  bool at_call() const { return parser_.has_value() && content_ != Content::kPlain && parser_->at_call(); }
  // A grammar holds from here on that allows no malformed call.
  void StreamCalls() {
    if (parser_) parser_->StreamCalls();
  }
  bool in_content() const { return parser_.has_value() && parser_->in_content(); }
  // How the encoder will write this reply when a client sends it back; nullopt without chat, and for a reply whose
  // parts were not all completed.
  std::optional<RenderedPrompt> Rendered() const;
  FinishReason finish() const { return finish_; }
  const std::string& matched_stop() const { return matched_stop_; }

 private:
  std::vector<OutputDelta> Parse(TokenId id, const std::string& text);
  bool Take(std::vector<OutputDelta> deltas, StepOutput* out);
  void TakeContent(const std::string& text, StepOutput* out);
  void TakeText(const std::string& text, StepOutput* out);
  void AddContent(std::string text, StepOutput* out);

  StreamDecoder decoder_;
  const std::vector<std::string>& stop_strings_;
  std::optional<StopMatcher> stops_;  // of them, from the first token on: they take several times as much
  std::optional<OutputParser> parser_;
  const std::optional<TokenId> end_think_;
  bool include_stop_, parallel_calls_;
  const bool thinking_;
  // What tags in the content are: for the parser, plain text, or for its first character to say.
  enum class Content : uint8_t { kParsed, kPlain, kUndecided } content_;
  std::string plain_text_;
  bool in_reasoning_;
  bool reasoning_closed_;
  int num_calls_ = 0;  // complete ones
  bool call_open_ = false;
  FinishReason finish_ = FinishReason::kNone;
  std::string matched_stop_;
};

// The next tokens must spell one of several texts.
class ChoiceConstraint {
 public:
  // `vocab_size` is the model's.
  ChoiceConstraint(const Tokenizer& tokenizer, int64_t vocab_size, std::vector<std::string> choices)
      : tokenizer_(&tokenizer), rest_(std::move(choices)), allowed_(static_cast<size_t>(vocab_size + 31) / 32) {}

  bool done() const { return rest_.empty(); }
  // The tokens that can come next, a bit each; good until the next call.
  std::span<const uint32_t> Allowed();
  void Accept(TokenId id);

 private:
  const Tokenizer* tokenizer_;
  std::vector<std::string> rest_;  // what each choice that is still possible lacks
  std::vector<uint32_t> allowed_;
};

}  // namespace dsv4::server
