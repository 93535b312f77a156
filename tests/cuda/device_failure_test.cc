// After a kernel fails, its process cannot use the GPU until it has released everything that it has there.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "ops/rms_norm/rms_norm.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

constexpr char kSays[] = "illegal memory access";

int Fail(const char* step, const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", step, what.c_str());
  return 1;
}

// Returns the exit status of a process that does not crash, hang or continue with a broken GPU.
int BreakAndRestart() {
  auto loaded = Engine::Load({.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano", .device = "cuda"});
  if (!loaded.ok()) return Fail("load", loaded.status().message());
  Engine& engine = **loaded;
  const std::vector<TokenId> tokens = SomeTokens(40, 3, engine.info().vocab_size);
  std::vector<float> before, after;
  auto session = std::move(engine.NewSession()).value();
  if (!session->Append(tokens, LogitRows::kAll, &before).ok()) return Fail("before", "no logits");

  const Tensor nowhere{reinterpret_cast<void*>(0x1000), DType::kF32, {1, 256}};
  RmsNorm(dynamic_cast<EngineImpl&>(engine).runner().context(), {.x = nowhere, .y = nowhere, .eps = 1e-6f});
  const Status failed = session->Append(tokens, LogitRows::kLast, &after);
  if (failed.message().find(kSays) == std::string::npos) return Fail("failure", failed.message());
  session.reset();

  const Status restarted = engine.Restart();
  if (!restarted.ok()) {  // the driver refuses the GPU to this process: the engine reports it, and a server ends
    const bool closed = engine.health().message() == restarted.message() && !engine.NewSession().ok();
    return closed ? 0 : Fail("restart", restarted.message());
  }
  session = std::move(engine.NewSession()).value();
  const Status again = session->Append(tokens, LogitRows::kAll, &after);
  if (!again.ok()) return Fail("after", again.message());
  return after == before ? 0 : Fail("after", "other logits");
}

// Runs in a separate process, which starts from the beginning: this process would lose its other data on the GPU. For
// the same reason this test does not check for a GPU as other tests do.
TEST(CudaDeviceFailure, IsOverOnceTheDeviceIsOpenedAnewOrTheEngineIsClosed) {
  if (!Device::Open("cuda").ok()) GTEST_SKIP() << "no GPU that this build runs on";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(BreakAndRestart()), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace dsv4::test
