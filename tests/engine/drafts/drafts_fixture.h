// Compares decoding with drafts to decoding without: results that must be equal, and drafters that know the next tokens
// or do not.
#pragma once

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/sampling.h"
#include "engine/decode/decode_loop.h"
#include "engine/drafts/device_round.h"
#include "engine/drafts/drafted_loop.h"
#include "engine/drafts/lookup_drafter.h"
#include "engine/drafts/round_loop.h"
#include "engine/engine_impl.h"
#include "support/random.h"
#include "support/sessions.h"
#include "support/visible_state.h"

namespace dsv4::test {

// One sequence of a batch.
struct DraftWanted {
  int64_t prompt = 0;  // tokens
  SamplingParams sampling = {};
  int64_t max_tokens = 0;
  std::vector<TokenId> stop_ids = {};
  int64_t ends_after = 1 << 20;  // draws, by on_token
  bool masked = false;           // forbids a third of the ids at each draw, a different third each time
  bool cut = false;              // drafts end before the first token that the mask forbids
  bool speculate = true;
};

// The result of one sequence.
struct DraftOutcome {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenId>> top;
  std::vector<TokenId> session;  // its tokens at the end
  std::vector<size_t> lengths;   // of the session at every draw
  std::vector<uint8_t> state;    // state that a next token could read
  // state that a next draft could read, if the rings of a module hold everything; otherwise empty
  std::vector<uint8_t> module_state;
  std::vector<float> next_row;  // logits of one token more
  int64_t drafted = 0;          // tokens that came with the previous one

  bool operator==(const DraftOutcome& o) const {
    return ids == o.ids && logprobs == o.logprobs && top == o.top && session == o.session && lengths == o.lengths &&
           state == o.state && next_row == o.next_row &&
           (module_state.empty() || o.module_state.empty() || module_state == o.module_state);
  }
};

enum class Guess { kRight, kWrong, kHalf, kRandom };

// Knows the tokens of the sequences.
class Oracle : public Drafter {
 public:
  Oracle(Guess guess, const std::vector<DraftOutcome>& known, int64_t vocab)
      : guess_(guess), known_(known), vocab_(vocab) {}

  void Watch(const Session* session, size_t sequence, size_t begin) { watched_[session] = {sequence, begin}; }
  int64_t max_tokens() const override { return kMaxDraftTokens; }
  Status Propose(std::span<Draft> drafts) override {
    ++proposals;
    for (Draft& d : drafts) {
      if (d.most == 0) continue;
      const auto [sequence, begin] = watched_.at(d.session);
      const std::vector<TokenId>& ids = known_[sequence].ids;
      for (int64_t i = 0; i < d.most; ++i) {
        d.tokens.push_back(GuessAt(ids, d.session->tokens().size() - begin + static_cast<size_t>(i)));
        d.confidence.push_back(0.5f);
      }
    }
    return {};
  }
  // Its prediction also does not depend on the host.
  bool Foresees(int64_t tokens, std::vector<float>* confidence) const override {
    confidence->insert(confidence->end(), static_cast<size_t>(tokens), 0.5f);
    return true;
  }
  Known KnownOf(const SessionImpl& session) override {
    const auto [sequence, begin] = watched_.at(&session);
    const std::vector<TokenId>& ids = known_[sequence].ids;
    std::vector<TokenId>& foreseen = foreseen_[sequence];
    foreseen.clear();
    for (size_t i = 0; i < ids.size() + kMaxDraftTokens; ++i) foreseen.push_back(GuessAt(ids, i));
    return {.tokens = foreseen, .from = static_cast<int64_t>(begin) + 1};
  }
  void Observe(const Draft& draft, int64_t accepted) override {
    ++verifications;
    proposed += static_cast<int64_t>(draft.tokens.size());
    all_accepted += accepted;
  }

  int64_t proposals = 0, verifications = 0, proposed = 0, all_accepted = 0;  // proposals: of batches, by the host

 private:
  TokenId GuessAt(const std::vector<TokenId>& ids, size_t at) {
    const TokenId right = at < ids.size() ? ids[at] : 0;
    const bool is_right = guess_ == Guess::kRight || (guess_ == Guess::kHalf && random_.Chance(0.5));
    if (guess_ == Guess::kRandom) return static_cast<TokenId>(random_.Index(vocab_));
    return is_right ? right : (right + 1) % static_cast<TokenId>(vocab_);
  }

