#include "engine/memory/weight_digest.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "model/deepseek_v4/load/checkpoint_builder.h"
#include "model/model.h"

namespace dsv4 {
namespace {

using test::MakeCheckpoint;
using test::TestTensor;

uint64_t DigestOf(const std::vector<TestTensor>& tensors) {
  const test::TempDir dir;
  test::WriteModel(dir.path(), test::TinyConfigJson(), tensors);
  const std::unique_ptr<Device> device = std::move(Device::Open("cpu")).value();
  ThreadPool pool(1);
  const auto source = std::move(OpenModel(dir.path(), {}, *device)).value();
  LoadTimes times;
  Device* const devices[] = {device.get()};
  const auto models = std::move(source->Load(devices, pool, 0, {}, &times)).value();
  return WeightDigest(*models.front(), device->Context(&pool, false), *device).value();
}

// One changed byte of any tensor, its scales or its global scale, for each expert too: at the beginning, in between or
// at the end.
TEST(WeightDigest, SeesEveryTensor) {
  for (const test::Dialect& dialect : {test::Dialect{}, test::kOfficial, test::kModelOpt}) {
    std::vector<TestTensor> tensors = MakeCheckpoint(test::TinyConfig(), dialect);
    const uint64_t digest = DigestOf(tensors);
    EXPECT_EQ(DigestOf(tensors), digest);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].name.ends_with("input_scale")) continue;  // unused
      const size_t size = tensors[i].bytes.size();
      size_t at = std::vector<size_t>{0, size / 2 + i % 7 * size / 16, size - 1}[i % 3];
      if (tensors[i].name.ends_with("tid2eid")) at = at / 8 * 8;  // other bytes would make it no expert
      char& byte = tensors[i].bytes[at];
      byte = static_cast<char>(byte ^ 1);
      EXPECT_NE(DigestOf(tensors), digest) << tensors[i].name << ", byte " << at << " of " << size;
      byte = static_cast<char>(byte ^ 1);
    }
  }
}

}  // namespace
}  // namespace dsv4
