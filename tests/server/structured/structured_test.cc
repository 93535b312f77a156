// Grammars of structured output: masks compared with the grammar itself, random texts that never reach a dead end,
// schemas that cannot be enforced.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <string>

#include "dsv4/output_parser.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/nano_tokenizer.h"
#include "server/structured/formats.h"
#include "server/structured/grammar.h"
#include "server/structured/schema.h"

namespace dsv4::server {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

TokenId Eos() { return NanoTokenizer().eos_token_id(); }

class Structured : public ::testing::Test {
 protected:
  void SetUp() override {
    static const auto compiler = GrammarCompiler::Create(NanoTokenizer(), NanoTokenizer().vocab_size() + 3, {Eos()});
    if (compiler == nullptr) GTEST_SKIP() << "this build has no XGrammar";
    compiler_ = compiler.get();
  }

  std::shared_ptr<const Grammar> Compile(const Json& format) {
    auto grammar = compiler_->Compile(Dump(format));
    EXPECT_TRUE(grammar.ok()) << grammar.status().message();
    return grammar.ok() ? *grammar : nullptr;
  }

  static std::vector<TokenId> Allowed(GrammarMatcher& matcher) {
    const std::span<const uint32_t> allowed = matcher.Allowed();
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < NanoTokenizer().vocab_size() + 3; ++id) {
      const auto word = static_cast<size_t>(id) / 32;
      if (allowed.empty() || (allowed[word] >> (id % 32) & 1) != 0) ids.push_back(id);
    }
    return ids;
  }

  static bool Accepts(const Grammar& grammar, std::string_view text) {
    const auto matcher = grammar.NewMatcher();
    return matcher->AcceptText(text) && matcher->complete();
  }

  // Returns a random text of the grammar, or nullopt if it did not end within `max_tokens`. Prefers long tokens and the
  // end, so that most texts end.
  static std::optional<std::string> RandomText(const Grammar& grammar, std::mt19937& random, int max_tokens = 400) {
    const auto matcher = grammar.NewMatcher();
    std::string text;
    for (int i = 0; i < max_tokens; ++i) {
      const std::vector<TokenId> ids = Allowed(*matcher);
      if (ids.empty()) {
        ADD_FAILURE() << "a dead end after " << text;
        return std::nullopt;
      }
      EXPECT_EQ(matcher->complete(), std::find(ids.begin(), ids.end(), Eos()) != ids.end()) << text;
      if (matcher->complete() && random() % 2 == 0) return text;
      std::vector<TokenId> choice;  // sometimes closing tokens first
      if (random() % 3 == 0) {
        std::copy_if(ids.begin(), ids.end(), std::back_inserter(choice), [](TokenId id) {
          const std::string_view bytes = id == Eos() ? "" : NanoTokenizer().TokenBytes(id);
          return bytes.find_first_of("\"}]<") != std::string_view::npos;
        });
      }
      if (choice.empty()) choice = ids;
      const TokenId id = choice[random() % choice.size()];
      if (id == Eos()) return text;
      text += NanoTokenizer().TokenBytes(id);
      EXPECT_TRUE(matcher->Accept(id)) << text;
    }
    return std::nullopt;
  }

  GrammarCompiler* compiler_ = nullptr;
};

const Json& Person() {
  static const Json schema = Json::parse(R"({
    "type": "object",
    "properties": {
      "name": {"type": "string"},
      "age": {"type": "integer", "minimum": 0, "maximum": 150},
      "size": {"type": "number"},
      "mood": {"enum": ["gut", "schlecht", "größer", 7, null]},
      "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3},
      "home": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
               "required": ["zip"], "additionalProperties": false},
      "child": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    },
    "required": ["name", "age", "size", "mood", "tags", "home", "child"],
    "additionalProperties": false,
    "$defs": {"node": {"type": "object", "properties": {"v": {"type": "boolean"}}, "required": ["v"],
                       "additionalProperties": false}}
  })");
  return schema;
}

