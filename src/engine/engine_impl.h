// Behind include/dsv4/engine.h: requests become steps, steps become passes of a Runner. Time and memory, no math.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "dsv4/engine.h"
#include "dsv4/experts.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"
#include "engine/decode/rank_decode_steps.h"
#include "engine/drafts/device_round.h"
#include "engine/drafts/drafted_loop.h"
#include "engine/drafts/drafting.h"
#include "engine/memory/loader.h"
#include "engine/memory/repick.h"
#include "engine/ranks/ranks.h"
#include "engine/ranks/runner.h"
#include "engine/sessions/session.h"
#include "engine/setup/options.h"
#include "kv/sequence_cache.h"
#include "model/model.h"

namespace dsv4 {

class EngineImpl : public Engine, public SessionOwner {
 public:
  // What is left of one sequence's share of a step.
  struct Part {
    SessionImpl* session;
    std::span<const TokenId> tokens;
    LogitRows rows;
    float* logits;  // where the next row goes
    Regime regime = Regime::kDecode;
    int64_t taken = 0;                    // tokens of the present pass
    int64_t first_row = 0, num_rows = 0;  // of its logits
  };

  // Runs nothing before Start.
  EngineImpl(const Loaded& loaded, const EngineOptions& options);
  ~EngineImpl() override;
  // Takes what a step that fits the memory plan needs of a GPU, but KV.
  Status Start(Loaded loaded);

  const ModelInfo& info() const override { return info_; }
  const LoadTimes& load_times() const override { return load_times_; }
  Result<std::unique_ptr<Session>> NewSession() override;
  Result<std::unique_ptr<Session>> NewSession(const KvSnapshot& snapshot) override;
  Status AppendTo(SessionImpl& session, std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                  const ProgressFn& progress) override;
  Result<std::string> SnapshotFingerprint() override;
  Result<std::shared_ptr<const SnapshotImage>> ReadSnapshot(const std::string& path) override;
  Result<std::shared_ptr<const KvSnapshot>> LoadSnapshot(const SnapshotImage& image) override;
  Result<SnapshotInfo> ReadSnapshotInfo(const std::string& path) override;
  int64_t kv_bytes() const override { return memory_ != nullptr ? memory_->bytes_in_use() : 0; }
  int64_t free_bytes() const override;
  Result<ExpertUse> expert_use() override;
  Status Step(std::span<const StepItem> items) override;
  Status Decode(std::span<const DecodeItem> items, const TokenFn& on_token) override;
  double StepBytes(int64_t batch, int64_t context) const override {
    return ranks_ != nullptr ? ranks_->StepBytes(batch, context) : 0;
  }
  Result<double> MeasureReadRate() override;
  DraftCounts draft_counts() const override { return drafting_.counts; }
  Status health() const override { return ranks_ != nullptr ? ranks_->status() : closed_; }
  Status Restart(const ProgressFn& progress) override;

  ActivationDtype activation_dtype() const { return options_.activation_dtype; }
  Ranks& ranks() const { return *ranks_; }
  ThreadPool& pool() const { return ranks_->leader_pool(); }
  Runner& runner() const { return ranks_->leader(); }
  Drafting& drafting() { return drafting_; }
  Repicker& repicker() { return repicker_; }

  // Whether steps write what a draft module reads (Step::keeps_drafts); they do without this.
  void KeepDrafts(bool keeps) { step_.keeps_drafts = keeps; }

  // With drafts: runs steps of one sequence without and with each number of drafts, so that the policy knows what they
  // take, and what repeats is recorded. Nobody decodes. Where there is no memory it is left out.
  Status MeasureDrafts();

 private:
  // Closes the devices; `why` is what every call says from then on.
  void CloseDevices(Status why);
  Status Reopen(const ProgressFn& progress);

  // Runs a checked part to its end. On an error (memory) before the first pass nothing has changed.
  Status RunPart(const Part& part);
  Status TakeParts(std::span<const StepItem> items);
  // Runs parts_ to their end, as RunPart.
  Status Run();
  // One forward pass over rows of one regime, at most `budget` of a prompt's; drops the parts that it finishes.
  Status RunPass(int64_t budget);
  Status CheckPass();  // of all ranks, behind RunPass: RankOptions::check
  void TakeRows(int64_t first, int64_t count);
  // Adds the part's next tokens to step_, at most `most`; how many.
  int64_t AddToStep(Part& part, int64_t most);

  Result<bool> CanDrawOnDevice(std::span<const DecodeItem> items) const;
  Status DecodeOnHost(std::span<const DecodeItem> items, const TokenFn& on_token);
  Status DecodeOnDevice(std::span<const DecodeItem> items, const TokenFn& on_token);

  // Of what computes the rows, and of what a few tokens leave behind (fingerprint.cc).
  Result<std::string> MakeFingerprint();
  Result<uint64_t> ProbeDigest();

  const EngineOptions options_;  // without what is called while loading
  // outlives what is in the device's memory. Null, as ranks_: there is no device
  std::shared_ptr<SequenceMemory> memory_;
  Status closed_;  // why there is none
  ModelInfo info_;
  KvLayout kv_layout_;
  std::string fingerprint_;  // of what computes the rows: the same fingerprint, the same bits. "": not computed yet
  LoadTimes load_times_;
  int64_t prefill_chunk_;
  const RankPlaces places_;
  std::unique_ptr<Ranks> ranks_;
  std::unique_ptr<RankDecodeSteps> decode_steps_;
  std::unique_ptr<DeviceRound> device_round_;
  std::unique_ptr<RankDraftedSteps> drafted_steps_;
  Drafting drafting_;
  Repicker repicker_;
  dsv4::Step step_;
  std::vector<Part> parts_;               // of the step that runs; kept, as step_ is, so that a step allocates nothing
  std::vector<RankCaches*> step_caches_;  // of step_'s sequences
};

}  // namespace dsv4
