// Implementation of include/dsv4/engine.h: requests become steps, steps become passes of a Runner. No math here.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
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
  // The unprocessed rest of one sequence's share of a step.
  struct Part {
    SessionImpl* session;
    std::span<const TokenId> tokens;
    LogitRows rows;
    float* logits;  // destination of the next row
    Regime regime = Regime::kDecode;
    int64_t taken = 0;                    // tokens of the current pass
    int64_t first_row = 0, num_rows = 0;  // rows of its logits
  };

  // Loads nothing and runs nothing: call Start first.
  EngineImpl(const Loaded& loaded, const EngineOptions& options);
  ~EngineImpl() override;
  // Allocates the GPU memory that every step within the memory plan needs, except KV.
  Status Start(Loaded loaded);

  const ModelInfo& info() const override { return info_; }
  const LoadTimes& load_times() const override { return load_times_; }
  Result<std::unique_ptr<Session>> NewSession() override;
  Result<std::unique_ptr<Session>> NewSession(const KvSnapshot& snapshot) override;
  Status AppendTo(SessionImpl& session, std::span<const TokenId> tokens, LogitRows rows, std::vector<float>* logits,
                  const ProgressFn& progress) override;
  Status AppendInto(SessionImpl& session, std::span<const TokenId> tokens, LogitRows rows, std::span<float> logits,
                    const ProgressFn& progress) override;
  void SetStopped(bool stopped) override { stopped_ = stopped; }
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

  // Whether steps write the data that a draft module reads (Step::keeps_drafts). The default is true.
  void KeepDrafts(bool keeps) { step_.keeps_drafts = keeps; }

  // With drafts: runs steps of one sequence without drafts and with each number of drafts. The policy learns their
  // times, and repeated steps are recorded. Requires: no Decode is running. Skipped if there is not enough memory.
  Status MeasureDrafts();

 protected:
  Result<std::shared_ptr<const SnapshotImage>> ReadSnapshotBytes(std::span<const std::byte> bytes) override;

 private:
  // Closes the devices. Afterwards every call fails with `why`.
  void CloseDevices(Status why);
  Status Reopen(const ProgressFn& progress);

  // Runs a checked part to its end. If an error (memory) occurs before the first pass, nothing has changed.
  Status RunPart(const Part& part);
  Status TakeParts(std::span<const StepItem> items);
  // Runs parts_ to their end, as RunPart does.
  Status Run();
  // One forward pass over rows of one regime, at most `budget` of prompts. Removes the parts that it finishes.
  Status RunPass(int64_t budget);
  Status RunPasses(int64_t budget);
  // Whether a pass may end early (SetStopped): its sessions can be restored. Saves them.
  bool SaveSessions();
  static Status WasStopped() { return Cancelled("the engine was stopped (SetStopped)"); }
  Status CheckStopped() const { return stopped_ ? WasStopped() : Status(); }
  Status CheckPass();  // compares the ranks after RunPass: RankOptions::check
  void TakeRows(int64_t first, int64_t count);
  // Adds up to `most` of the part's next tokens to step_. Returns the number of tokens.
  int64_t AddToStep(Part& part, int64_t most);

  Result<bool> CanDrawOnDevice(std::span<const DecodeItem> items) const;
  Status DecodeOnHost(std::span<const DecodeItem> items, const TokenFn& on_token);
  Status DecodeOnDevice(std::span<const DecodeItem> items, const TokenFn& on_token);

  // The fingerprint of everything that computes rows, and a digest of the results for a few tokens (fingerprint.cc).
  Result<std::string> MakeFingerprint();
  Result<uint64_t> ProbeDigest();

  const EngineOptions options_;  // without the callbacks that only loading uses
  // outlives the objects in the device's memory. Null, like ranks_, if there is no device
  std::shared_ptr<SequenceMemory> memory_;
  Status closed_;  // the reason if there is no device
  ModelInfo info_;
  KvLayout kv_layout_;
  std::string fingerprint_;  // of everything that computes rows: equal fingerprints, equal bits. "": not computed yet
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
  std::atomic<bool> stopped_{false};
  std::optional<PassStop> stop_;  // of the running step; not set: its passes run to their end
  std::vector<std::pair<SessionImpl*, SessionImpl::State>> saved_;  // of the running step's sessions, if stop_ is set
  std::vector<Part> parts_;               // of the running step; kept, like step_, so that a step allocates nothing
  std::vector<RankCaches*> step_caches_;  // of the sequences in step_
};

}  // namespace dsv4
