// Grammars by XGrammar (Apache-2.0). No exception of XGrammar leaves this file.
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "server/structured/grammar.h"
#include "server/structured/work.h"

// XGrammar requires these functions. server/structured/schema.cc has already checked what XGrammar would warn about.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }
void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar

namespace dsv4::server {

namespace {

constexpr int kThreads = 1;  // of one compilation: the caller's thread, because its budget counts
constexpr size_t kMaxMessage = 500;

// Returns the last part of a message of XGrammar, without the C++ conditions that failed before it.
std::string MessageOf(std::string text) {
  for (const std::string_view words : {") is false: ", "Invalid structural tag error: "}) {
    if (const size_t at = text.find(words); at != std::string::npos) text.erase(0, at + words.size());
  }
  if (text.empty()) return "the compiler cannot read it";
  if (text.size() > kMaxMessage) text.resize(kMaxMessage);
  return text;
}

// The number of states that XGrammar's parsers keep for all texts together.
using Counter = std::shared_ptr<std::atomic<int64_t>>;

class XgMatcher : public GrammarMatcher {
 public:
  XgMatcher(const xgrammar::CompiledGrammar& grammar, const GrammarLimits& limits, Counter states_of_all,
            CancelFlag cancelled)
      : limits_(limits),
        cancelled_(std::move(cancelled)),
        states_of_all_(std::move(states_of_all)),
        mask_(static_cast<size_t>(xgrammar::GetBitmaskSize(grammar.GetTokenizerInfo().GetVocabSize()))) {
    (void)Work([&] { return matcher_.emplace(grammar), true; });
  }
  ~XgMatcher() override { *states_of_all_ -= states_; }

  std::span<const uint32_t> Allowed() override {
    int64_t shape = static_cast<int64_t>(mask_.size());
    DLTensor tensor{.data = mask_.data(),
                    .device = {.device_type = kDLCPU, .device_id = 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = &shape,
                    .strides = nullptr,
                    .byte_offset = 0};
    bool some = true;
    const bool done = Work([&] { return some = matcher_->FillNextTokenBitmask(&tensor), true; });
    if (!done) std::fill(mask_.begin(), mask_.end(), 0);  // the text ends here
    if (done && !some) return {};
    return {reinterpret_cast<const uint32_t*>(mask_.data()), mask_.size()};
  }

  bool Accept(TokenId id) override {
    const int64_t before = states_;
    if (!Work([&] { return !matcher_->IsTerminated() && matcher_->AcceptToken(id); }, /*keeps_states=*/true))
      return false;
    last_states_.push_back(states_ - before);
    if (last_states_.size() > static_cast<size_t>(kMaxDraftTokens)) last_states_.pop_front();
    return true;
  }
  void Rollback(size_t tokens) override {
    if (tokens == 0 || !Work([&] { return matcher_->Rollback(static_cast<int>(tokens)), true; })) return;
    for (; tokens > 0 && !last_states_.empty(); --tokens) {
      AddStates(-last_states_.back());
      last_states_.pop_back();
    }
  }
  bool AcceptText(std::string_view text) override {
    return Work([&] { return !matcher_->IsTerminated() && matcher_->AcceptString(std::string(text)); },
                /*keeps_states=*/true);
  }
  bool complete() const override { return status_.ok() && (matcher_->IsTerminated() || matcher_->IsCompleted()); }
  const Status& status() const override { return status_; }

 private:
  template <typename Call>
  bool Work(const Call& call, bool keeps_states = false) {
    if (!status_.ok()) return false;
    WorkBudget budget(limits_.token_s, limits_.token_steps, cancelled_.get());
    bool result = false;
    try {
      result = call();
    } catch (const OutOfWork& out) {
      status_ = Status(out.code,
                       std::string("the grammar of the output is too much work for one token: ") + out.what());
    } catch (const std::bad_alloc&) {
      status_ = ResourceExhausted("no memory for the grammar of the output");
    } catch (const std::exception&) {  // the library throws this for "not allowed"
    }
    if (keeps_states && result) KeepStates(budget.steps());  // a rejected token keeps no states
    return result && status_.ok();
  }

  void AddStates(int64_t states) {
    states_ += states;
    *states_of_all_ += states;
  }
  void KeepStates(int64_t states) {
    AddStates(states);
    if (states_ > limits_.states) {
      status_ = InvalidArgument("the grammar of the output has led to more than " + std::to_string(limits_.states) +
                                " states, the limit");
    } else if (*states_of_all_ > limits_.states_of_all) {
      status_ = ResourceExhausted("the grammars of all outputs have led to more than " +
                                  std::to_string(limits_.states_of_all) + " states, the limit; try again later");
    }
  }

  const GrammarLimits limits_;
  const CancelFlag cancelled_;
  const Counter states_of_all_;
  std::optional<xgrammar::GrammarMatcher> matcher_;
  std::vector<int32_t> mask_;
  int64_t states_ = 0;
  std::deque<int64_t> last_states_;  // the part of states_ of each token that may be rolled back
  Status status_;
};

class XgGrammar : public Grammar {
 public:
  XgGrammar(xgrammar::CompiledGrammar grammar, const GrammarLimits& limits, Counter states)
      : grammar_(std::move(grammar)), limits_(limits), states_(std::move(states)) {}
  std::unique_ptr<GrammarMatcher> NewMatcher(CancelFlag cancelled) const override {
    return std::make_unique<XgMatcher>(grammar_, limits_, states_, std::move(cancelled));
  }
  int64_t bytes() const { return static_cast<int64_t>(grammar_.MemorySizeBytes()); }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const GrammarLimits limits_;
  const Counter states_;
};

// Recently used grammars, by their formats, and why a format has none.
class GrammarCache {
 public:
  explicit GrammarCache(int64_t max_bytes) : max_bytes_(max_bytes) {}

