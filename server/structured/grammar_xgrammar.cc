// Grammars by XGrammar (Apache-2.0). Its exceptions end here.
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "grammar.h"

// XGrammar asks for these. What it warns of, server/structured/schema.cc has checked before.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }
void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar

namespace dsv4::server {

namespace {

constexpr int kThreads = 2;                        // of one compilation
constexpr int64_t kCacheBytes = int64_t{256} << 20;  // of compiled grammars
constexpr size_t kMaxMessage = 500;

std::string Shorten(std::string text) {
  if (text.size() > kMaxMessage) text.resize(kMaxMessage);
  return text;
}

class XgMatcher : public GrammarMatcher {
 public:
  explicit XgMatcher(const xgrammar::CompiledGrammar& grammar)
      : matcher_(grammar), mask_(static_cast<size_t>(xgrammar::GetBitmaskSize(
                               grammar.GetTokenizerInfo().GetVocabSize()))) {}

  std::span<const uint32_t> Allowed() override {
    int64_t shape = static_cast<int64_t>(mask_.size());
    DLTensor tensor{.data = mask_.data(),
                    .device = {.device_type = kDLCPU, .device_id = 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = &shape,
                    .strides = nullptr,
                    .byte_offset = 0};
    try {
      if (!matcher_.FillNextTokenBitmask(&tensor)) return {};
    } catch (const std::exception&) {  // the text is over
      std::fill(mask_.begin(), mask_.end(), 0);
    }
    return {reinterpret_cast<const uint32_t*>(mask_.data()), mask_.size()};
  }

  bool Accept(TokenId id) override {
    try {
      return !matcher_.IsTerminated() && matcher_.AcceptToken(id);
    } catch (const std::exception&) {
      return false;
    }
  }
  bool AcceptText(std::string_view text) override {
    try {
      return !matcher_.IsTerminated() && matcher_.AcceptString(std::string(text));
    } catch (const std::exception&) {
      return false;
    }
  }
  bool complete() const override { return matcher_.IsTerminated() || matcher_.IsCompleted(); }

 private:
  xgrammar::GrammarMatcher matcher_;
  std::vector<int32_t> mask_;
};

class XgGrammar : public Grammar {
 public:
  explicit XgGrammar(xgrammar::CompiledGrammar grammar) : grammar_(std::move(grammar)) {}
  std::unique_ptr<GrammarMatcher> NewMatcher() const override { return std::make_unique<XgMatcher>(grammar_); }

 private:
  const xgrammar::CompiledGrammar grammar_;
};

class XgCompiler : public GrammarCompiler {
 public:
  XgCompiler(const Tokenizer& tokenizer, int64_t vocab_size, std::vector<TokenId> eos_ids)
      : tokenizer_(tokenizer), vocab_size_(vocab_size), eos_ids_(std::move(eos_ids)) {}

  Result<std::shared_ptr<const Grammar>> Compile(const std::string& format) override {
    try {
      std::call_once(created_, [this] { CreateCompiler(); });
      return std::shared_ptr<const Grammar>(std::make_shared<XgGrammar>(compiler_->CompileStructuralTag(
          R"({"type":"structural_tag","format":)" + format + "}")));
    } catch (const std::exception& error) {
      return InvalidArgument(Shorten(error.what()));
    }
  }

 private:
  void CreateCompiler() {
    // An empty text stands for a token that no grammar allows.
    std::vector<std::string> texts(static_cast<size_t>(vocab_size_));
    const auto count = static_cast<TokenId>(std::min(tokenizer_.vocab_size(), vocab_size_));
    for (TokenId id = 0; id < count; ++id) {
      const std::string_view bytes = tokenizer_.TokenBytes(id);
      if (!tokenizer_.IsAdded(id) || bytes == kDsmlMarker) texts[static_cast<size_t>(id)] = bytes;
    }
    const xgrammar::TokenizerInfo info(texts, xgrammar::VocabType::RAW, static_cast<int>(vocab_size_), eos_ids_);
    compiler_.emplace(info, kThreads, /*cache_enabled=*/true, kCacheBytes);
  }

  const Tokenizer& tokenizer_;
  const int64_t vocab_size_;
  const std::vector<TokenId> eos_ids_;
  std::once_flag created_;
  std::optional<xgrammar::GrammarCompiler> compiler_;
};

}  // namespace

std::unique_ptr<GrammarCompiler> GrammarCompiler::Create(const Tokenizer& tokenizer, int64_t vocab_size,
                                                         std::vector<TokenId> eos_ids) {
  return std::make_unique<XgCompiler>(tokenizer, vocab_size, std::move(eos_ids));
}

}  // namespace dsv4::server
