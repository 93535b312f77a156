#include "model/deepseek_v4/experts/expert_moves.h"

#include <algorithm>

#include "base/check.h"
#include "model/deepseek_v4/load/weight_arena.h"
#include "model/deepseek_v4/schema/expert_matrices.h"

namespace dsv4::deepseek_v4 {

namespace {

int64_t PlacedExpertBytes(const ExpertWeights& e) {
  int64_t bytes = 0;
  for (const auto m : kExpertMatrices)
    bytes += AlignedBytes(PlacedCodeBytes(e.*m)) + AlignedBytes(PlacedScaleBytes(e.*m));
  return bytes;
}

bool SizedAlike(const ExpertWeights& a, const ExpertWeights& b) {
  return std::ranges::all_of(kExpertMatrices, [&](const auto m) {
    const QuantTensor &x = a.*m, &y = b.*m;
    return x.layout == y.layout && PlacedCodeBytes(x) == PlacedCodeBytes(y) &&
           PlacedScaleBytes(x) == PlacedScaleBytes(y) && x.scale_row_offset == 0 && y.scale_row_offset == 0;
  });
}

// `e` in a free place from `at` on.
ExpertWeights InFreePlace(ExpertWeights e, const uint8_t* at) {
  for (const auto m : kExpertMatrices) {
    (e.*m).codes = at;
    at += AlignedBytes(PlacedCodeBytes(e.*m));
    if ((e.*m).block_scale == nullptr) continue;
    (e.*m).block_scale = at;
    at += AlignedBytes(PlacedScaleBytes(e.*m));
  }
  return e;
}

}  // namespace

int64_t ExpertMoves::Bytes(std::span<const int64_t> expert_bytes) {
  return kMostSwapsAtOnce * *std::max_element(expert_bytes.begin(), expert_bytes.end());
}

bool ExpertMoves::Holds(int64_t layer, int64_t expert) const {
  return std::any_of(turns_.begin(), turns_.begin() + 2, [&](const std::vector<ExpertMove>& turn) {
    return std::any_of(turn.begin(), turn.end(),
                       [&](const ExpertMove& move) { return move.layer == layer && move.expert == expert; });
  });
}

int64_t ExpertMoves::Begin(std::span<const ExpertSwap> swaps, std::span<const LayerWeights> layers) {
  DSV4_CHECK(!busy());
  for (std::vector<ExpertMove>& turn : turns_) turn.clear();
  int64_t pairs = 0;
  for (const ExpertSwap& s : swaps) {
    const std::vector<ExpertWeights>& experts = layers[static_cast<size_t>(s.layer)].moe.experts;
    const ExpertWeights &in = experts[static_cast<size_t>(s.in)], &out = experts[static_cast<size_t>(s.out)];
    if (pairs == kMostSwapsAtOnce) break;
    if (!SizedAlike(in, out) || PlacedExpertBytes(in) > spare_bytes_ / kMostSwapsAtOnce) continue;
    if (Holds(s.layer, s.in) || Holds(s.layer, s.out)) continue;
    const ExpertWeights waiting = InFreePlace(in, spare_ + pairs * (spare_bytes_ / kMostSwapsAtOnce));
    turns_[0].push_back({s.layer, s.in, in, waiting, /*to_host=*/false});
    turns_[1].push_back({s.layer, s.out, out, InPlaceOf(out, in), /*to_host=*/true});
    turns_[2].push_back({s.layer, s.in, waiting, InPlaceOf(in, out), /*to_host=*/false});
    moved_bytes_ += 2 * PlacedExpertBytes(in);
    ++pairs;
  }
  turn_ = pairs > 0 ? 0 : kTurns;
  if (busy()) Start();
  return pairs;
}

void ExpertMoves::Start() {
  copies_->AfterWork();  // what is in the places that are written has been read then
  for (const ExpertMove& move : turns_[turn_]) {
    for (const auto m : kExpertMatrices) {
      const QuantTensor &from = move.from.*m, &to = move.to.*m;
      copies_->Copy(const_cast<uint8_t*>(to.codes), from.codes, PlacedCodeBytes(from));
      copies_->Copy(const_cast<uint8_t*>(to.block_scale), from.block_scale, PlacedScaleBytes(from));
    }
  }
  mark_ = copies_->Mark();
}

std::span<const ExpertMove> ExpertMoves::Arrived() {
  if (!busy() || !copies_->Reached(mark_)) return {};
  return turns_[turn_];
}

void ExpertMoves::Named() {
  ++turn_;
  if (busy()) Start();
}

}  // namespace dsv4::deepseek_v4