TEST_F(Structured, RandomTextsFollowTheSchemaAndNeverEndInADeadEnd) {
  const auto grammar = Compile(JsonFormat(Person()));
  ASSERT_NE(grammar, nullptr);
  std::mt19937 random(1);
  int whole = 0;
  for (int i = 0; i < 30; ++i) {
    const auto text = RandomText(*grammar, random);
    if (!text) continue;
    ++whole;
    const Json value = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(value.is_object()) << *text;
    EXPECT_EQ(value.size(), 7u) << *text;
    EXPECT_TRUE(value["name"].is_string()) << *text;
    EXPECT_TRUE(value["age"].is_number_integer() && value["age"] >= 0 && value["age"] <= 150) << *text;
    EXPECT_TRUE(value["size"].is_number()) << *text;
    const Json& moods = Person()["properties"]["mood"]["enum"];
    EXPECT_NE(std::find(moods.begin(), moods.end(), value["mood"]), moods.end()) << *text;
    EXPECT_TRUE(value["tags"].is_array() && !value["tags"].empty() && value["tags"].size() <= 3) << *text;
    EXPECT_EQ(value["home"]["zip"].get<std::string>().size(), 5u) << *text;
    EXPECT_TRUE(value["child"].is_null() || value["child"]["v"].is_boolean()) << *text;
  }
  EXPECT_GE(whole, 5);
}

TEST_F(Structured, MaskIsWhatTheGrammarAccepts) {
  const auto grammar = Compile(JsonFormat(Person()));
  ASSERT_NE(grammar, nullptr);
  for (const char* prefix : {"", "{", R"({"name": ")", R"({"name": "gr\u)", R"({"name":"größe","age":15)",
                             R"({"name":"","age":1,"size":-0.)", R"({"name":"","age":1,"size":1,"mood":"g)"}) {
    const auto matcher = grammar->NewMatcher();
    ASSERT_TRUE(*prefix == '\0' || matcher->AcceptText(prefix)) << prefix;
    const std::vector<TokenId> allowed = Allowed(*matcher);
    for (TokenId id = 0; id < NanoTokenizer().vocab_size(); id += 1 + id % 3) {
      if (NanoTokenizer().IsAdded(id)) continue;
      const auto other = grammar->NewMatcher();
      ASSERT_TRUE(*prefix == '\0' || other->AcceptText(prefix));
      const bool masked_in = std::binary_search(allowed.begin(), allowed.end(), id);
      EXPECT_EQ(masked_in, other->AcceptText(NanoTokenizer().TokenBytes(id)))
          << prefix << " + " << NanoTokenizer().TokenBytes(id);
    }
  }
}

TEST_F(Structured, WhatIsRolledBackHasNotCome) {  // including the end of the text
  const auto grammar = Compile(JsonFormat(Json::parse(R"({"type": "array", "items": {"type": "integer"}})")));
  ASSERT_NE(grammar, nullptr);
  const auto matcher = grammar->NewMatcher();
  std::vector<TokenId> ids = NanoTokenizer().Encode("[12,3]");
  ids.push_back(Eos());
  ASSERT_LE(ids.size(), static_cast<size_t>(kMaxDraftTokens));
  std::vector<std::vector<TokenId>> allowed;
  for (const TokenId id : ids) {
    allowed.push_back(Allowed(*matcher));
    ASSERT_TRUE(matcher->Accept(id)) << id;
  }
  for (size_t back = 1; back <= ids.size(); ++back) {
    matcher->Rollback(back);
    for (size_t i = ids.size() - back; i < ids.size(); ++i) {
      EXPECT_EQ(Allowed(*matcher), allowed[i]) << back;
      ASSERT_TRUE(matcher->Accept(ids[i])) << back;
    }
  }
}

TEST_F(Structured, WhatDoesNotComeLeavesNoStates) {
  const auto compiler = GrammarCompiler::Create(NanoTokenizer(), NanoTokenizer().vocab_size(), {Eos()},
                                                {.states = 500});
  const auto matcher = (*compiler->Compile(Dump(AnyObjectFormat())))->NewMatcher();
  const std::vector<TokenId> ids = NanoTokenizer().Encode(R"({"a": 1)");
  for (int i = 0; i < 2000; ++i) {
    for (const TokenId id : ids) ASSERT_TRUE(matcher->Accept(id)) << matcher->status().message();
    EXPECT_FALSE(matcher->Accept(ids[0]));
    matcher->Rollback(ids.size());
  }
  EXPECT_TRUE(matcher->status().ok()) << matcher->status().message();
}

TEST_F(Structured, NoAddedTokenIsAllowedInText) {
  const auto grammar = Compile(AnyObjectFormat());
  ASSERT_NE(grammar, nullptr);
  const auto matcher = grammar->NewMatcher();
  ASSERT_TRUE(matcher->AcceptText(R"({"a": ")"));
  for (const TokenId id : Allowed(*matcher)) {
    ASSERT_LT(id, NanoTokenizer().vocab_size());
    EXPECT_TRUE(!NanoTokenizer().IsAdded(id) || NanoTokenizer().TokenBytes(id) == kDsmlMarker)
        << NanoTokenizer().TokenBytes(id);
  }
}

TEST_F(Structured, JsonBeginsWithoutBlanksAndFreeObjectsTakeAnything) {
  const auto grammar = Compile(AnyObjectFormat());
  ASSERT_NE(grammar, nullptr);
  for (const char* text :
       {"{}", R"({"a": 1})", R"({"a": {"b": [1, "\u00e9", null]}, "c": -1.5e3})", "{\n  \"a\": true\n}"})
    EXPECT_TRUE(Accepts(*grammar, text)) << text;
  for (const char* text : {" {}", "\n{}", "[]", "1", "{\"a\": 01}", "{\"a\": 1,}", "{a: 1}"})
    EXPECT_FALSE(Accepts(*grammar, text)) << text;
  const auto bounded = Compile(
      JsonFormat(Json::parse(R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}})")));
  EXPECT_TRUE(Accepts(*bounded, R"({"a": "größ"})") == false && Accepts(*bounded, R"({"a": "grö"})"));
  for (const char* text : {"{\"a\": \"\x12\"}", "{\"a\": \"\n\"}", R"({"a": "\"})", R"({"a": """})"})
    EXPECT_FALSE(Accepts(*bounded, text)) << text;
  const auto inner = Compile(JsonFormat({{"type", "object"}, {"properties", {{"x", {{"type", "object"}}}}}}));
  EXPECT_TRUE(Accepts(*inner, R"({"x": {"y": 1}})"));
  EXPECT_FALSE(Accepts(*inner, R"({"z": 1})"));
}

Json Tool(const std::string& name, Json parameters, bool strict = true) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"strict", strict}, {"parameters", std::move(parameters)}}}};
}