  std::optional<Result<std::shared_ptr<const Grammar>>> Find(const std::string& format) {
    const std::lock_guard lock(mutex_);
    const auto at = places_.find(format);
    if (at == places_.end()) return std::nullopt;
    entries_.splice(entries_.begin(), entries_, at->second);
    return at->second->grammar;
  }
  void Add(const std::string& format, Result<std::shared_ptr<const Grammar>> grammar, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (const auto at = places_.find(format); at != places_.end()) {
      if (at->second->grammar.ok() || !grammar.ok()) return;
      Remove(at->second);
    }
    bytes += static_cast<int64_t>(format.size());
    std::list<Entry> entry;
    entry.push_front({.format = format, .grammar = std::move(grammar), .bytes = bytes});
    places_.emplace(entry.front().format, entry.begin());
    entries_.splice(entries_.begin(), entry);
    bytes_ += bytes;
    while (bytes_ > max_bytes_ && entries_.size() > 1) {
      Remove(std::prev(entries_.end()));
    }
  }

 private:
  struct Entry {
    std::string format;
    Result<std::shared_ptr<const Grammar>> grammar;
    int64_t bytes;
  };
  void Remove(std::list<Entry>::iterator entry) {
    bytes_ -= entry->bytes;
    places_.erase(entry->format);
    entries_.erase(entry);
  }

  const int64_t max_bytes_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> places_;
  int64_t bytes_ = 0;
};

class XgCompiler : public GrammarCompiler {
 public:
  XgCompiler(const Tokenizer& tokenizer, int64_t vocab_size, std::vector<TokenId> eos_ids, const GrammarLimits& limits)
      : tokenizer_(tokenizer),
        vocab_size_(vocab_size),
        eos_ids_(std::move(eos_ids)),
        limits_(limits),
        cache_(limits.kept_bytes) {}

  Result<std::shared_ptr<const Grammar>> Compile(const std::string& format, CancelFlag cancelled,
                                                 double seconds) override {
    if (const auto found = cache_.Find(format); found && (found->ok() || seconds > 0)) return *found;
    DSV4_RETURN_IF_ERROR(Try([this] { std::call_once(created_, [this] { CreateCompiler(); }); }));
    const WorkBudget budget(seconds > 0 ? seconds : limits_.compile_s, limits_.compile_steps, cancelled.get());
    std::shared_ptr<const XgGrammar> grammar;
    const Status status = Try([&] {
      grammar = std::make_shared<const XgGrammar>(
          compiler_->CompileStructuralTag(R"({"type":"structural_tag","format":)" + format + "}"), limits_, states_);
      cache_.Add(format, std::shared_ptr<const Grammar>(grammar), grammar->bytes());
    });
    if (status.code() == StatusCode::kInvalidArgument) cache_.Add(format, status, 0);
    DSV4_RETURN_IF_ERROR(status);
    return std::shared_ptr<const Grammar>(std::move(grammar));
  }

  std::shared_ptr<const Grammar> Find(const std::string& format) override {
    const auto found = cache_.Find(format);
    return found && found->ok() ? **found : nullptr;
  }

 private:
  // Turns the library's exceptions into a status.
  template <typename Call>
  static Status Try(const Call& call) {
    try {
      call();
      return {};
    } catch (const OutOfWork& out) {
      return Status(out.code, std::string(out.what()) + "; use fewer and shorter literals, properties and repetitions");
    } catch (const std::bad_alloc&) {
      return ResourceExhausted("no memory to compile the grammar of the output");
    } catch (const std::exception& error) {
      return InvalidArgument(MessageOf(error.what()));
    }
  }

  void CreateCompiler() {
    // A token with an empty text is never allowed.
    std::vector<std::string> texts(static_cast<size_t>(vocab_size_));
    const auto count = static_cast<TokenId>(std::min(tokenizer_.vocab_size(), vocab_size_));
    for (TokenId id = 0; id < count; ++id) {
      const std::string_view bytes = tokenizer_.TokenBytes(id);
      if (!tokenizer_.IsAdded(id) || bytes == kDsmlMarker) texts[static_cast<size_t>(id)] = bytes;
    }
    const xgrammar::TokenizerInfo info(texts, xgrammar::VocabType::RAW, static_cast<int>(vocab_size_), eos_ids_);
    compiler_.emplace(info, kThreads, /*cache_enabled=*/true, 3 * limits_.masks_bytes);  // the masks get a third of it
  }

  const Tokenizer& tokenizer_;
  const int64_t vocab_size_;
  const std::vector<TokenId> eos_ids_;
  const GrammarLimits limits_;
  const Counter states_ = std::make_shared<std::atomic<int64_t>>(0);
  std::once_flag created_;
  std::optional<xgrammar::GrammarCompiler> compiler_;
  GrammarCache cache_;
};

}  // namespace

std::unique_ptr<GrammarCompiler> GrammarCompiler::Create(const Tokenizer& tokenizer, int64_t vocab_size,
                                                         std::vector<TokenId> eos_ids, const GrammarLimits& limits) {
  return std::make_unique<XgCompiler>(tokenizer, vocab_size, std::move(eos_ids), limits);
}

}  // namespace dsv4::server
