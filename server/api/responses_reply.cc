#include "server/api/responses_reply.h"

#include <iterator>
#include <utility>

#include "server/api/reply.h"
#include "server/api/response_store.h"
#include "server/api/sealed_text.h"

namespace dsv4::server {

namespace {

// Returns the text of `object` with one more member, whose value is already JSON text.
std::string With(const Json& object, const std::string& name, const std::string& value) {
  std::string text = Dump(object);
  text.back() = ',';
  return text.append("\"").append(name).append("\":").append(value).append("}");
}

// Stores its output as text until the end: as JSON values it would take twenty times the memory.
class ResponsesReply : public Reply {
 public:
  ResponsesReply(const Api& api, ExchangePtr exchange, Json response, ResponsesOptions options)
      : Reply(api, std::move(exchange), ErrorForm::kOpenAi, options.stream, 1),
        response_(std::move(response)),
        options_(std::move(options)),
        in_reasoning_(options_.thinking),
        output_(options_.retained),
        num_items_(options_.num_retained) {}

 private:
  bool KeepsLogprobs() const override { return true; }  // its last events repeat all of them
  enum class Item : uint8_t { kNone, kReasoning, kMessage, kCall, kCustomCall, kCompaction };

  void Send(const char* type, Json data, const char* name = nullptr, const std::string& value = "") {
    if (stream_) Raw(EventText(type, std::move(data), name, value));
  }
  std::string EventText(const char* type, Json data, const char* name, const std::string& value) {
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(data);
    return NamedEventText(type, name == nullptr ? Dump(event) : With(event, name, value));
  }

  std::string Begin() override {
    std::string all;
    for (const char* type : {"response.created", "response.in_progress"})
      all += EventText(type, Json::object(), "response", ResponseText());
    return all;
  }

  std::string ResponseText() const {
    std::string output = "[" + output_;
    if (item_ != Item::kNone) output += (output_.empty() ? "" : ",") + Dump(open_);
    std::string text = With(response_, "output", output + "]");
    if (options_.asked.empty()) return text;
    text.back() = ',';
    return text.append(options_.asked, 1);
  }

  Json OutputIndex() const { return {{"output_index", num_items_ - 1}}; }
  Json Place() const {
    return {{"item_id", open_["id"]},
            {"output_index", num_items_ - 1},
            {InSummary() ? "summary_index" : "content_index", 0}};
  }

  // The open item is reasoning, which the client reads as a summary.
  bool InSummary() const { return item_ == Item::kReasoning && options_.summary; }
  void SendPart(const char* of_content, const char* of_summary, const std::string& part) {
    Send(InSummary() ? of_summary : of_content, Place(), "part", part);
  }

  void OpenItem(Item item, Json json) {
    CloseItem("completed");
    item_ = item;
    text_.clear();
    text_tokens_.clear();
    open_ = std::move(json);
    ++num_items_;
    Send("response.output_item.added", OutputIndex(), "item", Dump(open_));
    if (item == Item::kMessage || item == Item::kReasoning)
      SendPart("response.content_part.added", "response.reasoning_summary_part.added", Part("", "[]"));
  }

  std::string Part(const std::string& text, const std::string& logprobs) const {
    if (item_ == Item::kReasoning)
      return Dump({{"type", InSummary() ? "summary_text" : "reasoning_text"}, {"text", text}});
    return With({{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}}, "logprobs", logprobs);
  }

  void Text(Item item, const std::string& text) {
    if (item_ != item) {
      OpenItem(item, item == Item::kReasoning ? Json{{"id", NewId("rs_")},
                                                     {"type", "reasoning"},
                                                     {"summary", Json::array()},
                                                     {"content", Json::array()},
                                                     {"status", "in_progress"}}
                                              : Json{{"id", NewId("msg_")},
                                                     {"type", "message"},
                                                     {"status", "in_progress"},
                                                     {"role", "assistant"},
                                                     {"content", Json::array()}});
    }
    text_ += text;
    Json data = Place();
    data["delta"] = text;
    if (item == Item::kMessage) data["logprobs"] = TakeLogprobs();
    Send(item == Item::kMessage ? "response.output_text.delta"
         : InSummary()          ? "response.reasoning_summary_text.delta"
                                : "response.reasoning_text.delta",
         std::move(data));
  }

