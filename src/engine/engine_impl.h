// Behind include/dsv4/engine.h and session.h: time and memory, no math.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"
#include "engine/step_buffers.h"
#include "kv/sequence_cache.h"
#include "model/model.h"

namespace dsv4 {

class EngineImpl;

// What sessions hold memory of: it lives as long as the last of them, as a session may be destroyed after its engine.
struct SequenceMemory {
  SequenceMemory(std::unique_ptr<Device> d, KvLayout layout) : device(std::move(d)), kv(std::move(layout), device.get()) {}

  std::unique_ptr<Device> device;
  KvMemory kv;
  EngineImpl* engine = nullptr;  // null once it is gone
  std::string fingerprint;  // of what computes the rows: the same fingerprint, the same bits. "": not computed yet
};

class SamplerImpl;
class SessionImpl;

class EngineImpl : public Engine {
 public:
  // What is left of one sequence's share of a step.
  struct Part {
    SessionImpl* session;
    std::span<const TokenId> tokens;
    LogitRows rows;
    float* logits;  // where the next row goes
    int64_t taken = 0;                    // tokens of the present pass
    int64_t first_row = 0, num_rows = 0;  // of its logits
  };

  EngineImpl(std::unique_ptr<Device> device, std::unique_ptr<ThreadPool> pool, std::unique_ptr<LoadedModel> model,
             ModelInfo info, const EngineOptions& options);
  ~EngineImpl() override { memory_->engine = nullptr; }

  const ModelInfo& info() const override { return info_; }
  const LoadTimes& load_times() const override { return load_times_; }
  void set_load_times(const LoadTimes& times) { load_times_ = times; }
  Result<std::unique_ptr<Session>> NewSession() override;
  Result<std::unique_ptr<Session>> NewSession(const KvSnapshot& snapshot) override;
  Result<std::string> SnapshotFingerprint() override;
  Result<std::shared_ptr<const SnapshotImage>> ReadSnapshot(const std::string& path) override;
  Result<std::shared_ptr<const KvSnapshot>> LoadSnapshot(const SnapshotImage& image) override;
  Result<SnapshotInfo> ReadSnapshotInfo(const std::string& path) override;
  int64_t kv_bytes() const override { return memory_->kv.bytes_in_use(); }
  int64_t free_bytes() const override;
  Status Step(std::span<const StepItem> items) override;
  Status Decode(std::span<const DecodeItem> items, const TokenFn& on_token) override;
  double StepBytes(int64_t batch, int64_t context) const override { return model_->StepBytes(batch, context); }
  Result<double> MeasureReadRate() override;

  int64_t prefill_chunk() const { return prefill_chunk_; }

  // Ids inside the vocabulary, and room in the context.
  Status Check(const SessionImpl& session, std::span<const TokenId> tokens) const;

  // Runs a checked part to its end. On an error (memory) before the first pass nothing has changed.
  Status RunPart(const Part& part);

  Device& device() const { return *device_; }
  ThreadPool& pool() const { return *pool_; }
  const LoadedModel& model() const { return *model_; }
  ActivationDtype activation_dtype() const { return activation_dtype_; }
  ExecContext& context() { return ctx_; }
  bool UsesTiles(int64_t num_tokens) const;  // whether such a step multiplies by AMX tiles

 private:
  void EnsureActivations(int64_t max_tokens, int64_t max_rows);

  // Runs parts_ to their end, as RunPart.
  Status Run();
  // One forward pass over at most `budget` tokens; drops the parts that it finishes.
  Status RunPass(int64_t budget);

