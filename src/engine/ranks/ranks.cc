#include "engine/ranks/ranks.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/str.h"

namespace dsv4 {

Ranks::Ranks(std::vector<Rank> ranks, std::unique_ptr<Exchange> exchange)
    : ranks_(std::move(ranks)),
      steps_(ranks_.size()),
      exchange_(std::move(exchange)),
      threads_(static_cast<int>(ranks_.size())) {
  for (const Rank& rank : ranks_) recordings_.push_back(&rank.runner->recordings());
  if (count() == 1) return;
  DSV4_CHECK(exchange_ != nullptr && exchange_->count() == count());
  for (int r = 0; r < count(); ++r) runner(r).SetRanks(exchange_->view(r));
  exchange_->set_site_name([&model = leader().model()](int64_t site) { return model.ExchangeName(site); });
}

Status Ranks::status() const {
  if (exchange_ == nullptr) return leader().device().status();
  for (int r = 0; r < count(); ++r) {
    const Status failed = runner(r).device().status();
    // before the exchange blames this rank for data that it did not send
    if (!failed.ok()) exchange_->FailRank(r, failed);
  }
  return exchange_->status();
}

void Ranks::Reserve(int64_t max_tokens, int64_t max_rows) {
  for (const Rank& rank : ranks_) rank.runner->Reserve(max_tokens, max_rows);
}

Status Ranks::GiveViews(const Step& step, std::span<RankCaches* const> caches) {
  if (count() == 1) return {};
  DSV4_RETURN_IF_ERROR(exchange_->RewindInTime());
  for (int r = 1; r < count(); ++r) {
    Step& mine = steps_[static_cast<size_t>(r)];
    mine = step;
    for (size_t s = 0; s < mine.sequences.size(); ++s) {
      const SequenceView& view = step.sequences[s];
      mine.sequences[s] = caches[s]->of(r).View(view.start, view.begin, view.end);
    }
  }
  return {};
}

bool Ranks::RecordsNext(const Step& step, Regime rows) const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [&](const Rank& rank) { return rank.runner->RecordsNext(step, rows); });
}

Status Ranks::RunRecorded(const std::function<bool(int)>& records, const std::function<void(int)>& prepare,
                          const std::function<Status(int)>& job) {
  bool any = false;
  for (int r = 0; r < count() && count() > 1; ++r) any = any || records(r);
  if (any) DSV4_RETURN_IF_ERROR(Run([&](int r) { return prepare(r), Status{}; }));
  return Run(job);
}

Status Ranks::Run(const std::function<Status(int)>& job) {
  if (count() == 1) return job(0);
  const auto on_rank = [&](int r) {
    // the caller of Run has a PoolUse of the leader's pool
    const PoolUse use(r == 0 ? nullptr : ranks_[static_cast<size_t>(r)].pool.get());
    runner(r).device().Bind();
    return job(r);
  };
  // By reference, so that std::function allocates nothing.
  const Status ran = threads_.Run(std::cref(on_rank),
                                  [this](int r, const Status& why) { exchange_->FailRank(r, why, /*in_pass=*/true); });
  const Status exchanged = exchange_->status();
  return exchanged.ok() ? ran : exchanged;
}

Result<std::span<const int32_t>> Ranks::WaitForSame(const std::function<Result<std::span<const int32_t>>(int)>& wait) {
  if (count() == 1) return wait(0);
  std::array<std::span<const int32_t>, kMaxRanks> results;
  for (int r = 0; r < count(); ++r) {
    const Result<std::span<const int32_t>> mine = wait(r);
    if (mine.ok()) {
      results[static_cast<size_t>(r)] = *mine;
    } else {
      Fail(r, mine.status());  // before status() blames this rank for data that it did not send
    }
  }
  DSV4_RETURN_IF_ERROR(status());
  for (int r = 1; r < count(); ++r) {
    const std::span<const int32_t> mine = results[static_cast<size_t>(r)];
    DSV4_CHECK(mine.size() == results[0].size());
    const auto [want, got] = std::mismatch(results[0].begin(), results[0].end(), mine.begin());
    if (want == results[0].end()) continue;
    Fail(r, Internal(StrCat("its step returned ", *got, " and rank 0's returned ", *want, "; please report this")));
    return status();
  }
  return results[0];
}

void Ranks::Synchronize() {
  for (int r = 0; r < count(); ++r) (void)runner(r).device().Synchronize();
}

Status Ranks::Forward(const Step& step, Regime rows, std::span<RankCaches* const> caches, const TakeLogits& take,
                      PassStop* stop) {
  if (count() == 1) {
    leader().Forward(step, rows, take, stop);
    return {};
  }
  DSV4_RETURN_IF_ERROR(GiveViews(step, caches));
  const auto records = [&](int r) { return runner(r).RecordsNext(step, rows); };
  const auto prepare = [&](int r) { runner(r).Prepare(StepOf(r, step), rows); };
  const auto forward = [&](int r) {
    runner(r).Forward(StepOf(r, step), rows, r == 0 ? take : TakeLogits());
    return runner(r).device().Synchronize();
  };
  return RunRecorded(std::cref(records), std::cref(prepare), std::cref(forward));
}

Status Ranks::Draft(const Step& step, int64_t place, std::span<RankCaches* const> caches, std::vector<float>* logits,
                    std::vector<float>* confidence) {
  if (count() == 1) {
    leader().Draft(step, place);
  } else {
    DSV4_RETURN_IF_ERROR(GiveViews(step, caches));
    DSV4_RETURN_IF_ERROR(Run([&](int r) {
      runner(r).Draft(StepOf(r, step), place);
      return runner(r).device().Synchronize();
    }));
  }
  const int64_t rows = step.num_tokens(), vocab = leader().Logits(rows).dim(1);
  logits->resize(static_cast<size_t>(rows * vocab));
  confidence->resize(static_cast<size_t>(rows));
  leader().DownloadDraft(logits->data(), confidence->data(), rows);
  return leader().device().Synchronize();
}

double Ranks::StepBytes(int64_t batch, int64_t context) const {
  double bytes = 0;
  for (const Rank& rank : ranks_) bytes += rank.runner->model().StepBytes(batch, context);
  return bytes;
}

}  // namespace dsv4
