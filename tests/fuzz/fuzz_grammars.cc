// Grammars of structured output, and texts that they constrain. The compiler refuses a schema, an expression or a
// grammar with one message, or compiles it within the limits. Then each mask allows exactly the tokens that the matcher
// accepts, and no text exceeds the limits.
//   byte 0: kind (schema, regular expression, EBNF, schema of a tool, structural tag);  then the grammar;  0xFF;  then
//   the text, one token per byte, 0x01 for the marker of tool calls
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dsv4/tokenizer.h"
#include "fuzz/require.h"
#include "server/base/json.h"
#include "server/structured/formats.h"
#include "server/structured/grammar.h"
#include "server/structured/schema.h"
#include "server/structured/structural_tag.h"

namespace {

using namespace dsv4;
using namespace dsv4::server;
using dsv4::fuzz::Require;

constexpr size_t kMaxText = 60;

struct World {
  World() : tokenizer(std::move(Tokenizer::Load(std::string(DSV4_SOURCE_DIR) + "/models/nano")).value()) {
    bytes.fill(-1);
    for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
      const std::string_view text = tokenizer->TokenBytes(id);
      if (text.size() == 1 && !tokenizer->IsAdded(id)) bytes[static_cast<unsigned char>(text[0])] = id;
    }
    bytes[1] = tokenizer->FindToken(kDsmlMarker).value_or(-1);
    // Low limits, so that a slow grammar is not reported as a finding.
    compiler = GrammarCompiler::Create(
        *tokenizer, tokenizer->vocab_size(), {tokenizer->eos_token_id()},
        {.compile_s = 3, .compile_steps = 200'000, .token_s = 1, .token_steps = 100'000, .states = 500'000});
    Require(compiler != nullptr);  // the build has XGrammar
  }
  std::unique_ptr<Tokenizer> tokenizer;
  std::array<TokenId, 256> bytes;  // the token of each byte; -1: none
  std::unique_ptr<GrammarCompiler> compiler;
};

// Returns the format that is compiled, or null if the server refuses the request before that.
std::optional<Json> FormatOf(uint8_t kind, std::string_view text) {
  try {
    if (kind == 0 || kind == 3) {
      const Json schema = ParseJson(std::string(text)).root();
      try {
        CheckSchema(schema, "schema");
      } catch (const ApiError& error) {
        Require(error.status == 400);
      }
      if (kind == 0) return JsonFormat(schema);
      return CallsFormat(kCallsBegin, {{{"function", {{"name", "f"}, {"parameters", schema}}}}}, true, true);
    }
    if (kind == 4) return TagFormat(ParseJson(text).root(), "structural_tag");
    const Json quoted = ParseJson(Dump(Json(std::string(text)))).root();  // as in a request
    if (kind == 1) return Json({{"type", "regex"}, {"pattern", quoted}});
    return Json({{"type", "grammar"}, {"grammar", quoted}});
  } catch (const ApiError&) {
    return {};
  }
}

bool Allows(std::span<const uint32_t> mask, TokenId id) {
  return mask.empty() || (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

void CheckStatus(const Status& status) {
  Require(status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kResourceExhausted);
  Require(!status.message().empty());
}

void CheckText(const World& world, const Grammar& grammar, std::string_view text) {
  const auto matcher = grammar.NewMatcher();
  for (const char c : text) {
    const TokenId id = world.bytes[static_cast<unsigned char>(c)];
    const std::span<const uint32_t> mask = matcher->Allowed();
    if (!matcher->status().ok()) return CheckStatus(matcher->status());
    Require(Allows(mask, world.tokenizer->eos_token_id()) == matcher->complete());
    if (id < 0) continue;
    const bool allowed = Allows(mask, id), accepted = matcher->Accept(id);
    if (!matcher->status().ok()) return CheckStatus(matcher->status());
    Require(allowed == accepted);
    if (!accepted) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const World& world = *new World;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t split = rest.find('\xFF');
  const std::optional<Json> format = FormatOf(data[0] % 5, rest.substr(0, split));
  if (!format) return 0;
  const auto grammar = world.compiler->Compile(Dump(*format));
  if (!grammar.ok()) {
    CheckStatus(grammar.status());
    return 0;
  }
  if (split != std::string_view::npos) CheckText(world, **grammar, rest.substr(split + 1).substr(0, kMaxText));
  return 0;
}
