// The memory that a plan promises for KV is there after loading, whatever the GPU's free memory is, and if a few MB of
// it go between the plan and the allocation.
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "dsv4/engine.h"
#include "engine/memory/expert_places_fixture.h"
#include "engine/memory/host_experts.h"
#include "engine/memory/memory_plan.h"
#include "kv/sequence_cache.h"
#include "support/cpu_backed_device.h"
#include "tensor/quant_tensor.h"

namespace dsv4::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// A GPU of which only the free memory exists. Allocations take host memory. The system provides it when it is touched,
// so the weights cost none.
class CountedGpu : public CpuBackedDevice {
 public:
  explicit CountedGpu(int64_t bytes) : free(bytes) {}
  int64_t free;

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return "a GPU"; }
  int64_t free_bytes() const override { return free; }
  int64_t scratch_bytes() const override { return kGpuScratchBytes; }
  // Like a driver: in units of 2 MiB, except small blocks.
  void* Allocate(int64_t bytes) override {
    const int64_t taken = bytes < kMiB ? bytes : CeilDiv(bytes, 2 * kMiB) * 2 * kMiB;
    if (taken > free) return nullptr;
    free -= taken;
    return CpuBackedDevice::Allocate(bytes);
  }
  // Touching the memory would take it.
  void CopyColumns(void*, const void*, int64_t, int64_t, int64_t) override {}
  void Clear(void*, int64_t) override {}
  Result<double> MeasureReadRate(ThreadPool*) override { return 0.0; }
  ExecContext Context(ThreadPool*, bool) override { return {}; }
};

// Flash with cast experts: more than an H200 holds.
EngineOptions WholeFlash() {
  EngineOptions options{.model_dir = "", .synthetic = {.shape = "flash"}, .device = "cuda"};
  options.synthetic.experts = SyntheticExperts::kNvfp4Cast;
  options.offload.kv_room = 256 * kMiB;
  options.offload.host_memory = int64_t{512} << 30;
  return options;
}

struct Planned {
  std::unique_ptr<ModelSource> source;
  MemoryPlan plan{};
};

Planned PlanOn(const EngineOptions& options, const CountedGpu& gpu) {
  Planned out;
  out.source = OpenModelOf(options, gpu).value();
  const RankPlaces places{.count = 1, .sharing = 1, .free_bytes = gpu.free_bytes()};
  out.plan = PlanMemory(options, *out.source, gpu, places);
  EXPECT_TRUE(PlaceExperts(options, *out.source, gpu, places, &out.plan).ok());
  return out;
}

// Whole experts move (13 MB each), and their buffers take memory too. So the free memory of a machine decides whether a
// round of the plan lacks less than an expert.
TEST(KvRoom, ExpertsMoveUntilTheRoomIsThere) {
  const EngineOptions options = WholeFlash();
  for (int64_t free = 141'000 * kMiB; free > 140'986 * kMiB; free -= 1'300'000) {
    const CountedGpu gpu(free);
    const Planned p = PlanOn(options, gpu);
    EXPECT_FALSE(p.plan.experts_on_host.empty());
    const Status status = CheckKvRoom(options, p.source->facts(), p.plan, DeviceKind::kCuda);
    EXPECT_TRUE(status.ok()) << free << ": " << status.message();
    EXPECT_LE(p.plan.available_bytes - NeededBytes(p.plan, options.offload.kv_room), 2 * (14 << 20))
        << "too many moved";
  }
}

TEST(KvRoom, ASequenceOfThePromisedLengthFits) {
  CountedGpu gpu(141'000 * kMiB);
  const Planned p = PlanOn(WholeFlash(), gpu);
  const int64_t promised = p.plan.max_context_that_fits;
  EXPECT_GT(promised, 76'000);
  // everything that is planned, and 40 MB that are not
  gpu.free -= NeededBytes(p.plan, 0) - p.plan.kv_fixed_bytes - kUnplannedBytes + 40'000'000;
  KvMemory memory(MakeKvLayout(p.source->facts().kv), &gpu);
  const auto sequence = SequenceCache::Create(memory).value();
  const Status status = sequence->Reserve(promised);
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace dsv4::test
