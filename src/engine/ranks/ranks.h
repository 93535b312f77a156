// All ranks of an engine. The leader, which is the caller's thread, decides the contents of a step. Every rank executes
// it on its own thread. With one rank there is one runner and nothing else.
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
  // The objects of one rank; the runner's device outlives the runner.
  struct Rank {
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<Runner> runner;
  };
  // `exchange`: null for one rank.
  Ranks(std::vector<Rank> ranks, std::unique_ptr<Exchange> exchange);

  int count() const { return static_cast<int>(ranks_.size()); }
  Runner& leader() const { return *ranks_.front().runner; }  // its logits are used; the other ranks compute the same
  Runner& runner(int rank) const { return *ranks_[static_cast<size_t>(rank)].runner; }
  std::span<Recordings* const> recordings() const { return recordings_; }  // of every rank
  ThreadPool& leader_pool() const { return *ranks_.front().pool; }

  // OK until a device fails or ranks lose each other. Afterwards the cause and the rank, permanently.
  Status status() const;

  // Runner::Reserve on every rank. Throws std::bad_alloc.
  void Reserve(int64_t max_tokens, int64_t max_rows);

  // Queues the pass on every rank; with several ranks, returns when it has run. `take` gets the leader's logits
  // (Runner::Forward). `step` has the leader's views of sequences; caches[s] has the caches of all ranks. After an
  // error of one rank the others do not wait for it, and status() reports it. `stop`: for one rank.
  Status Forward(const Step& step, Regime rows, std::span<RankCaches* const> caches, const TakeLogits& take,
                 PassStop* stop = nullptr);

  // Runs a pass of the model's draft module on every rank, with one row per sequence (LoadedModel::Draft). Returns its
  // logits [S, V] and confidences [S]. Requires: Reserve has allocated the memory.
  Status Draft(const Step& step, int64_t place, std::span<RankCaches* const> caches, std::vector<float>* logits,
               std::vector<float>* confidence);

  // The parts of Forward, for steps that the ranks repeat. GiveViews gives the ranks their views of a step's sequences
  // and queues nothing. StepOf then returns rank r's step, where `step` is the leader's; valid until the next
  // GiveViews.
  Status GiveViews(const Step& step, std::span<RankCaches* const> caches);
  const Step& StepOf(int rank, const Step& step) const { return rank == 0 ? step : steps_[static_cast<size_t>(rank)]; }
  // Whether a rank would record the pass first (Runner::RecordsNext). All ranks then prepare before one launches it.
  bool RecordsNext(const Step& step, Regime rows) const;
  // Calls job(rank) on every rank's thread and waits for all. Returns the exchange's failure, or else the first error.
  Status Run(const std::function<Status(int rank)>& job);
  // Run for steps that each rank records and repeats. All ranks make their recordings before one is launched: if
  // records(rank) is true for any rank, prepare(rank) runs on each. A job that only queues must return its device's
  // status: a failed device sends nothing, and this way the other ranks know at once.
  Status RunRecorded(const std::function<bool(int rank)>& records, const std::function<void(int rank)>& prepare,
                     const std::function<Status(int rank)>& job);
  // Waits with wait(rank) for every rank's result of a step, and returns rank 0's. All must be equal. An error of one
  // rank, or a result that differs from rank 0's, is permanent.
  Result<std::span<const int32_t>> WaitForSame(const std::function<Result<std::span<const int32_t>>(int rank)>& wait);
  // Waits for the queued work and ignores its errors.
  void Synchronize();
  // Reports that a rank is lost: the others stop waiting for it, and status() reports it.
  void Fail(int rank, const Status& why) { exchange_->FailRank(rank, why); }

  // The sum over all ranks.
  double StepBytes(int64_t batch, int64_t context) const;

 private:
  std::vector<Rank> ranks_;
  std::vector<Recordings*> recordings_;
  std::vector<Step> steps_;  // the step with each rank's views; the leader uses the caller's
  std::unique_ptr<Exchange> exchange_;
  RankThreads threads_;  // last: its destructor ends the threads before the data that their jobs use
};

}  // namespace dsv4
