// Texts of tool calls, and messages assembled from deltas.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/output_parser.h"
#include "text/brief.h"

namespace dsv4::test {

inline std::string Param(const std::string& name, const std::string& flag, const std::string& value) {
  return "<｜DSML｜parameter name=\"" + name + "\" string=\"" + flag + "\">" + value + "</｜DSML｜parameter>\n";
}
inline std::string Invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜invoke name=\"" + name + "\">\n" + parameters + "</｜DSML｜invoke>\n";
}
inline std::string Calls(const std::string& invokes) {
  return "<｜DSML｜tool_calls>\n" + invokes + "</｜DSML｜tool_calls>";
}

// Tools with parameters of each type.
inline std::shared_ptr<const std::vector<ToolSignature>> Tools() {
  return std::make_shared<std::vector<ToolSignature>>(
      std::vector<ToolSignature>{{.name = "run",
                                  .parameters = {{.name = "cmd", .types = kStringType, .required = true},
                                                 {.name = "timeout", .types = kIntegerType},
                                                 {.name = "factor", .types = kNumberType},
                                                 {.name = "deep", .types = kBooleanType},
                                                 {.name = "tags", .types = kArrayType | kNullType},
                                                 {.name = "any", .types = kAnyType},
                                                 {.name = "either", .types = kStringType | kIntegerType}}},
                                 {.name = "two",
                                  .parameters = {{.name = "a", .types = kStringType, .required = true},
                                                 {.name = "b", .types = kStringType, .required = true}}},
                                 {.name = "own", .parameters = {{.name = "input", .types = kStringType}}}});
}

// Assembles a message from deltas alone and checks their order.
class Collector {
 public:
  void Take(const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& d : deltas) {
      using Kind = OutputDelta::Kind;
      switch (d.kind) {
        case Kind::kReasoning:
          message_.reasoning_content += d.text;
          break;
        case Kind::kContent:
          message_.content += d.text;
          break;
        case Kind::kToolCallBegin:
          EXPECT_FALSE(open_);
          EXPECT_EQ(d.index, static_cast<int>(message_.tool_calls.size()));
          message_.tool_calls.push_back({.id = "", .name = d.text, .arguments = ""});
          open_ = true;
          break;
        case Kind::kToolCallArguments:
          EXPECT_TRUE(open_);
          EXPECT_EQ(d.index, static_cast<int>(message_.tool_calls.size()) - 1);
          EXPECT_FALSE(d.text.empty());
          message_.tool_calls.back().arguments += d.text;
          break;
        case Kind::kToolCallEnd:
          EXPECT_TRUE(open_);
          open_ = false;
          break;
      }
    }
  }
  ParsedMessage Result(const OutputParser& parser) {
    EXPECT_FALSE(open_);
    message_.cut_off = parser.message().cut_off;
    EXPECT_EQ(Brief(message_), Brief(parser.message()));
    return message_;
  }

 private:
  ParsedMessage message_;
  bool open_ = false;
};

inline ParsedMessage ParsePieces(const std::vector<std::string_view>& pieces, const OutputParserOptions& options) {
  OutputParser parser(options);
  Collector collector;
  for (const std::string_view piece : pieces) collector.Take(parser.Push(piece));
  collector.Take(parser.Finish());
  return collector.Result(parser);
}

}  // namespace dsv4::test
