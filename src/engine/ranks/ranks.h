// All ranks of an engine. The leader - the caller's thread - decides what a step holds; every rank executes it on a
// thread of its own. With one rank there is one runner and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "device/exchange.h"
#include "dsv4/status.h"
#include "engine/ranks/rank_threads.h"
#include "engine/ranks/runner.h"
#include "kv/rank_caches.h"
#include "model/model.h"

namespace dsv4 {

class Ranks {
 public:
  // What one rank works with; the runner's device outlives it.
  struct Rank {
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<Runner> runner;
  };
  // `exchange`: null for one rank.
  Ranks(std::vector<Rank> ranks, std::unique_ptr<Exchange> exchange);

  int count() const { return static_cast<int>(ranks_.size()); }
  Runner& leader() const { return *ranks_.front().runner; }  // whose logits are everybody's
  Runner& runner(int rank) const { return *ranks_[static_cast<size_t>(rank)].runner; }
  std::span<Recordings* const> recordings() const { return recordings_; }  // of every rank
  ThreadPool& leader_pool() const { return *ranks_.front().pool; }

  // OK until a device has failed, or ranks have lost each other; then what happened, and to which rank,
  // for good.
  Status status() const;

  // Runner::Reserve on every rank. Throws std::bad_alloc.
  void Reserve(int64_t max_tokens, int64_t max_rows);

  // Queues the pass on every rank; with several it has run when this returns. `take` gets the leader's logits
  // (Runner::Forward). `step` holds the leader's views of
  // sequences, caches[s] those of all ranks. After an error of one rank the others do not wait for it, and status()
  // tells.
  Status Forward(const Step& step, Regime rows, std::span<RankCaches* const> caches, const TakeLogits& take);

  // A pass of the model's draft module on every rank, of one row a sequence (LoadedModel::Draft): its logits [S, V] and
  // confidences [S]. Reserve has made room.
  Status Draft(const Step& step, int64_t place, std::span<RankCaches* const> caches, std::vector<float>* logits,
               std::vector<float>* confidence);

  // The parts of Forward, for steps that the ranks repeat. Gives the ranks their views of a step's sequences; nothing
  // is queued on any rank. Then rank r's step, where `step` is the leader's; good until the next GiveViews.
  Status GiveViews(const Step& step, std::span<RankCaches* const> caches);
  const Step& StepOf(int rank, const Step& step) const { return rank == 0 ? step : steps_[static_cast<size_t>(rank)]; }
  // Whether a rank would record the pass first (Runner::RecordsNext): then all prepare before one of them launches it.
  bool RecordsNext(const Step& step, Regime rows) const;
  // Calls job(rank) on every rank's thread and waits for all: the first error, or what the exchange failed with.
  Status Run(const std::function<Status(int rank)>& job);
  // Run of what each rank records before it repeats it. Recordings of all ranks are made before one is launched:
  // prepare(rank) for each, where records(rank) of any. A job that only queues ends with its device's status: one that
  // is known to have failed sends nothing, and so the others hear of it at once.
  Status RunRecorded(const std::function<bool(int rank)>& records, const std::function<void(int rank)>& prepare,
                     const std::function<Status(int rank)>& job);
  // What every rank made of a step, waited for by wait(rank): the same on all. Rank 0's. An error of one rank, or other
  // numbers than rank 0's, are for good.
  Result<std::span<const int32_t>> WaitForSame(const std::function<Result<std::span<const int32_t>>(int rank)>& wait);
  // Waits for what is queued, whatever its errors.
  void Synchronize();
  // A rank is lost: the others stop waiting for it, status() tells.
  void Fail(int rank, const Status& why) { exchange_->FailRank(rank, why); }

  // Of all ranks.
  double StepBytes(int64_t batch, int64_t context) const;

 private:
  std::vector<Rank> ranks_;
  std::vector<Recordings*> recordings_;
  std::vector<Step> steps_;  // the step with each rank's views; the leader's is the caller's
  std::unique_ptr<Exchange> exchange_;
  RankThreads threads_;  // last: ends before what its jobs use
};

}  // namespace dsv4
