// An engine without a model: the next token is a function of the last one, and faults can be requested.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/experts.h"
#include "dsv4/sampling.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"

namespace dsv4::server {

constexpr TokenId kPoison = 13;    // Step fails for every batch with this token
constexpr TokenId kNanToken = 14;  // its logits are NaN
constexpr int64_t kFakeFixedBytes = 1000, kFakeTokenBytes = 10;

inline int64_t FakeBytes(size_t tokens) { return kFakeFixedBytes + kFakeTokenBytes * static_cast<int64_t>(tokens); }

// A file: the engine's fingerprint, a note, tokens. `before_io`, if set, is called on the thread that reads or writes.
class FakeImage : public SnapshotImage {
 public:
  FakeImage(std::vector<TokenId> ids, const std::function<void()>& before_io, std::string_view fingerprint,
            std::string_view note)
      : before_io_(before_io), fingerprint_(fingerprint) {
    info_.file_bytes = FakeBytes(ids.size());
    info_.note = note;
    info_.tokens = std::move(ids);
  }
  const SnapshotInfo& info() const override { return info_; }
  Status Write(const std::string& path) const override {
    if (before_io_) before_io_();
    std::ofstream file(path, std::ios::binary);
    for (const std::string& text : {fingerprint_, info_.note}) {
      const auto size = static_cast<uint32_t>(text.size());
      file.write(reinterpret_cast<const char*>(&size), sizeof(size))
          .write(text.data(), static_cast<std::streamsize>(text.size()));
    }
    file.write(reinterpret_cast<const char*>(info_.tokens.data()),
               static_cast<std::streamsize>(4 * info_.tokens.size()));
    return file ? Status() : NotFound("'" + path + "' cannot be written");
  }

 private:
  const std::function<void()> before_io_;
  const std::string fingerprint_;
  SnapshotInfo info_;
};

// A snapshot that shares no memory.
class FakeSnapshot : public KvSnapshot {
 public:
  FakeSnapshot(std::vector<TokenId> ids, std::atomic<int64_t>& bytes, const std::function<void()>& before_io = {},
               std::string fingerprint = "fake")
      : ids_(std::move(ids)), bytes_(bytes), before_io_(before_io), fingerprint_(std::move(fingerprint)) {
    bytes_ += memory_bytes();
  }
  ~FakeSnapshot() override { bytes_ -= memory_bytes(); }
  std::vector<TokenId> tokens() const override { return ids_; }
  int64_t num_tokens() const override { return static_cast<int64_t>(ids_.size()); }
  int64_t memory_bytes() const override { return FakeBytes(ids_.size()); }
  int64_t own_bytes() const override { return memory_bytes(); }
  Result<std::shared_ptr<const SnapshotImage>> MakeImage(std::string_view note) const override {
    return std::shared_ptr<const SnapshotImage>(std::make_shared<FakeImage>(ids_, before_io_, fingerprint_, note));
  }

