// The output writer, the constraint of names, and log-probabilities.
#include "server/schedule/output.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/json.h"
#include "server/fake_engine.h"
#include "server/nano_tokenizer.h"
#include "server/schedule/logprobs.h"

namespace dsv4::server {
namespace {

using Ids = std::vector<TokenId>;

GenerationParams ChatParams(bool thinking = false) {
  GenerationParams params;
  params.chat = true;
  params.thinking = thinking;
  return params;
}

// All outputs for a reply with this text.
struct Written {
  std::string text, content, reasoning, arguments;
  std::vector<std::string> calls;
  FinishReason finish = FinishReason::kNone;
};
Written Write(OutputWriter& writer, const std::string& reply, bool finish = true) {
  StepOutput out;
  for (const TokenId id : NanoTokenizer().Encode(reply)) {
    if (writer.Push(id, &out)) break;
  }
  if (finish) writer.Finish(&out);
  Written w{.text = out.text, .finish = writer.finish()};
  for (const OutputDelta& d : out.deltas) {
    if (d.kind == OutputDelta::Kind::kContent) w.content += d.text;
    if (d.kind == OutputDelta::Kind::kReasoning) w.reasoning += d.text;
    if (d.kind == OutputDelta::Kind::kToolCallArguments) w.arguments += d.text;
    if (d.kind == OutputDelta::Kind::kToolCallBegin) w.calls.push_back(d.text);
  }
  return w;
}

constexpr const char* kCall =
    "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" "
    "string=\"false\">[1,2]</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n";
constexpr const char* kCallsEnd = "</｜DSML｜tool_calls>";

TEST(OutputWriter, StopsHoldInContentOnly) {
  GenerationParams params = ChatParams(true);
  params.stops = {"ab"};
  OutputWriter writer(NanoTokenizer(), params);
  const Written w = Write(writer, "cab</think>xaab and more");
  EXPECT_EQ(w.reasoning, "cab");
  EXPECT_EQ(w.content, "xa");
  EXPECT_EQ(w.finish, FinishReason::kStop);
  EXPECT_EQ(writer.matched_stop(), "ab");
}

TEST(OutputWriter, ACallThatWasCutOffIsText) {
  const std::string whole = std::string(kCall) + kCallsEnd;
  const GenerationParams params = ChatParams();
  const Ids ids = NanoTokenizer().Encode(whole);
  int complete = 0;
  for (size_t n = 0; n <= ids.size(); ++n) {
    OutputWriter writer(NanoTokenizer(), params);
    const std::string text = *NanoTokenizer().Decode({ids.data(), n});
    const Written w = Write(writer, text);
    EXPECT_EQ(w.finish == FinishReason::kToolCalls, !w.calls.empty());
    complete += w.calls.empty() ? 0 : 1;
    if (w.calls.empty()) {
      EXPECT_EQ("\n\n" + w.content, text.size() < 2 ? "\n\n" : text);
    } else {
      EXPECT_EQ(w.arguments, "{\"x\": [1,2]}");
      EXPECT_EQ(w.content, "");
    }
  }
  EXPECT_GT(complete, 1);
}

// Calls that follow a grammar are streamed. What is out stays incomplete.
TEST(OutputWriter, AStreamedCallThatWasCutOffKeepsOpenArguments) {
  const std::string whole = std::string(kCall) + kCallsEnd;
  const GenerationParams params = ChatParams();
  const Ids ids = NanoTokenizer().Encode(whole);
  for (size_t n = 0; n <= ids.size(); ++n) {
    OutputWriter writer(NanoTokenizer(), params);
    writer.StreamCalls();
    StepOutput out;
    bool ended = false;
    for (size_t i = 0; i < n; ++i) ended = writer.Push(ids[i], &out);
    writer.Finish(&out);
    std::string arguments;
    bool complete = false, begun = false;
    for (const OutputDelta& d : out.deltas) {
      begun = begun || d.kind == OutputDelta::Kind::kToolCallBegin;
      if (d.kind == OutputDelta::Kind::kToolCallArguments) arguments += d.text;
      complete = complete || d.kind == OutputDelta::Kind::kToolCallEnd;
      if (d.kind == OutputDelta::Kind::kContent) {
        EXPECT_FALSE(begun) << d.text;
      }
    }
    if (!arguments.empty()) {
      EXPECT_EQ(Json::accept(arguments), complete) << n << ": " << arguments;
    }
    EXPECT_EQ(writer.finish() == FinishReason::kToolCalls, complete);
    EXPECT_EQ(ended, n == ids.size());
  }
}

TEST(OutputWriter, WhereNoCallIsAllowedItsTextIsContentAndOneWhereOneIs) {
  GenerationParams none = ChatParams();
  none.stops = {"zzz"};
  none.calls_allowed = false;
  OutputWriter writer(NanoTokenizer(), none);
  const Written w = Write(writer, "Well zz" + std::string(kCall) + kCallsEnd);
  EXPECT_TRUE(w.calls.empty());
  EXPECT_EQ(w.content, "Well zz" + std::string(kCall) + kCallsEnd);
  EXPECT_EQ(w.finish, FinishReason::kStop);
  GenerationParams one = ChatParams();
  one.parallel_calls = false;
  OutputWriter single(NanoTokenizer(), one);
  const std::string invoke = std::string(kCall).substr(std::string(kCall).find("<｜DSML｜invoke"));
  EXPECT_EQ(Write(single, kCall + invoke + kCallsEnd).calls, (std::vector<std::string>{"f"}));
}

// The ends are tokens. A reply that writes their texts in letters does not end.
TEST(OutputWriter, EndsInLettersAreText) {
  const auto letters = [](std::string_view text) {
    Ids ids;
    for (const char c : text) {
      const Ids one = NanoTokenizer().Encode(std::string(1, c));
      ids.insert(ids.end(), one.begin(), one.end());
    }
    return ids;
  };
  const GenerationParams params = ChatParams(true);
  OutputWriter writer(NanoTokenizer(), params);
  StepOutput out;
  const TokenId end_think = *NanoTokenizer().FindToken("</think>");
  for (const Ids& ids : {letters("Is </think> the end?"), Ids{end_think}, letters("</think>Yes, </think> is.")}) {
    for (const TokenId id : ids) EXPECT_FALSE(writer.Push(id, &out));
  }
  writer.Finish(&out);
  std::string reasoning, content;
  for (const OutputDelta& d : out.deltas) (d.kind == OutputDelta::Kind::kContent ? content : reasoning) += d.text;
  EXPECT_EQ(reasoning, "Is </think> the end?");
  EXPECT_EQ(content, "Yes, </think> is.");
}

TEST(OutputWriter, ArgumentsHaveTheTypesOfTheTool) {
  GenerationParams params = ChatParams();
  params.signatures = std::make_shared<std::vector<ToolSignature>>(
      std::vector<ToolSignature>{{.name = "f", .parameters = {{.name = "x", .types = kIntegerType}}}});
  OutputWriter writer(NanoTokenizer(), params);
  const Written w = Write(writer,
                          "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" string=\"true\">5"
                          "</｜DSML｜parameter>\n</｜DSML｜invoke>");
  EXPECT_EQ(w.arguments, "{\"x\": 5}");
}

TEST(OutputWriter, RenderedIsWhatTheEncoderWillWrite) {
  const GenerationParams params = ChatParams(true);
  OutputWriter writer(NanoTokenizer(), params);
  // Spelled in the model's own way: one newline instead of two, no blank in the list.
  const std::string reply = "Hm.</think>Sure." + std::string(kCall).substr(1) + kCallsEnd;
  Write(writer, reply);
  const auto rendered = writer.Rendered();
  ASSERT_TRUE(rendered.has_value());
  EXPECT_NE(rendered->text, reply);
  EXPECT_TRUE(rendered->text.starts_with("Hm.</think>Sure.\n\n<｜DSML｜tool_calls>")) << rendered->text;
  EXPECT_NE(rendered->text.find("[1, 2]"), std::string::npos);
  // The ranges separate the content, which a client will send back, from the text of the encoder.
  ASSERT_GE(rendered->content_ranges.size(), 2u);
  EXPECT_EQ(rendered->content_ranges[0], (TextRange{0, 3}));
  EXPECT_EQ(rendered->content_ranges[1], (TextRange{11, 16}));
  // The encoder would close open reasoning.
  OutputWriter open(NanoTokenizer(), params);
  Write(open, "Hm, and then");
  EXPECT_FALSE(open.Rendered().has_value());
}

TEST(ChoiceConstraint, SpellsOneOfTheChoices) {
  const std::vector<std::string> choices = {"get_weather\">", "get_time\">", "x\">"};
  for (const std::string& wanted : choices) {
    ChoiceConstraint constraint(NanoTokenizer(), NanoTokenizer().vocab_size(), choices);
    std::string text;
    while (!constraint.done()) {
      const std::span<const uint32_t> allowed = constraint.Allowed();
      TokenId next = -1;  // the longest allowed token that continues the expected text
      for (TokenId id = 0; id < NanoTokenizer().vocab_size(); ++id) {
        const std::string_view bytes = NanoTokenizer().TokenBytes(id);
        if ((allowed[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0 ||
            !std::string_view(wanted).substr(text.size()).starts_with(bytes))
          continue;
        if (next < 0 || bytes.size() > NanoTokenizer().TokenBytes(next).size()) next = id;
      }
      ASSERT_GE(next, 0) << text;
      text += NanoTokenizer().TokenBytes(next);
      constraint.Accept(next);
    }
    EXPECT_EQ(text, wanted);
  }
}

TEST(Logprobs, SumToOneAndAreSorted) {
  const std::vector<float> logits = {0.5f, 2.0f, 2.0f, -1.0f};
  const OutputToken token = TokenLogprobs(logits, 3, 4);
  double sum = 0;
  for (const TokenLogprob& t : token.top) sum += std::exp(static_cast<double>(t.logprob));
  EXPECT_NEAR(sum, 1, 1e-6);
  EXPECT_EQ(token.top[0].id, 1);
  EXPECT_EQ(token.top[1].id, 2);
  EXPECT_EQ(token.top[3].logprob, token.logprob);
}

}  // namespace
}  // namespace dsv4::server
