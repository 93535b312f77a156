// The fingerprint of snapshots: one line in their files that names everything that computes their bits.
#include <algorithm>
#include <vector>

#include "base/str.h"
#include "dsv4/version.h"
#include "engine/engine_impl.h"
#include "engine/memory/weight_digest.h"
#include "engine/setup/options.h"

namespace dsv4 {

namespace {

// Raise it for a change of a row's bits that ProbeDigest does not detect.
constexpr int kNumericsVersion = 2;

}  // namespace

Result<std::string> EngineImpl::SnapshotFingerprint() {
  if (!fingerprint_.empty()) return fingerprint_;
  DSV4_RETURN_IF_ERROR(health());
  DSV4_ASSIGN_OR_RETURN(fingerprint_, MakeFingerprint());
  memory_->fingerprint = fingerprint_;
  return fingerprint_;
}

namespace {

// The digest of the weights of all ranks. With slices it does not depend on the number of ranks.
Result<uint64_t> DigestOfRanks(Ranks& ranks) {
  const PoolUse use(&ranks.leader_pool());
  const bool sliced = ranks.leader().model().num_slices() > 0;
  const auto digest_of = [&](int rank, int slice) {
    Runner& runner = ranks.runner(rank);
    return WeightDigest(runner.model(), runner.context(), runner.device(), slice);
  };
  if (ranks.count() == 1 && !sliced) return digest_of(0, -1);
  // All ranks at once. Each has its parts in order: what it has whole (with slices only the first rank's counts), and
  // its slices.
  std::vector<std::vector<uint64_t>> parts(static_cast<size_t>(ranks.count()));
  DSV4_RETURN_IF_ERROR(ranks.Run([&](int rank) -> Status {
    std::vector<uint64_t>& own = parts[static_cast<size_t>(rank)];
    for (int slice = sliced && rank > 0 ? 0 : -1; slice < ranks.runner(rank).model().num_slices(); ++slice) {
      DSV4_ASSIGN_OR_RETURN(const uint64_t part, digest_of(rank, slice));
      own.push_back(part);
    }
    return {};
  }));
  uint64_t digest = kDigestBegin;
  for (const std::vector<uint64_t>& own : parts)
    AddToDigest(&digest, own.data(), static_cast<int64_t>(own.size() * sizeof(uint64_t)));
  return digest;
}

}  // namespace

Result<std::string> EngineImpl::MakeFingerprint() {
  DSV4_ASSIGN_OR_RETURN(const uint64_t probe, ProbeDigest());
  DSV4_ASSIGN_OR_RETURN(const uint64_t weights, DigestOfRanks(*ranks_));
  const std::string ranks = options_.ranks.invariant ? "; rank-invariant"
                            : ranks_->count() > 1    ? StrCat("; ranks ", ranks_->count())
                                                     : "";
  return StrCat("numerics ", kNumericsVersion, "; ",
                runner().on_host() ? GetBuildInfo().cpu_features : runner().device().name(), "; ",
                runner().model().Describe(), ", weights ", weights, ", probe ", probe, "; ", DescribeModes(options_),
                ranks);
}

// A digest of the logits' bits after a prompt and after two more tokens. A program that computes the same bits very
// likely has the same numerics, whatever its version. On the CPU bits do not depend on lengths, so few tokens suffice.
Result<uint64_t> EngineImpl::ProbeDigest() {
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, NewSession());
  const int64_t length = std::min<int64_t>(runner().on_host() ? 9 : 300, info_.max_context - 2);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < std::max<int64_t>(length, 1); ++i)
    tokens.push_back(static_cast<TokenId>((i * 37 + 11) % info_.vocab_size));
  uint64_t digest = kDigestBegin;
  std::vector<float> logits;
  // If the CPU computes experts, the bits of decode steps depend on where the experts are.
  const int steps = options_.offload.expert_compute == ExpertCompute::kGpu ? 3 : 1;
  const auto fits = [&] { return static_cast<int64_t>(session->tokens().size() + tokens.size()) <= info_.max_context; };
  for (int step = 0; step < steps && fits(); ++step) {
    DSV4_RETURN_IF_ERROR(session->Append(tokens, LogitRows::kLast, &logits));
    AddToDigest(&digest, logits.data(), static_cast<int64_t>(logits.size() * sizeof(float)));
    tokens = {static_cast<TokenId>((step + 5) % info_.vocab_size)};
  }
  return digest;
}

}  // namespace dsv4