 private:
  const std::vector<TokenId> ids_;
  std::atomic<int64_t>& bytes_;
  const std::function<void()> before_io_;
  const std::string fingerprint_;
};

class FakeSession : public Session {
 public:
  FakeSession(std::atomic<int64_t>& live, std::atomic<int64_t>& bytes, std::vector<TokenId> tokens = {},
              const std::function<void()>& before_io = {}, std::string fingerprint = "fake")
      : ids(std::move(tokens)),
        live_(live),
        bytes_(bytes),
        before_io_(before_io),
        fingerprint_(std::move(fingerprint)) {
    ++live_;
    bytes_ += memory_bytes();
  }
  ~FakeSession() override {
    --live_;
    bytes_ -= memory_bytes();
  }
  const std::vector<TokenId>& tokens() const override { return ids; }
  Status Append(std::span<const TokenId>, LogitRows, std::vector<float>*, const ProgressFn&) override {
    return Unsupported("not here");
  }
  Status Truncate(int64_t) override { return Unsupported("not here"); }
  void Reset() override {
    bytes_ -= memory_bytes() - kFakeFixedBytes;
    ids.clear();
  }
  Result<std::shared_ptr<const KvSnapshot>> Snapshot() override {
    return std::shared_ptr<const KvSnapshot>(std::make_shared<FakeSnapshot>(ids, bytes_, before_io_, fingerprint_));
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
  const std::function<void()> before_io_;
  const std::string fingerprint_;
};

class FakeEngine : public Engine {
 public:
  // Token t is followed by t + 1, and the last token by 100.
  explicit FakeEngine(int64_t vocab) : info_{} {
    info_.vocab_size = vocab;
    info_.max_context = 100000;
    info_.bos_token_id = 0;
    info_.eos_token_ids = {1};
  }
  const ModelInfo& info() const override { return info_; }
  const LoadTimes& load_times() const override { return load_times_; }
  Result<std::unique_ptr<Session>> NewSession() override {
    return std::unique_ptr<Session>(
        std::make_unique<FakeSession>(live_sessions, bytes_, std::vector<TokenId>(), before_io, fingerprint));
  }
  Result<std::unique_ptr<Session>> NewSession(const KvSnapshot& snapshot) override {
    return std::unique_ptr<Session>(
        std::make_unique<FakeSession>(live_sessions, bytes_, snapshot.tokens(), before_io, fingerprint));
  }
  Result<std::string> SnapshotFingerprint() override { return fingerprint; }
  Result<std::shared_ptr<const SnapshotImage>> ReadSnapshot(const std::string& path) override {
    if (before_io) before_io();
    DSV4_ASSIGN_OR_RETURN(SnapshotInfo info, ReadSnapshotInfo(path));
    return std::shared_ptr<const SnapshotImage>(
        std::make_shared<FakeImage>(std::move(info.tokens), before_io, fingerprint, info.note));
  }
  Result<std::shared_ptr<const KvSnapshot>> LoadSnapshot(const SnapshotImage& image) override {
    return std::shared_ptr<const KvSnapshot>(
        std::make_shared<FakeSnapshot>(image.info().tokens, bytes_, before_io, fingerprint));
  }
  Result<SnapshotInfo> ReadSnapshotInfo(const std::string& path) override {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    const Status damaged = DataLoss("'" + path + "' is damaged");
    std::string_view rest = bytes;
    std::vector<std::string> texts;
    while (texts.size() < 2) {
      uint32_t size = 0;
      if (rest.size() < sizeof(size)) return damaged;
      std::memcpy(&size, rest.data(), sizeof(size));
      rest.remove_prefix(sizeof(size));
      if (rest.size() < size) return damaged;
      texts.emplace_back(rest.substr(0, size));
      rest.remove_prefix(size);
    }
    if (rest.empty() || rest.size() % 4 != 0) return damaged;
    if (texts[0] != fingerprint) return Unsupported("'" + path + "' is another model's");
    SnapshotInfo info{.tokens = std::vector<TokenId>(rest.size() / 4),
                      .note = texts[1],
                      .file_bytes = static_cast<int64_t>(bytes.size())};
    std::memcpy(info.tokens.data(), rest.data(), rest.size());
    return info;
  }
  int64_t kv_bytes() const override { return bytes_; }
  int64_t free_bytes() const override { return 0; }
  Status health() const override { return broken ? Internal("the fake device failed") : Status{}; }
  Status Restart(const ProgressFn& progress) override {
    if (live_sessions > 0 || bytes_ > 0) return InvalidArgument("sessions or snapshots are left");
    if (before_restart) before_restart();
    for (int64_t done = 0; done < restart_pieces; ++done) {
      if (before_piece) before_piece();
      if (progress && !progress({Progress::Phase::kLoading, done, restart_pieces})) return Cancelled("stopped");
    }
    broken = !restart_status.ok();
    return restart_status;
  }
  Result<ExpertUse> expert_use() override { return use; }
  Status Step(std::span<const StepItem> items) override {
    if (before_step) before_step();
    DSV4_RETURN_IF_ERROR(health());
    const std::lock_guard lock(mutex);
    int64_t total = 0, held = 0;
    for (const StepItem& item : items) {
      total += static_cast<int64_t>(item.tokens.size());
      held += static_cast<int64_t>(item.session->tokens().size() + item.tokens.size());
      if (std::find(item.tokens.begin(), item.tokens.end(), kPoison) != item.tokens.end()) return Internal("poison");
    }
    if (held > max_tokens_held) return ResourceExhausted("no memory");
    step_tokens.push_back(total);
    step_items.push_back(items.size());
    all_rows.push_back(0);
    for (const StepItem& item : items) {
      if (item.rows == LogitRows::kAll) all_rows.back() += static_cast<int64_t>(item.tokens.size());
    }
    for (const StepItem& item : items)
      seen.push_back({item.session->tokens().size(), item.tokens.size(), item.prompt_tokens});
    for (const StepItem& item : items) {
      static_cast<FakeSession*>(item.session)->Add(item.tokens);
      if (item.rows == LogitRows::kNone) continue;
      const size_t rows = item.rows == LogitRows::kAll ? item.tokens.size() : 1;
      const auto vocab = static_cast<size_t>(info_.vocab_size);
      item.logits->assign(rows * vocab, 0.0f);
      for (size_t r = 0; r < rows; ++r) {
        const TokenId token = item.tokens[item.tokens.size() - rows + r];
        const auto following = next ? next(*item.session) : token + 1 < info_.vocab_size ? token + 1 : 100;
        (*item.logits)[r * vocab + static_cast<size_t>(following)] = token == kNanToken
                                                                         ? std::numeric_limits<float>::quiet_NaN()
                                                                         : 20.0f;
      }
    }
    return {};
  }
  Status Decode(std::span<const DecodeItem> items, const TokenFn& on_token) override {
    std::vector<TokenId> newest;
    std::vector<int64_t> left;
    for (const DecodeItem& item : items) {
      newest.push_back(item.first);
      left.push_back(item.max_tokens);
    }
    while (std::any_of(left.begin(), left.end(), [](int64_t n) { return n > 0; })) {
      std::vector<StepItem> step;
      std::vector<std::vector<float>> logits(items.size());
      for (size_t i = 0; i < items.size(); ++i) {
        if (left[i] > 0) step.push_back({.session = items[i].session, .tokens = {&newest[i], 1}, .logits = &logits[i]});
      }
      DSV4_RETURN_IF_ERROR(Step(step));
      for (size_t i = 0; i < items.size(); ++i) {
        if (left[i] <= 0) continue;
        DSV4_ASSIGN_OR_RETURN(
            const SampledToken token,
            items[i].sampler->Sample(logits[i], items[i].allowed ? items[i].allowed() : std::span<const uint32_t>()));
        newest[i] = token.id;
        const auto& stops = items[i].stop_ids;
        const bool stop = std::find(stops.begin(), stops.end(), token.id) != stops.end();
        left[i] = on_token(i, token) && !stop ? left[i] - 1 : 0;
      }
    }
    return {};
  }
  ModelInfo& mutable_info() { return info_; }
  double StepBytes(int64_t, int64_t) const override { return 0; }
  Result<double> MeasureReadRate() override { return Unsupported("not here"); }