  // One sequence of a Decode that has not ended.
  struct Live {
    size_t item;
    SessionImpl* session;
    SamplerImpl* sampler;
    TokenId next;  // drawn, not yet appended
    int64_t drawn = 0;
    bool ended = false;
    DeviceBuffer counts = {}, bias = {};  // of the sampler, on the device
  };
  // The arrays of a decode loop on the device, and where its tokens arrive.
  struct DecodeBuffers {
    DeviceBuffer rows, tokens;
    int32_t* arrived[2] = {};
    DeviceBuffer masks;                // of sequences that may not draw every token; with the first of these
    uint32_t* staged_masks = nullptr;  // on their way there
    ~DecodeBuffers();
    Device* device = nullptr;
  };
  Status DecodeOnHost(std::span<const DecodeItem> items, const TokenFn& on_token);
  Status DecodeOnDevice(std::span<const DecodeItem> items, const TokenFn& on_token);
  // Steps with the same sequences until one ends or must be set up anew; marks what has ended.
  Status DecodeRun(std::vector<Live>& live, std::span<const DecodeItem> items, const TokenFn& on_token);
  Status PlaceSampleRows(std::vector<Live>& live, std::span<const DecodeItem> items);
  void PlaceMasks(const std::vector<Live>& live, std::span<const DecodeItem> items);
  int64_t mask_words() const { return (info_.vocab_size + 31) / 32; }

  // Of what a few tokens leave behind (fingerprint.cc).
  Result<uint64_t> ProbeDigest();

  // The forward pass of step_ into activations_->logits. A decode step of a device runs from its recording.
  void RunForward();

  std::shared_ptr<SequenceMemory> memory_;  // outlives what is in the device's memory
  Device* device_;                          // memory_'s
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<LoadedModel> model_;
  ModelInfo info_;
  LoadTimes load_times_;
  int64_t prefill_chunk_;
  ActivationDtype activation_dtype_;
  std::string modes_;  // numerics, for the fingerprint
  ExecContext ctx_;
  AmxUse amx_ = AmxUse::kOff;
  std::unique_ptr<StepMemory> activations_;
  StepBuffers step_buffers_;
  dsv4::Step step_;
  std::vector<Part> parts_;  // of the step that runs; kept, as step_ is, so that a step allocates nothing
  std::map<int64_t, std::unique_ptr<Recording>> decode_steps_;  // by number of sequences
  std::map<int64_t, std::unique_ptr<Recording>> decode_loops_;  // the same with sampling and the next step's input
  std::map<int64_t, std::unique_ptr<Recording>> decode_draws_;  // of these, sampling and the next step's input alone
  std::unique_ptr<DecodeBuffers> decode_buffers_;
};

class SessionImpl : public Session {
 public:
  SessionImpl(EngineImpl& engine, std::shared_ptr<SequenceMemory> memory, std::unique_ptr<SequenceCache> cache,
              std::vector<TokenId> tokens = {})
      : engine_(&engine), memory_(std::move(memory)), cache_(std::move(cache)), tokens_(std::move(tokens)) {}

  const std::vector<TokenId>& tokens() const override { return tokens_; }
  Status Append(std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                const ProgressFn& progress) override;
  void Reset() override;
  Result<std::shared_ptr<const KvSnapshot>> Snapshot() override;
  int64_t memory_bytes() const override { return cache_->memory_bytes(); }
  int64_t own_bytes() const override { return cache_->unforked_bytes(); }

  EngineImpl& engine() const { return *engine_; }
  SequenceCache& cache() const { return *cache_; }
  // Room for `more` tokens, so that Commit cannot fail; grows geometrically, as one token a step would otherwise copy
  // the whole list each time.
  void ReserveTokens(size_t more) {
    if (tokens_.capacity() < tokens_.size() + more) tokens_.reserve(std::max(2 * tokens_.size(), tokens_.size() + more));
  }
  void Commit(std::span<const TokenId> tokens) { tokens_.insert(tokens_.end(), tokens.begin(), tokens.end()); }

 private:
  EngineImpl* engine_;
  std::shared_ptr<SequenceMemory> memory_;  // where cache_ lies
  std::unique_ptr<SequenceCache> cache_;
  std::vector<TokenId> tokens_;
};

}  // namespace dsv4