  const Guess guess_;
  const std::vector<DraftOutcome>& known_;
  const int64_t vocab_;
  Random random_{77};
  std::map<size_t, std::vector<TokenId>> foreseen_;  // by sequence
  // its number, and its tokens without the drawn ones
  std::map<const Session*, std::pair<size_t, size_t>> watched_;
};

// The drafts of another drafter; counts how often the host requests them.
class Counted : public Drafter {
 public:
  explicit Counted(std::unique_ptr<Drafter> inner) : inner_(std::move(inner)) {}
  int64_t max_tokens() const override { return inner_->max_tokens(); }
  Status Propose(std::span<Draft> drafts) override { return ++proposals, inner_->Propose(drafts); }
  bool Foresees(int64_t tokens, std::vector<float>* confidence) const override {
    return inner_->Foresees(tokens, confidence);
  }
  bool makes_at_once() const override { return inner_->makes_at_once(); }
  bool was_first() const override { return inner_->was_first(); }
  void Observe(const Draft& draft, int64_t accepted) override { ++verifications, inner_->Observe(draft, accepted); }

  int64_t proposals = 0, verifications = 0;

 private:
  std::unique_ptr<Drafter> inner_;
};

using DecodeFn = std::function<Status(std::span<const DecodeItem> items, const TokenFn& on_token)>;

// Decode as if a device drew the tokens. The device of `of` takes that role; `of` outlives the function.
inline DecodeFn AsOnADevice(Engine& of) {
  auto& engine = dynamic_cast<EngineImpl&>(of);
  struct Made {
    RankDecodeSteps steps;
    DeviceRound step;
    RankDraftedSteps drafted;
    explicit Made(EngineImpl& of)
        : steps(of.ranks(), of.info().vocab_size), step(steps, of.info()), drafted(steps, of.info().vocab_size) {}
  };
  return [&engine, made = std::make_shared<Made>(engine)](std::span<const DecodeItem> items, const TokenFn& on_token) {
    const ModelInfo& info = engine.info();
    std::vector<LiveItem> live = LiveItemsOf(items);
    DecodeLoop loop(made->steps, info, items, on_token, live);
    const auto max_rows = [](int64_t) { return DeviceRound::kMaxRows; };
    RoundLoop rounds(info, engine.drafting(), items, on_token, live, made->step, max_rows);
    rounds.UseWithoutDrafts(&loop);
    DraftedLoop ahead(made->drafted, info, items, on_token, live);
    rounds.UseAhead(&ahead);
    return rounds.Run();
  };
}

// Runs batches of one engine.
class DraftedDecode {
 public:
  explicit DraftedDecode(Engine& engine) : engine_(dynamic_cast<EngineImpl&>(engine)) {}

  // Replaces Engine::Decode.
  void UseDecode(DecodeFn decode) { decode_ = std::move(decode); }

  // Decodes with drafts of up to `most` tokens, all of which are verified; null: none. Returns the drafter.
  std::unique_ptr<Drafter> DecodeWith(std::unique_ptr<Drafter> drafter, int64_t most, std::span<const DecodeItem> items,
                                      const TokenFn& on_token) {
    Drafting& drafting = engine_.drafting();
    drafting.drafter = std::move(drafter);
    drafting.max_tokens = most;
    const Status status = decode_ ? decode_(items, on_token) : engine_.Decode(items, on_token);
    EXPECT_TRUE(status.ok()) << status.message();
    return std::move(drafting.drafter);
  }

