// An engine without a model: the next token is a function of the last one, and faults come on request.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/sampling.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"

namespace dsv4::server {

constexpr TokenId kPoison = 13;    // Step fails for every batch that holds it
constexpr TokenId kNanToken = 14;  // its logits are NaN
constexpr int64_t kFakeFixedBytes = 1000, kFakeTokenBytes = 10;

inline int64_t FakeBytes(size_t tokens) { return kFakeFixedBytes + kFakeTokenBytes * static_cast<int64_t>(tokens); }

// Shares nothing.
class FakeSnapshot : public KvSnapshot {
 public:
  FakeSnapshot(std::vector<TokenId> ids, std::atomic<int64_t>& bytes) : ids_(std::move(ids)), bytes_(bytes) {
    bytes_ += memory_bytes();
  }
  ~FakeSnapshot() override { bytes_ -= memory_bytes(); }
  const std::vector<TokenId>& tokens() const override { return ids_; }
  int64_t memory_bytes() const override { return FakeBytes(ids_.size()); }
  int64_t own_bytes() const override { return memory_bytes(); }
  Status Save(const std::string&, std::string_view) const override { return Unsupported("not here"); }

 private:
  const std::vector<TokenId> ids_;
  std::atomic<int64_t>& bytes_;
};

class FakeSession : public Session {
 public:
  FakeSession(std::atomic<int64_t>& live, std::atomic<int64_t>& bytes, std::vector<TokenId> tokens = {})
      : live_(live), bytes_(bytes) {
    ++live_;
    bytes_ += kFakeFixedBytes;
    Add(tokens);
  }
  ~FakeSession() override {
    --live_;
    bytes_ -= memory_bytes();
  }
  const std::vector<TokenId>& tokens() const override { return ids; }
  Status Append(std::span<const TokenId>, LogitRows, std::vector<float>*, const ProgressFn&) override {
    return Unsupported("not here");
  }
  void Reset() override {
    bytes_ -= memory_bytes() - kFakeFixedBytes;
    ids.clear();
  }
  Result<std::shared_ptr<const KvSnapshot>> Snapshot() override {
    return std::shared_ptr<const KvSnapshot>(std::make_shared<FakeSnapshot>(ids, bytes_));
  }
  int64_t memory_bytes() const override { return FakeBytes(ids.size()); }
  int64_t own_bytes() const override { return memory_bytes(); }
  void Add(std::span<const TokenId> tokens) {
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    bytes_ += kFakeTokenBytes * static_cast<int64_t>(tokens.size());
  }

  std::vector<TokenId> ids;

 private:
  std::atomic<int64_t>&live_, &bytes_;
};

class FakeEngine : public Engine {
 public:
  // Token t is followed by t + 1, the last one by 100.
  explicit FakeEngine(int64_t vocab) : info_{} {
    info_.vocab_size = vocab;
    info_.max_context = 100000;
    info_.bos_token_id = 0;
    info_.eos_token_ids = {1};
  }
  const ModelInfo& info() const override { return info_; }
  const LoadTimes& load_times() const override { return load_times_; }
  Result<std::unique_ptr<Session>> NewSession() override {
    return std::unique_ptr<Session>(std::make_unique<FakeSession>(live_sessions, bytes_));
  }
  Result<std::unique_ptr<Session>> NewSession(const KvSnapshot& snapshot) override {
    return std::unique_ptr<Session>(std::make_unique<FakeSession>(live_sessions, bytes_, snapshot.tokens()));
  }
  Result<std::shared_ptr<const KvSnapshot>> LoadSnapshot(const std::string&) override { return Unsupported("not here"); }
  Result<SnapshotInfo> ReadSnapshotInfo(const std::string&) const override { return Unsupported("not here"); }
  int64_t kv_bytes() const override { return bytes_; }
  int64_t free_bytes() const override { return 0; }
  Status Step(std::span<const StepItem> items) override {
    if (before_step) before_step();
    const std::lock_guard lock(mutex);
    int64_t total = 0, held = 0;
    for (const StepItem& item : items) {
      total += static_cast<int64_t>(item.tokens.size());
      held += static_cast<int64_t>(item.session->tokens().size() + item.tokens.size());
      if (std::find(item.tokens.begin(), item.tokens.end(), kPoison) != item.tokens.end())
        return Internal("poison");
    }
    if (held > max_tokens_held) return ResourceExhausted("no memory");
    step_tokens.push_back(total);
    step_items.push_back(items.size());
    for (const StepItem& item : items) {
      static_cast<FakeSession*>(item.session)->Add(item.tokens);
      if (item.rows == LogitRows::kNone) continue;
      const size_t rows = item.rows == LogitRows::kAll ? item.tokens.size() : 1;
      const auto vocab = static_cast<size_t>(info_.vocab_size);
      item.logits->assign(rows * vocab, 0.0f);
      for (size_t r = 0; r < rows; ++r) {
        const TokenId token = item.tokens[item.tokens.size() - rows + r];
        const auto next = static_cast<size_t>(token + 1 < info_.vocab_size ? token + 1 : 100);
        (*item.logits)[r * vocab + next] = token == kNanToken ? std::numeric_limits<float>::quiet_NaN() : 20.0f;
      }
    }
    return {};
  }
  Status Decode(std::span<const DecodeItem> items, const TokenFn& on_token) override {
    std::vector<TokenId> next;
    std::vector<int64_t> left;
    for (const DecodeItem& item : items) {
      next.push_back(item.first);
      left.push_back(item.max_tokens);
    }
    while (std::any_of(left.begin(), left.end(), [](int64_t n) { return n > 0; })) {
      std::vector<StepItem> step;
      std::vector<std::vector<float>> logits(items.size());
      for (size_t i = 0; i < items.size(); ++i) {
        if (left[i] > 0)
          step.push_back({.session = items[i].session, .tokens = {&next[i], 1}, .logits = &logits[i]});
      }
      DSV4_RETURN_IF_ERROR(Step(step));
      for (size_t i = 0; i < items.size(); ++i) {
        if (left[i] <= 0) continue;
        DSV4_ASSIGN_OR_RETURN(const SampledToken token, items[i].sampler->Sample(logits[i]));
        next[i] = token.id;
        const auto& stops = items[i].stop_ids;
        const bool stop = std::find(stops.begin(), stops.end(), token.id) != stops.end();
        left[i] = on_token(i, token) && !stop ? left[i] - 1 : 0;
      }
    }
    return {};
  }
  double StepBytes(int64_t, int64_t) const override { return 0; }
  Result<double> MeasureReadRate() override { return Unsupported("not here"); }

  std::mutex mutex;
  std::vector<int64_t> step_tokens;  // of each step that succeeded
  std::vector<size_t> step_items;
  std::atomic<int64_t> max_tokens_held = std::numeric_limits<int64_t>::max();  // in one step
  std::atomic<int64_t> live_sessions = 0;
  std::function<void()> before_step;  // set before the first step

 private:
  ModelInfo info_;
  std::atomic<int64_t> bytes_ = 0;
  LoadTimes load_times_;
};

}  // namespace dsv4::server