  // Returns the log-probabilities of the tokens since the previous text, and adds these tokens to the whole text's.
  Json TakeLogprobs() {
    std::vector<OutputToken> tokens = std::exchange(untold_, {});
    Json entries = stream_ ? LogprobsToJson(api_.tokenizer, tokens) : Json::array();
    std::move(tokens.begin(), tokens.end(), std::back_inserter(text_tokens_));
    return entries;
  }

  // Collects the tokens after the reasoning.
  void NoteTokens(std::vector<OutputToken>& tokens) {
    for (OutputToken& token : tokens) {
      if (!in_reasoning_) untold_.push_back(std::move(token));
      in_reasoning_ = in_reasoning_ && token.id != api_.tokenizer.FindToken("</think>");
    }
  }

  void CloseItem(const char* status) {
    if (item_ == Item::kNone) return;
    std::string item;
    if (item_ != Item::kCompaction) open_["status"] = status;
    if (item_ == Item::kCompaction) {
      item = Dump(open_);
    } else if (item_ == Item::kCustomCall) {
      open_["input"] = CustomInput(text_);
      Json place = OutputIndex();
      place["item_id"] = open_["id"];
      Json delta = place, done = place;
      delta["delta"] = done["input"] = open_["input"];
      Send("response.custom_tool_call_input.delta", std::move(delta));
      Send("response.custom_tool_call_input.done", std::move(done));
      item = Dump(open_);
    } else if (item_ == Item::kCall) {
      open_["arguments"] = text_;
      Send("response.function_call_arguments.done",
           {{"item_id", open_["id"]}, {"output_index", num_items_ - 1}, {"name", open_["name"]}, {"arguments", text_}});
      item = Dump(open_);
    } else {
      item = CloseText();
    }
    Send("response.output_item.done", OutputIndex(), "item", item);
    output_ += (output_.empty() ? "" : ",") + item;
    item_ = Item::kNone;
  }

  // Returns the closed item.
  std::string CloseText() {
    Json done = Place();
    done["text"] = text_;
    std::string logprobs = "[]";
    if (item_ == Item::kMessage) {
      (void)TakeLogprobs();
      logprobs = Dump(LogprobsToJson(api_.tokenizer, std::exchange(text_tokens_, {})));
      Send("response.output_text.done", std::move(done), "logprobs", logprobs);
    } else {
      Send(InSummary() ? "response.reasoning_summary_text.done" : "response.reasoning_text.done", std::move(done));
    }
    const std::string part = Part(text_, logprobs);
    SendPart("response.content_part.done", "response.reasoning_summary_part.done", part);
    if (item_ == Item::kReasoning && options_.sealed) open_["encrypted_content"] = SealText(text_);
    const char* list = InSummary() ? "summary" : "content";
    open_.erase(list);
    return With(open_, list, "[" + part + "]");
  }