  // The results of a batch.
  std::vector<DraftOutcome> Run(const std::vector<DraftWanted>& wanted, std::unique_ptr<Drafter> drafter,
                                int64_t most) {
    const int64_t v = engine_.info().vocab_size;
    auto* oracle = dynamic_cast<Oracle*>(drafter.get());
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<Sampler>> samplers;
    std::vector<std::vector<uint32_t>> masks(wanted.size());
    std::vector<DecodeItem> items;
    std::vector<DraftOutcome> out(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      const DraftWanted& w = wanted[i];
      // A text with some repetitions, so that lookup finds drafts.
      std::vector<TokenId> prompt = SomeTokens(w.prompt, i + 1, std::min<int64_t>(v, 40));
      sessions.push_back(std::move(engine_.NewSession()).value());
      EXPECT_TRUE(sessions.back()->Append(prompt, LogitRows::kNone, nullptr).ok());
      samplers.push_back(std::move(Sampler::Create(w.sampling, v)).value());
      samplers.back()->AddPrompt(prompt);
      if (oracle != nullptr) oracle->Watch(sessions.back().get(), i, prompt.size());
      items.push_back({.session = sessions.back().get(),
                       .sampler = samplers.back().get(),
                       .first = prompt[0],
                       .max_tokens = w.max_tokens,
                       .stop_ids = w.stop_ids,
                       .speculate = w.speculate});
      if (w.masked) {
        items.back().allowed = [&masks, &out, v, i]() -> std::span<const uint32_t> {
          masks[i].assign(static_cast<size_t>((v + 31) / 32), 0);
          for (int64_t id = static_cast<int64_t>(out[i].ids.size() % 3); id < v; id += 3)
            masks[i][static_cast<size_t>(id / 32)] |= 1u << (id % 32);
          return masks[i];
        };
      }
      if (w.cut) {
        items.back().limit_draft = [&out, i](std::span<const TokenId> drafted) {
          size_t n = 0;
          while (n < drafted.size() && static_cast<size_t>(drafted[n]) % 3 == (out[i].ids.size() + n) % 3) ++n;
          return n;
        };
      }
    }
    const TokenFn on_token = [&](size_t i, const SampledToken& token) {
      DraftOutcome& o = out[i];
      o.ids.push_back(token.id);
      o.logprobs.push_back(token.logprob);
      o.top.emplace_back();
      for (const TokenLogprob& other : token.top) o.top.back().push_back(other.id);
      o.lengths.push_back(sessions[i]->tokens().size());
      o.drafted += token.drafted ? 1 : 0;
      return static_cast<int64_t>(o.ids.size()) < wanted[i].ends_after;
    };
    engine_.drafting().drafter = DecodeWith(std::move(drafter), most, items, on_token);
    for (const DraftOutcome& o : out) drafted_ += o.drafted;
    for (size_t i = 0; i < wanted.size(); ++i) {
      auto& session = static_cast<SessionImpl&>(*sessions[i]);
      out[i].session = session.tokens();
      TakeState(session, &out[i]);
      if (static_cast<int64_t>(session.tokens().size()) < engine_.info().max_context) {
        EXPECT_TRUE(sessions[i]->Append({&out[i].ids.back(), 1}, LogitRows::kLast, &out[i].next_row).ok());
      }
    }
    return out;
  }

  // The differences from a run without drafts, as text; "": none.
  std::string Differences(const std::vector<DraftWanted>& wanted, const std::vector<DraftOutcome>& plain,
                          std::unique_ptr<Drafter> drafter, int64_t most) {
    const std::vector<DraftOutcome> got = Run(wanted, std::move(drafter), most);
    std::string text;
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] == plain[i]) continue;
      text += "sequence " + std::to_string(i) +
              (got[i].ids != plain[i].ids       ? ": ids"
               : got[i].state != plain[i].state ? ": state"
                                                : ": log-probabilities, logits or the module's state") +
              "; ";
    }
    return text;
  }

  EngineImpl& engine() { return engine_; }
  int64_t drafted() const { return drafted_; }  // tokens of all runs that came from drafts

 private:
  // If the host cannot read the state, on a GPU, next_row is compared instead.
  void TakeState(const SessionImpl& session, DraftOutcome* out) const {
    if (!engine_.runner().on_host()) return;
    const auto length = static_cast<int64_t>(session.tokens().size());
    KvLayout model = session.memory().layout(), module = model;
    const auto layers = model.layers.begin() + engine_.info().num_layers;
    module.layers.assign(layers, model.layers.end());
    model.layers.erase(layers, model.layers.end());
    out->state = VisibleState(model, session.cache(), length);
    if (!session.can_draft()) return;
    out->module_state = VisibleState(module, session.cache(), length);
    if (engine_.runner().model().draft().module == DraftModule::kMtp) {
      // The row of a sequence's last position includes the next token: it is written when that token is known.
      const RowFormat& row = module.layers.back().window_row;
      out->module_state.resize(out->module_state.size() - static_cast<size_t>(row.data_bytes + row.scale_bytes));
    }
  }

  EngineImpl& engine_;
  DecodeFn decode_;
  int64_t drafted_ = 0;
};