TEST_F(Structured, RandomCallsParseAndFollowTheirSchemas) {
  const Json tools = Json::array(
      {Tool("weather", Json::parse(R"({"type": "object", "properties": {"city": {"type": "string"},
                                       "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                                       "days": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
                                       "required": ["city", "unit", "days"], "additionalProperties": false})")),
       Tool("now", Json::parse(R"({"type": "object", "properties": {}})"))});
  for (const bool parallel : {true, false}) {
    const auto grammar = Compile(CallsFormat(std::string("\n\n") + kCallsBegin, tools, parallel, true));
    ASSERT_NE(grammar, nullptr);
    std::mt19937 random(parallel ? 2 : 3);
    int whole = 0;
    for (int i = 0; i < 20; ++i) {
      const auto text = RandomText(*grammar, random);
      if (!text) continue;
      ++whole;
      const ParsedMessage parsed = ParseOutput(*text, /*thinking=*/false);
      EXPECT_EQ(parsed.content, "") << *text;
      EXPECT_FALSE(parsed.cut_off) << *text;
      ASSERT_GE(parsed.tool_calls.size(), 1u) << *text;
      EXPECT_TRUE(parallel || parsed.tool_calls.size() == 1) << *text;
      for (const ToolCall& call : parsed.tool_calls) {
        const Json arguments = Json::parse(call.arguments, nullptr, false);
        ASSERT_TRUE(arguments.is_object()) << *text;
        if (call.name == "now") {
          EXPECT_EQ(arguments.size(), 0u) << *text;
          continue;
        }
        EXPECT_EQ(call.name, "weather");
        EXPECT_TRUE(arguments["city"].is_string()) << *text;
        EXPECT_TRUE(arguments["unit"] == "celsius" || arguments["unit"] == "fahrenheit") << *text;
        EXPECT_TRUE(arguments["days"].is_array() && arguments["days"].size() <= 2) << *text;
      }
    }
    EXPECT_GE(whole, 5);
  }
}

