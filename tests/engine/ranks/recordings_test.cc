#include "engine/ranks/recordings.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace dsv4 {
namespace {

// A device with recordings and the memory that they take, and nothing else.
class FakeDevice : public Device {
 public:
  int64_t free = 1000, each = 100;  // bytes
  int64_t launches = 0, recorded = 0;

  class Made : public Recording {
   public:
    explicit Made(FakeDevice& device) : device_(device) { device_.free -= device_.each; }
    ~Made() override { device_.free += device_.each; }
    void Launch() override { ++device_.launches; }
    int64_t num_kernels() const override { return 1; }

   private:
    FakeDevice& device_;
  };

  std::unique_ptr<Recording> Record(const std::function<void()>& work) override {
    work();  // queues into the recording
    if (free < each) return nullptr;
    ++recorded;
    return std::make_unique<Made>(*this);
  }
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  int64_t free_bytes() const override { return free; }
  Status Synchronize() override { return {}; }
  Status status() const override { return {}; }
  void Fail(const std::string&) override {}

  std::string name() const override { return "fake"; }
  int64_t scratch_bytes() const override { return 0; }
  void* Allocate(int64_t) override { return nullptr; }
  void Free(void*) override {}
  void* AllocateStaging(int64_t) override { return nullptr; }
  void FreeStaging(void*) override {}
  void Upload(void*, const void*, int64_t) override {}
  void Download(void*, const void*, int64_t) override {}
  void DownloadLater(void*, const void*, int64_t) override {}
  void CopyWithin(void*, const void*, int64_t) override {}
  void CopyColumns(void*, const void*, int64_t, int64_t, int64_t) override {}
  void Clear(void*, int64_t) override {}
  int64_t Mark() override { return 0; }
  Status Wait(int64_t) override { return {}; }
  bool Reached(int64_t) override { return true; }
  Result<double> MeasureReadRate(ThreadPool*) override { return 0.0; }
  ExecContext Context(ThreadPool*, bool) override { return {}; }
};

constexpr auto kNothing = [] {};

RepeatedStep StepOfSize(int64_t sequences, StepWork work = StepWork::kModel) { return {work, sequences, sequences}; }

// Ranks record before one of them launches.
TEST(Recordings, PreparingRecordsAndRunsNothing) {
  FakeDevice device;
  Recordings recordings(device, 1000);
  EXPECT_TRUE(recordings.RecordsNext(StepOfSize(1)));
  recordings.Prepare(StepOfSize(1), kNothing);
  EXPECT_FALSE(recordings.RecordsNext(StepOfSize(1)));
  EXPECT_EQ(device.launches, 0);
  recordings.Run(StepOfSize(1), kNothing);
  EXPECT_EQ(device.launches, 1);
  EXPECT_EQ(device.recorded, 1);
  for (int64_t i = 0; i < Recordings::kRunsBefore; ++i) {
    EXPECT_FALSE(recordings.RecordsNext(StepOfSize(20)));
    recordings.Run(StepOfSize(20), kNothing);
  }
  EXPECT_TRUE(recordings.RecordsNext(StepOfSize(20)));
}

TEST(Recordings, NoMemoryForThemMeansNone) {
  FakeDevice device;
  Recordings recordings(device, 0);
  EXPECT_FALSE(recordings.RecordsNext(StepOfSize(1)));
  int64_t runs = 0;
  for (int i = 0; i < 3; ++i) recordings.Run(StepOfSize(1), [&] { ++runs; });
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(device.recorded, 0);
}

TEST(Recordings, SmallStepsAreRecordedAtOnceOthersWhenTheyComeBack) {
  FakeDevice device;
  Recordings recordings(device, 1000);
  recordings.Run(StepOfSize(1), kNothing);
  EXPECT_EQ(device.launches, 1);
  int64_t plain = 0;
  for (int64_t i = 0; i < Recordings::kRunsBefore; ++i) recordings.Run(StepOfSize(20), [&] { ++plain; });
  EXPECT_EQ(plain, Recordings::kRunsBefore);
  EXPECT_EQ(device.recorded, 1);
  recordings.Run(StepOfSize(20), kNothing);
  EXPECT_EQ(device.recorded, 2);
  EXPECT_EQ(device.launches, 2);
  recordings.Run(StepOfSize(1, StepWork::kDraw), kNothing);
  EXPECT_EQ(device.recorded, 3) << "another kind of work";
  recordings.Run({StepWork::kModel, 1, 4}, kNothing);
  EXPECT_EQ(device.recorded, 4) << "other rows of as many sequences";
  recordings.Run({StepWork::kModel, 4, 9}, kNothing);
  EXPECT_EQ(device.recorded, 4) << "too many to be recorded at once";
}

TEST(Recordings, TheLeastUsedGoesWhenTheShareIsFull) {
  FakeDevice device;
  Recordings recordings(device, 300);
  for (int64_t n = 1; n <= 3; ++n) recordings.Run(StepOfSize(n), kNothing);
  EXPECT_EQ(recordings.bytes(), 300);
  recordings.Run(StepOfSize(1), kNothing);
  recordings.Run(StepOfSize(4), kNothing);  // 2 is dropped
  EXPECT_EQ(recordings.count(), 3);
  EXPECT_EQ(device.free, 700);
  EXPECT_EQ(device.recorded, 4);
  recordings.Run(StepOfSize(1), kNothing);
  EXPECT_EQ(device.recorded, 4) << "1 was used later than 2";
  recordings.Run(StepOfSize(2), kNothing);
  EXPECT_EQ(device.recorded, 5);
  for (int64_t n = 1; n < 200; ++n) recordings.Run(StepOfSize(n % 8 + 1), kNothing);
  EXPECT_LE(recordings.bytes(), 300);
}

TEST(Recordings, WithoutMemoryOthersGoFirstAndThenStepsRunWithout) {
  FakeDevice device;
  device.free = 250;
  Recordings recordings(device, 1000);
  for (int64_t n = 1; n <= 3; ++n) recordings.Run(StepOfSize(n), kNothing);
  EXPECT_EQ(recordings.count(), 2) << "the third took the place of the first";
  EXPECT_EQ(device.launches, 3);
  recordings.Clear();
  EXPECT_EQ(recordings.count(), 0);
  EXPECT_EQ(device.free, 250);

  device.free = 50;
  int64_t runs = 0;
  device.launches = 0;
  for (int i = 0; i < 5; ++i) recordings.Run(StepOfSize(1), [&] { ++runs; });
  EXPECT_EQ(device.launches, 0);
  EXPECT_EQ(runs, 5 + 1) << "five plain steps, one attempt to record";
  device.free = 500;
  for (int64_t i = 0; i < Recordings::kRunsBefore; ++i) recordings.Run(StepOfSize(1), kNothing);
  EXPECT_GT(device.launches, 0) << "tried again once there was time for it";
}

TEST(Recordings, MakeRoomForKv) {
  FakeDevice device, of_another_rank;
  Recordings recordings(device, 1000), others(of_another_rank, 1000);
  Recordings* const of_ranks[] = {&others, &recordings};
  int64_t attempts = 0;
  const auto reserve = [&]() -> Status {
    ++attempts;
    return device.free >= 950 ? Status{} : ResourceExhausted("no memory for a page");
  };
  EXPECT_TRUE(ReserveKv(of_ranks, reserve).ok());
  EXPECT_EQ(attempts, 1);
  for (int64_t n = 1; n <= 3; ++n) {
    for (Recordings* r : of_ranks) r->Run(StepOfSize(n), kNothing);
  }
  EXPECT_TRUE(ReserveKv(of_ranks, reserve).ok());
  EXPECT_EQ(attempts, 3);
  EXPECT_EQ(recordings.count(), 0);
  EXPECT_EQ(others.count(), 0) << "ranks record the same steps";
  recordings.Run(StepOfSize(1), kNothing);
  EXPECT_EQ(recordings.count(), 0) << "the memory is not taken back at once";
  device.free = 500;
  EXPECT_EQ(ReserveKv(of_ranks, reserve).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(attempts, 4) << "there is nothing to give up";
}

}  // namespace
}  // namespace dsv4
