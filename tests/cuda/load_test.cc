// Loading from files to the GPU: the model that was written, whatever made the values.
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

TEST(CudaLoad, ThePlanIsToldBeforeAnythingIsTakenAndWhatDoesNotFitIsRefused) {
  DSV4_GPU_OR_SKIP();
  EngineOptions options{.model_dir = "", .synthetic = {.shape = "pro"}, .device = "cuda"};
  int64_t weights = 0, free = 0;
  options.on_plan = [&](const MemoryPlan& plan) {
    weights = plan.weight_bytes;
    free = plan.available_bytes;
    EXPECT_LE(std::abs(Gpu()->free_bytes() - free), int64_t{2} << 30);  // other users of the GPU aside
  };
  const auto engine = Engine::Load(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::kResourceExhausted);
  EXPECT_GT(weights, free);
  EXPECT_NE(engine.status().message().find(std::to_string(free)), std::string::npos) << engine.status().message();
}

}  // namespace
}  // namespace dsv4::test