TEST_F(Structured, TheEncodersOwnCallsAreAllowed) {
  const Json tools = Json::array({Tool("f", Json::parse(R"({"type": "object", "properties": {
      "s": {"type": "string"}, "n": {"type": "number"}, "o": {"type": "object"}}})"))});
  const auto grammar = Compile(CallsFormat(std::string("\n\n") + kCallsBegin, tools, true, true));
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(Accepts(*grammar,
                      "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n"
                      "<｜DSML｜parameter name=\"s\" string=\"true\">a \"b\"\n</x></｜DSML｜parameter>\n"
                      "<｜DSML｜parameter name=\"n\" string=\"false\">1.5</｜DSML｜parameter>\n"
                      "<｜DSML｜parameter name=\"o\" string=\"false\">{\"a\": [1]}</｜DSML｜parameter>\n"
                      "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"));
  EXPECT_FALSE(
      Accepts(*grammar,
              "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">"
              "<｜DSML｜parameter name=</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"));
  EXPECT_FALSE(Accepts(
      *grammar, "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"));
}

// Values in calls are written as the encoder writes them. Otherwise a model could fill its reply with blanks.
TEST_F(Structured, WhiteSpaceInCallsHasABound) {
  const Json tools = Json::array({Tool("f", Json::parse(R"({"type": "object", "properties": {
      "a": {"type": "array", "items": {"type": "integer"}}, "o": {"type": "object"}}, "required": ["a"]})"))});
  const auto grammar = Compile(CallsFormat(kCallsBegin, tools, true, true));
  ASSERT_NE(grammar, nullptr);
  const std::string begin = std::string(kCallsBegin) + "<｜DSML｜invoke name=\"f\">\n",
                    parameter = "<｜DSML｜parameter name=\"a\" string=\"false\">",
                    end = "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  EXPECT_TRUE(Accepts(*grammar, begin + parameter + "[1, 2]" + end));
  EXPECT_TRUE(Accepts(*grammar, begin + parameter +
                                    "[1, 2]</｜DSML｜parameter>\n<｜DSML｜parameter name=\"o\" string=\"false\">"
                                    "{\"k\": [1, {\"l\": null}]}" +
                                    end));
  for (const std::string& text :
       {begin + "\n\n" + parameter + "[1]" + end, begin + parameter + "  [1]" + end, begin + parameter + "[  1]" + end,
        begin + parameter + "[1,  2]" + end, begin + parameter + "[1  ]" + end, begin + parameter + "[1]\n\n" + end}) {
    EXPECT_FALSE(Accepts(*grammar, text)) << text;
  }
}

TEST_F(Structured, ARegexWithoutABoundIsHeldToItsEnd) {
  const auto grammar = Compile({{"type", "regex"}, {"pattern", "[0-9]{3}-[a-c]+x"}});
  ASSERT_NE(grammar, nullptr);
  for (const std::string text : {"123-ax", "000-abcabcx"}) EXPECT_TRUE(Accepts(*grammar, text)) << text;
  EXPECT_TRUE(Accepts(*grammar, "123-" + std::string(1000, 'b') + "x"));
  for (const std::string text : {"12-ax", "123-x", "123-ab", "123-adx", "123-axx"})
    EXPECT_FALSE(Accepts(*grammar, text)) << text;
}

TEST_F(Structured, WhatIsNoFormatIsAnError) {
  EXPECT_FALSE(compiler_->Compile(R"({"type": "regex", "pattern": "a("})").ok());
  EXPECT_FALSE(compiler_->Compile(R"({"type": "grammar", "grammar": "root ::= nothing"})").ok());
  EXPECT_FALSE(compiler_->Compile(R"({"type": "json_schema", "json_schema": {"type": "purple"}})").ok());
  EXPECT_FALSE(compiler_->Compile(R"({"type": "json_schema", "json_schema": {"type": 5}})").ok());
  EXPECT_FALSE(compiler_->Compile("{").ok());
}

TEST(Schema, StrictOnesThatCannotBeEnforcedAreRefusedByKeyword) {
  CheckSchema(Person(), "schema");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not": {"type": "string"}})", "\"not\""},
      {R"({"properties": {"a": {"items": {"if": {}}}}})", "schema.properties.a.items: \"if\""},
      {R"({"type": "array", "uniqueItems": true})", "\"uniqueItems\""},
      {R"({"allOf": [{}, {}]})", "\"allOf\""},
      {R"({"anyOf": [{"type": "number", "multipleOf": 2}]})", "schema.anyOf[0]: multipleOf"},
      {R"({"anyOf": [{}], "properties": {}})", "\"properties\" next to \"anyOf\""},
      {R"({"type": "string", "pattern": "a", "maxLength": 3})", "\"maxLength\" next to \"pattern\""},
      {R"({"$ref": "http://x/y"})", "another document"},
      {R"({"$defs": {"a": {"contains": {}}}})", "\"contains\""},
      {R"(5)", "must be a JSON schema"},
  };
  for (const auto& [text, words] : cases) {
    try {
      CheckSchema(Json::parse(text), "schema");
      ADD_FAILURE() << text;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(words));
    }
  }
}

// Characters that JSON escapes are left out of a pattern if it has a choice; otherwise the pattern is left out.
TEST_F(Structured, PatternsGiveStringsOfJson) {
  const auto of = [&](const char* pattern) { return Compile(JsonFormat({{"type", "string"}, {"pattern", pattern}})); };
  const auto accented = of("\xC3\xA9[^a]{2}");
  EXPECT_TRUE(Accepts(*accented, "\"\xC3\xA9xy\""));
  for (const char* text : {"\"\xC3\xA9x\n\"", "\"\xC3\xA9\"\"\"", "\"\xC3\xA9\\x\"", "\"\xC3\xA9xa\"", "\"exy\""})
    EXPECT_FALSE(Accepts(*accented, text)) << text;
  const auto quoted = of("^\"[^\"]*\"$");
  EXPECT_TRUE(Accepts(*quoted, "\"free\""));
  EXPECT_FALSE(Accepts(*quoted, "\"\"x\"\""));
  const auto path = Compile(JsonFormat({{"type", "array"}, {"items", {{"type", "string"}, {"pattern", "\\\\"}}}}));
  EXPECT_TRUE(Accepts(*path, R"(["a\\b"])"));
  EXPECT_FALSE(Accepts(*path, R"(["\"])"));
}

// The author of a grammar decides how much work it makes. The work ends at a limit, which the error names.
class Bounded : public Structured {
 protected:
  void SetUp() override {
    compiler_ = nullptr;
    own_ = GrammarCompiler::Create(
        NanoTokenizer(), NanoTokenizer().vocab_size(), {Eos()},
        {.compile_s = 1, .compile_steps = 2'000'000, .token_s = 1, .token_steps = 100'000, .states = 300'000});
    if (own_ == nullptr) GTEST_SKIP() << "this build has no XGrammar";
  }
  // Compiles what takes milliseconds of its second. Tries again, because the machine may stand still for the rest.
  Result<std::shared_ptr<const Grammar>> CompileEasily(const std::string& format) {
    auto grammar = own_->Compile(format);
    for (int i = 0; i < 5 && !grammar.ok(); ++i) grammar = own_->Compile(format);
    return grammar;
  }
  // Each rule repeats the rule below twice: a text can be read in 2^40 ways.
  static std::string Ambiguous() {
    std::string rules = "root ::= r0\n";
    for (int i = 0; i < 40; ++i)
      rules += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " r" + std::to_string(i + 1) + " | \"a\"\n";
    return Dump({{"type", "grammar"}, {"grammar", rules + "r40 ::= \"a\"\n"}});
  }
  std::unique_ptr<GrammarCompiler> own_;
};

TEST_F(Bounded, CompilingEndsAtALimit) {
  Json properties = Json::object();
  for (int i = 0; i < 10000; ++i) properties["p" + std::to_string(i)] = {{"type", "string"}};
  const std::string long_text(900'000, 'x');
  const std::vector<Json> hostile = {
      JsonFormat({{"enum", Json::array({long_text})}}),
      JsonFormat({{"const", long_text}}),
      {{"type", "or"}, {"elements", Json::array({{{"type", "const_string"}, {"value", long_text}}})}},
      JsonFormat({{"type", "object"}, {"properties", properties}}),
      JsonFormat({{"type", "string"}, {"pattern", "^[a-z]{1,20000}$"}})};
  for (const Json& format : hostile) {
    const auto start = std::chrono::steady_clock::now();
    const auto grammar = own_->Compile(Dump(format));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument) << Dump(format).substr(0, 100);
    EXPECT_NE(grammar.status().message().find("the limit"), std::string::npos) << grammar.status().message();
    EXPECT_LT(took.count(), 60) << Dump(format).substr(0, 100);  // without a limit: minutes
  }
  EXPECT_TRUE(CompileEasily(Dump(JsonFormat(Person()))).ok());
}

// Each definition refers to the next one, so calls nest as deep as the chain is long.
TEST_F(Bounded, CompilingEndsAtADepth) {
  constexpr int kLength = 40000;
  const auto name = [](int i) { return std::to_string(i); };
  Json definitions = {{name(kLength), {{"type", "string"}}}};
  std::string rules = "root ::= r0\n";
  for (int i = 0; i < kLength; ++i) {
    definitions[name(i)] = {{"$ref", "#/$defs/" + name(i + 1)}};
    rules += "r" + name(i) + " ::= r" + name(i + 1) + "{1,2}\n";
  }
  const std::vector<Json> hostile = {JsonFormat({{"$ref", "#/$defs/0"}, {"$defs", definitions}}),
                                     {{"type", "grammar"}, {"grammar", rules + "r" + name(kLength) + " ::= \"a\"\n"}}};
  for (const Json& format : hostile) {
    const auto start = std::chrono::steady_clock::now();
    const auto grammar = own_->Compile(Dump(format));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(grammar.status().message(),
                ::testing::AnyOf(::testing::HasSubstr("nest too deeply"), ::testing::HasSubstr("the limit")));
    EXPECT_LT(took.count(), 60);
  }
}

int64_t HeapBytes() {
  const struct mallinfo2 heap = ::mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

// Each literal has about 5,000 states whose masks contain a few tokens, and no two grammars share one.
TEST_F(Bounded, WhatIsKeptHasABound) {
  constexpr int64_t kKept = 4 << 20, kMasks = 4 << 20;
  const auto compiler = GrammarCompiler::Create(NanoTokenizer(), NanoTokenizer().vocab_size(), {Eos()},
                                                {.kept_bytes = kKept, .masks_bytes = kMasks});
  std::mt19937 random(5);
  const auto compile = [&] {
    std::string text;
    for (int i = 0; i < 5000; ++i) text += static_cast<char>('a' + random() % 26);
    EXPECT_TRUE(compiler->Compile(Dump({{"type", "const_string"}, {"value", text}})).ok());
  };
  compile();  // includes the memory of the vocabulary
  const int64_t before = HeapBytes();
  if (before == 0) GTEST_SKIP() << "another allocator's heap";
  for (int i = 0; i < 40; ++i) compile();
  EXPECT_LT(HeapBytes() - before, kKept + kMasks);
}

TEST_F(Bounded, CompilingCanBeGivenUpAndTriedAgain) {
  const std::string format = Dump(JsonFormat(Person()));
  const auto flag = std::make_shared<std::atomic<bool>>(true);
  EXPECT_EQ(own_->Compile(format, flag).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(own_->Find(format), nullptr);
  EXPECT_TRUE(CompileEasily(format).ok());
  EXPECT_NE(own_->Find(format), nullptr);
}

// Calls that need not follow a grammar do not wait again for one that takes too long.
TEST_F(Bounded, AFormatThatFailedIsNotTriedAgainIfItNeedNotBe) {
  const std::string bad = R"({"type": "regex", "pattern": "a("})", good = Dump(JsonFormat(Person()));
  const auto failed = own_->Compile(bad, nullptr, /*seconds=*/5);
  EXPECT_EQ(failed.status().code(), StatusCode::kInvalidArgument);
  const auto given_up = std::make_shared<std::atomic<bool>>(true);  // whoever tries again is cancelled
  EXPECT_EQ(own_->Compile(bad, given_up, 5).status().message(), failed.status().message());
  EXPECT_EQ(own_->Find(bad), nullptr);
  EXPECT_EQ(own_->Compile(good, nullptr, 1e-9).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(own_->Compile(good, nullptr, 5).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(own_->Compile(good).ok());  // with the usual limit it is, and the result stays
  EXPECT_TRUE(own_->Compile(good, nullptr, 5).ok());
  EXPECT_NE(own_->Find(good), nullptr);
}

TEST_F(Bounded, ATokenIsTakenInAtALimit) {
  const auto grammar = CompileEasily(Ambiguous());
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  const auto matcher = (*grammar)->NewMatcher();
  const TokenId a = *NanoTokenizer().FindToken("a");
  int tokens = 0;
  while (matcher->status().ok() && tokens < 2000) {
    (void)matcher->Allowed();
    (void)matcher->Accept(a);
    ++tokens;
  }
  EXPECT_EQ(matcher->status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(matcher->status().message().find("the limit"), std::string::npos) << matcher->status().message();
  EXPECT_LT(tokens, 2000);
  EXPECT_FALSE(matcher->Accept(a));  // and it stays failed
  const auto next = (*grammar)->NewMatcher();
  EXPECT_TRUE(next->Accept(a));
}

}  // namespace
}  // namespace dsv4::server
