// Loading from files to the GPU gives the model that was written, on whichever device the values were made.
#include "dsv4/inspect.h"
#include "io/test_files.h"
#include "support/cuda_mirror.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

using dsv4::test::TempDir;

TEST(CudaLoad, AWrittenModelIsTheOneInMemory) {
  DSV4_GPU_OR_SKIP();
  for (const bool fp8_dense : {false, true}) {
    EngineOptions made{.model_dir = "", .synthetic = {.shape = "nano", .fp8_dense = fp8_dense, .seed = 42}};
    made.device = "cuda";
    const std::vector<float> want = LogitsOfModel(made);
    for (const char* device : {"cpu", "cuda"}) {
      const TempDir temp;
      made.device = device;
      const Status status = WriteSyntheticCheckpoint(made, temp / "m");
      ASSERT_TRUE(status.ok()) << status.message();
      const std::vector<float> got = LogitsOfModel({.model_dir = temp / "m", .device = "cuda"});
      EXPECT_FALSE(got.empty());
      EXPECT_TRUE(got == want) << "written by " << device << ", fp8_dense " << fp8_dense;
    }
  }
}

// Tiles of 528 bytes for matrices that can be tight, from files and in memory: no bit differs from wider tiles.
TEST(CudaLoad, TightExpertsChangeNoBit) {
  DSV4_GPU_OR_SKIP();
  for (const auto& [fp8_dense, experts] : {std::pair{false, SyntheticExperts::kNvfp4Cast},
                                           {true, SyntheticExperts::kNvfp4Cast},
                                           {true, SyntheticExperts::kMxfp4}}) {
    EngineOptions made{.model_dir = "",
                       .synthetic = {.shape = "nano", .fp8_dense = fp8_dense, .seed = 42, .experts = experts}};
    made.device = "cuda";
    int64_t tight_bytes = 0, wide_bytes = 0;
    made.on_plan = [&](const MemoryPlan& plan) { tight_bytes = plan.weight_bytes; };
    const std::vector<float> tight = LogitsOfModel(made);
    made.tight_experts = false;
    made.on_plan = [&](const MemoryPlan& plan) { wide_bytes = plan.weight_bytes; };
    const std::vector<float> wide = LogitsOfModel(made);
    EXPECT_FALSE(tight.empty());
    EXPECT_TRUE(tight == wide);
    EXPECT_LT(tight_bytes, wide_bytes);
    const TempDir temp;
    const Status status = WriteSyntheticCheckpoint(made, temp / "m");
    ASSERT_TRUE(status.ok()) << status.message();
    int64_t bytes[2] = {};
    for (const bool use : {false, true}) {
      EngineOptions read{.model_dir = temp / "m", .device = "cuda", .tight_experts = use};
      read.on_plan = [&](const MemoryPlan& plan) { bytes[use ? 1 : 0] = plan.weight_bytes; };
      EXPECT_TRUE(LogitsOfModel(read) == tight) << use;
    }
    EXPECT_LT(bytes[1], bytes[0]);
  }
}

TEST(CudaLoad, ThePlanIsToldBeforeAnythingIsTakenAndWhatDoesNotFitIsRefused) {
  DSV4_GPU_OR_SKIP();
  EngineOptions options{.model_dir = "", .synthetic = {.shape = "pro"}, .device = "cuda"};
  int64_t moved = 0, free = 0;  // of the host, which also lacks memory for the moved weights
  options.on_plan = [&](const MemoryPlan& plan) {
    moved = plan.host_expert_bytes + plan.host_embedding_bytes;
    free = plan.available_bytes;
    EXPECT_LE(std::abs(Gpu()->free_bytes() - free), int64_t{2} << 30);  // tolerance for other users of the GPU
  };
  const auto engine = Engine::Load(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::kResourceExhausted);
  EXPECT_GT(moved, free);
  EXPECT_NE(engine.status().message().find(std::to_string(moved)), std::string::npos) << engine.status().message();
}

}  // namespace
}  // namespace dsv4::test