// Every option of the sampler; sequence i of a batch gets the i-th.
inline std::vector<DraftWanted> EveryOption(uint64_t seed) {
  std::vector<DraftWanted> all = {
      {.prompt = 5, .sampling = {.temperature = 0}, .max_tokens = 23},
      {.prompt = 120, .sampling = {.temperature = 0.7f, .top_logprobs = 3}, .max_tokens = 24},
      {.prompt = 17,
       .sampling = {.temperature = 1.0f, .top_k = 40, .logit_bias = {{5, 3.0f}, {9, -100.0f}}},
       .max_tokens = 19},
      {.prompt = 125, .sampling = {.temperature = 1.0f, .top_p = 0.8f}, .max_tokens = 17},
      {.prompt = 40, .sampling = {.temperature = 1.0f, .min_p = 0.05f}, .max_tokens = 24},
      {.prompt = 61,
       .sampling = {.temperature = 0.8f, .repeat_penalty = 1.3f, .presence_penalty = 0.5f, .frequency_penalty = 0.4f},
       .max_tokens = 22},
      {.prompt = 3,
       .sampling = {.temperature = 0, .repeat_penalty = 1.1f, .frequency_penalty = 0.3f, .top_logprobs = 0},
       .max_tokens = 9},
      {.prompt = 130,
       .sampling = {.temperature = 0.9f, .top_k = 8, .top_p = 0.9f, .min_p = 0.01f},
       .max_tokens = 24,
       .masked = true},
      {.prompt = 250, .sampling = {.temperature = 0.6f}, .max_tokens = 24, .ends_after = 6},
      {.prompt = 33, .sampling = {.temperature = 1.0f}, .max_tokens = 20, .speculate = false},
  };
  for (size_t i = 0; i < all.size(); ++i) all[i].sampling.seed = 1000 * seed + i;
  return all;
}

// A model to decode with, and how.
struct DraftedModel {
  const char* fixture;  // or nano, the bundled one
  const char* device = "cpu";
  bool in_rounds = false;                    // the device draws the tokens; a CPU as that device (AsOnADevice)
  Speculate module = Speculate::kOff;        // the model's module, which also drafts
  bool (*is_there)() = [] { return true; };  // the device
};

inline std::string NameOfModel(const DraftedModel& model) {
  std::string name = std::string(model.fixture) + "_" + model.device + (model.in_rounds ? "_rounds" : "") +
                     (model.module == Speculate::kOff ? "" : "_" + std::string(kSpeculateNames[size_t(model.module)]));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}
// For INSTANTIATE_TEST_SUITE_P.
inline std::string NameOf(const testing::TestParamInfo<DraftedModel>& instance) { return NameOfModel(instance.param); }

// One engine and its runs without drafts, which are the expected results.
class DraftsOfAnEngine : public ::testing::Test {
 protected:
  void Load(const DraftedModel& model, float threshold) {
    if (!model.is_there()) GTEST_SKIP() << "no " << model.device << " that this build runs on";
    const std::string name = model.fixture;
    const std::string dir = name == "nano" ? std::string(DSV4_SOURCE_DIR) + "/models/nano" : FixtureDir(name);
    if (dir.empty()) GTEST_SKIP() << "fixture " << name << " is not on this machine";
    engine_ = LoadOrFail({.model_dir = dir,
                          .device = model.device,
                          .num_threads = 1,
                          .drafts = {.speculate = model.module, .threshold = threshold}});
    ASSERT_NE(engine_, nullptr);
    decode_ = std::make_unique<DraftedDecode>(*engine_);
    module_ = std::move(decode_->engine().drafting().drafter);
    if (model.in_rounds && decode_->engine().runner().on_host()) decode_->UseDecode(AsOnADevice(*engine_));
  }

  int64_t vocab() const { return engine_->info().vocab_size; }
  std::unique_ptr<Oracle> MakeOracle(Guess guess, const std::vector<DraftOutcome>& plain) {
    return std::make_unique<Oracle>(guess, plain, vocab());
  }
  const Oracle& LastOracle() { return dynamic_cast<Oracle&>(*decode_->engine().drafting().drafter); }
  // Counts the requests to the model's module after this call.
  const Counted& CountModule() {
    module_ = std::make_unique<Counted>(std::move(module_));
    return static_cast<const Counted&>(*module_);
  }
  // The differences with the model's module, if it has one.
  std::string DifferencesWithModule(const std::vector<DraftWanted>& wanted, const std::vector<DraftOutcome>& plain,
                                    int64_t most) {
    if (module_ == nullptr) return "";
    const std::string text = decode_->Differences(wanted, plain, std::move(module_), most);
    module_ = std::move(decode_->engine().drafting().drafter);
    return text;
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DraftedDecode> decode_;
  std::unique_ptr<Drafter> module_;  // destroyed before the engine
};

class DraftsOfAModel : public DraftsOfAnEngine, public ::testing::WithParamInterface<DraftedModel> {
 protected:
  void SetUp() override { Load(GetParam(), /*threshold=*/0); }

  // The batch; if a device draws, without options that need the host.
  std::vector<DraftWanted> Options(uint64_t seed) const {
    std::vector<DraftWanted> all = EveryOption(seed);
    for (DraftWanted& w : all) {
      if (GetParam().in_rounds) w.sampling.top_logprobs = -1;
    }
    return all;
  }
};

}  // namespace dsv4::test