  void Take(StepOutput& output) override {
    counts_ = output.counts;
    finish_ = output.finish;
    if (options_.logprobs) NoteTokens(output.tokens);
    for (const OutputDelta& d : output.deltas) {
      if (d.kind == OutputDelta::Kind::kReasoning && options_.hides_reasoning) continue;
      if (options_.compacts) {
        if (d.kind == OutputDelta::Kind::kContent) text_ += d.text;
        continue;
      }
      if (d.kind == OutputDelta::Kind::kToolCallBegin || d.kind == OutputDelta::Kind::kToolCallEnd) untold_.clear();
      switch (d.kind) {
        case OutputDelta::Kind::kReasoning:
          Text(Item::kReasoning, d.text);
          break;
        case OutputDelta::Kind::kContent:
          Text(Item::kMessage, d.text);
          break;
        case OutputDelta::Kind::kToolCallBegin: {
          const auto it = options_.names.find(d.text);
          const bool custom = it != options_.names.end() && it->second.custom;
          Json call = {{"id", NewId(custom ? "ctc_" : "fc_")},
                       {"type", custom ? "custom_tool_call" : "function_call"},
                       {"status", "in_progress"},
                       {"call_id", NewId("call_")},
                       {"name", d.text},
                       {custom ? "input" : "arguments", ""}};
          if (it != options_.names.end() && !it->second.space.empty()) {
            call["name"] = it->second.name;
            call["namespace"] = it->second.space;
          }
          OpenItem(custom ? Item::kCustomCall : Item::kCall, std::move(call));
          break;
        }
        case OutputDelta::Kind::kToolCallArguments:
          text_ += d.text;
          if (item_ == Item::kCustomCall) break;  // the text is inside the arguments, escaped
          Send("response.function_call_arguments.delta",
               {{"item_id", open_["id"]}, {"output_index", num_items_ - 1}, {"delta", d.text}});
          break;
        case OutputDelta::Kind::kToolCallEnd:
          CloseItem("completed");
          break;
      }
    }
  }

  // The client continues the conversation with this item in place of its turns.
  bool AddCompaction() {
    if (text_.find_first_not_of(" \t\r\n") == text_.npos) {
      EndWith(ApiError(500, "the model wrote no summary of the conversation; try again, or send the whole input"));
      return false;
    }
    const std::string summary = std::exchange(text_, "");
    OpenItem(Item::kCompaction,
             {{"id", NewId("cmp_")}, {"type", "compaction"}, {"encrypted_content", SealText(summary)}});
    CloseItem("completed");
    return true;
  }

  void End() override {
    if (options_.compacts && !AddCompaction()) return;
    const bool cut = finish_ == FinishReason::kLength;
    const bool in_call = item_ == Item::kCall || item_ == Item::kCustomCall;
    CloseItem(cut || in_call ? "incomplete" : "completed");
    response_["status"] = cut ? "incomplete" : "completed";
    if (cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response_["completed_at"] = UnixTime();
    response_["usage"] = {{"input_tokens", counts_.prompt},
                          {"input_tokens_details", {{"cached_tokens", counts_.cached}}},
                          {"output_tokens", counts_.completion},
                          {"output_tokens_details", CompletionDetails(counts_)},
                          {"total_tokens", counts_.prompt + counts_.completion}};
    whole_ = ResponseText();
    Send(cut ? "response.incomplete" : "response.completed", Json::object(), "response", whole_);
    if (!options_.items.empty()) Keep();
  }

  void Keep() {
    std::string items = std::move(options_.items);
    const bool between = items.size() > 2 && !output_.empty();  // "[]"
    items.pop_back();
    items += (between ? "," : "") + output_ + "]";
    api_.responses->Put(
        response_["id"].get<std::string>(),
        {.tenant = TenantOf(api_, exchange_->request()), .response = whole_, .items = std::move(items)});
  }

  std::string ErrorEvent(const ApiError& error) override {
    response_["status"] = "failed";
    response_["error"] = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.what()}};
    return EventText("response.failed", Json::object(), "response", ResponseText());
  }

  Json response_;
  ResponsesOptions options_;
  bool in_reasoning_;
  std::vector<OutputToken> untold_;       // tokens of the message since its latest text
  std::vector<OutputToken> text_tokens_;  // tokens of the open message
  int64_t sequence_ = 0;
  std::string output_;  // closed items, separated by commas
  int num_items_;
  Json open_;  // the open item
  Item item_ = Item::kNone;
  std::string text_;
  TokenCounts counts_;
  FinishReason finish_ = FinishReason::kNone;
};

}  // namespace

std::shared_ptr<Reply> MakeResponsesReply(const Api& api, ExchangePtr exchange, Json response,
                                          ResponsesOptions options) {
  return std::make_shared<ResponsesReply>(api, std::move(exchange), std::move(response), std::move(options));
}

}  // namespace dsv4::server