  std::mutex mutex;
  std::vector<int64_t> step_tokens;  // of each step that succeeded
  std::vector<size_t> step_items;
  std::vector<int64_t> all_rows;  // logits rows in a step, for items that need all rows
  struct Rows {
    size_t begin, count;
    int64_t prompt_tokens;
  };
  std::vector<Rows> seen;  // of all items in the steps that succeeded
  std::atomic<int64_t> max_tokens_held = std::numeric_limits<int64_t>::max();  // in one step
  void set_vocab_size(int64_t n) { info_.vocab_size = n; }

  std::string fingerprint = "fake";
  std::atomic<int64_t> live_sessions = 0;
  std::atomic<bool> broken = false;  // every step fails until Restart
  Status restart_status;
  std::function<void()> before_restart, before_piece;
  int64_t restart_pieces = 0;  // pieces of a model that Restart loads
  ExpertUse use;
  std::function<void()> before_step;            // set before the first step
  std::function<TokenId(const Session&)> next;  // if set: the next token after the session's tokens
  std::function<void()> before_io;  // before reads and writes of snapshot files; set before the first session

 protected:
  std::atomic<int64_t> bytes_ = 0;

 private:
  ModelInfo info_;
  LoadTimes load_times_;
};

}  // namespace dsv4::server
