#include "engine/memory/card_plan.h"

#include <algorithm>
#include <numeric>

#include "device/planned_device.h"
#include "engine/memory/host_experts.h"
#include "engine/memory/memory_plan.h"

namespace dsv4 {

namespace {

// A card that is sold with this many gigabytes, and its memory as drivers report it. The rates are nominal, in bytes
// per second: reads of its memory, and reads of host memory by kernels (measured on one H200 over PCIe 5; half over
// PCIe 4).
struct Card {
  const char* name;
  int64_t gigabytes, mebibytes;
  double memory_rate, link_rate;
};
constexpr Card kCards[] = {
    {"RTX 4090", 24, 24564, 1.01e12, kHostLinkRate / 2}, {"RTX 5090", 32, 32607, 1.79e12, kHostLinkRate},
    {"L40S", 48, 46068, 0.86e12, kHostLinkRate / 2},     {"H100", 80, 81559, 3.35e12, kHostLinkRate},
    {"RTX PRO 6000", 96, 97887, 1.79e12, kHostLinkRate}, {"H200", 141, 143771, 4.8e12, kHostLinkRate},
    {"B200", 192, 183359, 8.0e12, kHostLinkRate},
};
constexpr int64_t kDriverBytes = 700'000'000;  // reserved by a GPU's driver and a program's kernels
constexpr double kRanksLayer = 0.034e-3;       // additional seconds per layer with several ranks: measured on two H200
// decode of one sequence on an H200: the achieved share of the nominal read rate; and the minimum time of a layer,
// whose kernels wait for each other, however little they read
constexpr double kOfNominal = 0.43, kLeastLayer = 0.062e-3;

CardPlan PlanCard(const EngineOptions& options, const ModelSource& source, const Card& card, int count) {
  const int64_t memory = (card.mebibytes << 20) - kDriverBytes;
  const RankPlaces places{.count = count, .transport = ExchangeTransport::kWords, .free_bytes = memory};
  const PlannedDevice gpu = PlannedDevice::AnyGpu();
  const MemoryPlan plan = PlanMemory(options, source, gpu, places);
  const ModelSizes sizes = source.Sizes(gpu.kind, count);
  const int64_t experts = source.facts().num_experts *
                          std::accumulate(sizes.expert_bytes.begin(), sizes.expert_bytes.end(), int64_t{0});
  int64_t left = memory - (NeededBytes(plan, KvRoom(options, source.facts(), memory)) - experts);
  if (left < experts) left += sizes.embedding;
  CardPlan out{.name = card.name, .gigabytes = card.gigabytes, .count = count, .fits = left >= 0};
  if (!out.fits || experts == 0) return out;
  out.resident = std::min(1.0, static_cast<double>(left) / static_cast<double>(experts));
  out.host_bytes = count * std::max<int64_t>(experts - left, 0);
  const double chosen = static_cast<double>(experts) * static_cast<double>(source.facts().experts_per_token) /
                        static_cast<double>(source.facts().num_experts);
  const double away = (1 - out.resident) * chosen;
  const double exchange = count > 1 ? kRanksLayer * static_cast<double>(source.facts().num_layers) : 0;
  const double resident = (sizes.decode_bytes - away) / (kOfNominal * card.memory_rate);
  const double least = kLeastLayer * static_cast<double>(source.facts().num_layers);
  out.tokens_per_s = 1 / (std::max(resident + exchange, least) + away / card.link_rate);
  return out;
}

}  // namespace

std::vector<CardPlan> PlanCards(const EngineOptions& options, const ModelSource& source) {
  EngineOptions on_gpu = options;
  on_gpu.device = "cuda";
  on_gpu.offload.gpu_memory = 0;
  std::vector<CardPlan> plans;
  for (const Card& card : kCards) {
    for (const int count : {1, 2, 4, 8}) {
      if (source.CheckRanks(count).ok()) plans.push_back(PlanCard(on_gpu, source, card, count));
    }
  }
  return plans;
}

}  // namespace dsv4
