// Collectives of several ranks: by events on one GPU; by words between GPUs, if there are several.
#include "device/exchange.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "base/str.h"
#include "ops/gather_ranks/gather_ranks.h"
#include "ops/gather_shares/gather_shares.h"
#include "ops/hc_bridge/hc_bridge.h"
#include "ops/hc_pre/hc_pre.h"
#include "ops/sum_ranks/sum_ranks.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/random.h"
#include "support/ranks.h"

namespace dsv4::test {
namespace {

// `count` devices: the same GPU for all, or one each; none if the machine does not have them.
std::vector<std::unique_ptr<Device>> OpenGpus(int count, bool one_gpu) {
  std::vector<std::unique_ptr<Device>> devices;
  for (int r = 0; r < count; ++r) {
    auto opened = Device::Open(StrCat("cuda:", one_gpu ? 0 : r));
    if (!opened.ok()) return {};
    devices.push_back(std::move(opened).value());
  }
  return devices;
}

class GpuRanks {
 public:
  GpuRanks(std::vector<std::unique_ptr<Device>> devices, ExchangeTransport transport, int64_t elements,
           double timeout_s = 20, uint32_t first = 0, int64_t early = 0)
      : devices_(std::move(devices)) {
    std::vector<ExchangeGpu> gpus;
    for (auto& device : devices_) {
      device->Bind();
      contexts_.push_back(device->Context(nullptr, false));
      gpus.push_back({.index = device->index(), .stream = contexts_.back().stream});
    }
    auto opened = OpenGpuExchange(gpus, transport,
                                  {.timeout_s = timeout_s,
                                   .elements = elements,
                                   .bulk = early,
                                   .early = early,
                                   .first = first,
                                   .rank_name = "GPU"});
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    if (opened.ok()) exchange_ = std::move(opened).value();
  }

  Exchange& exchange() { return *exchange_; }
  // Runs work(ctx, rank, device) on one thread per rank. The queued work is complete when this returns.
  void Run(const std::function<void(const ExecContext&, int, Device&)>& work) {
    RunRanks(*exchange_, [&](const ExecContext& of_rank, int r) {
      Device& device = *devices_[static_cast<size_t>(r)];
      device.Bind();
      ExecContext ctx = contexts_[static_cast<size_t>(r)];
      ctx.ranks = of_rank.ranks;
      work(ctx, r, device);
      const Status status = device.Synchronize();
      EXPECT_TRUE(status.ok()) << status.message();
    });
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<ExecContext> contexts_;
  std::unique_ptr<Exchange> exchange_;
};

// Waits for the other ranks. All ranks do everything that may wait for a GPU (allocating, loading kernels) before any
// rank polls.
void Together(Exchange& exchange, int rank) {
  ASSERT_TRUE(exchange.Meet(rank, -1, nullptr) && exchange.Leave(rank, -1));
}

float TreeOf(const std::vector<std::vector<float>>& parts, size_t i) {
  std::vector<float> v;
  for (const auto& part : parts) v.push_back(part[i]);
  for (size_t width = 1; width < v.size(); width *= 2) {
    for (size_t r = 0; r < v.size(); r += 2 * width) v[r] += v[r + width];
  }
  return v[0];
}

// Sums of several shapes in a row, also payloads larger than the exchange memory; then gathered columns and shares.
// Larger payloads travel as arrays if there is a link, also in pieces; an odd number of elements never does.
void SumAndGather(int count, bool one_gpu, ExchangeTransport transport) {
  auto devices = OpenGpus(count, one_gpu);
  if (devices.empty()) GTEST_SKIP() << "needs " << count << " GPUs";
  const int64_t room = 5000;
  GpuRanks ranks(std::move(devices), transport, room);
  Random random(static_cast<uint64_t>(count));
  for (const Shape shape : {Shape{1, 4}, Shape{1, 4096}, Shape{3, 257}, Shape{2, 2500}, Shape{33, 512}, Shape{1, 4096},
                            Shape{7, 1001}, Shape{128, 256}, Shape{9, 4096}, Shape{300, 128}}) {
    const int64_t n = shape.num_elements(), columns = shape[1];
    std::vector<std::vector<float>> parts;
    for (int r = 0; r < count; ++r) parts.push_back(random.Hostiles(n));
    parts[0][0] = std::nanf("");
    for (auto& part : parts) part[1] = -0.0f;
    std::vector<float> want, want_gathered(static_cast<size_t>(n * count));
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) want.push_back(TreeOf(parts, i));
    for (int64_t i = 0; i < n; ++i) {
      for (int p = 0; p < count; ++p)
        want_gathered[static_cast<size_t>((i / columns * count + p) * columns +
                                          i % columns)] = parts[static_cast<size_t>(p)][static_cast<size_t>(i)];
    }
    std::vector<std::vector<float>> sums(static_cast<size_t>(count)), gathered = sums, shares = sums;
    std::vector<float> want_shares;
    for (int p = 0; p < count; ++p) {
      const RankShare share = ShareOf(shape[0], p, count, kShareRows);
      const auto& part = parts[static_cast<size_t>(p)];
      want_shares.insert(want_shares.end(), part.begin() + share.begin * columns, part.begin() + share.end * columns);
    }
    ranks.Run([&](const ExecContext& ctx, int r, Device& device) {
      DeviceBuffer memory, y, all;
      ASSERT_TRUE(memory.Allocate(device, 4 * n + 4) && y.Allocate(device, 4 * n) &&
                  all.Allocate(device, 4 * n * count));
      uint8_t* const x = memory.data() + (columns % 2 == 0 ? 0 : 4);  // rows need no alignment
      const auto at = static_cast<size_t>(r);
      device.Upload(x, parts[at].data(), 4 * n);
      device.Upload(y.data(), parts[at].data(), 4 * n);
      Together(ranks.exchange(), r);
      int64_t site = 0;
      const SumRanksArgs sum{.y = {y.data(), DType::kF32, shape}, .site = site};
      SumRanks(ctx, sum);
      site += SumExchanges(ctx, sum);
      GatherRanks(
          ctx,
          {.x = {x, DType::kF32, shape}, .y = {all.data(), DType::kF32, {shape[0], columns * count}}, .site = site});
      site += RankExchanges(ctx, n);
      GatherSharesArgs shared{.site = site};
      shared.AddRows(ctx, {x, DType::kF32, shape});
      GatherShares(ctx, shared);
      site += ShareExchanges(ctx, shared);
      AdvanceExchanges(ctx, site);
      sums[at].resize(static_cast<size_t>(n)), gathered[at].resize(static_cast<size_t>(n * count));
      shares[at].resize(static_cast<size_t>(n));
      device.Download(shares[at].data(), x, 4 * n);
      device.Download(sums[at].data(), y.data(), 4 * n);
      device.Download(gathered[at].data(), all.data(), 4 * n * count);
      Together(ranks.exchange(), r);
    });
    for (int r = 0; r < count; ++r) {
      EXPECT_TRUE(BitEqual(sums[static_cast<size_t>(r)], want))
          << "rank " << r << " of " << count << ", " << shape.ToString();
      EXPECT_TRUE(BitEqual(gathered[static_cast<size_t>(r)], want_gathered))
          << "rank " << r << " of " << count << ", " << shape.ToString();
      EXPECT_TRUE(BitEqual(shares[static_cast<size_t>(r)], want_shares))
          << "rank " << r << " of " << count << ", " << shape.ToString();
    }
  }
  EXPECT_TRUE(ranks.exchange().status().ok()) << ranks.exchange().status().message();
}

TEST(CudaExchange, ByEventsOnOneGpu) {
  DSV4_GPU_OR_SKIP();
  for (const int count : {2, 4, 8}) SumAndGather(count, true, ExchangeTransport::kEvents);
}
TEST(CudaExchange, ByWordsBetweenTwo) { SumAndGather(2, false, ExchangeTransport::kWords); }
TEST(CudaExchange, ByWordsBetweenFour) { SumAndGather(4, false, ExchangeTransport::kWords); }
TEST(CudaExchange, ByWordsBetweenEight) { SumAndGather(8, false, ExchangeTransport::kWords); }
TEST(CudaExchange, ByEventsBetweenTwo) { SumAndGather(2, false, ExchangeTransport::kEvents); }

// Steps of sums, recorded once: their tags rise without the host. Each sum doubles the values that the first sum has
// made equal.
constexpr int64_t kRecordedSites = 7;
void ExpectRecordedSums(GpuRanks& ranks, int64_t steps) {
  const int64_t n = 4096, sites = kRecordedSites;
  std::vector<std::vector<float>> got(2, std::vector<float>(static_cast<size_t>(n)));
  ranks.Run([&](const ExecContext& ctx, int r, Device& device) {
    DeviceBuffer y;
    ASSERT_TRUE(y.Allocate(device, 4 * n));
    std::vector<float> start(static_cast<size_t>(n), r == 0 ? 0x1p-100f : 0.0f);
    device.Upload(y.data(), start.data(), 4 * n);
    const auto recording = device.Record([&] {
      for (int64_t site = 0; site < sites; ++site) SumRanks(ctx, {.y = {y.data(), DType::kF32, {1, n}}, .site = site});
      AdvanceExchanges(ctx, sites);
    });
    ASSERT_NE(recording, nullptr);
    Together(ranks.exchange(), r);
    for (int64_t s = 0; s < steps; ++s) recording->Launch();
    device.Download(got[static_cast<size_t>(r)].data(), y.data(), 4 * n);
    Together(ranks.exchange(), r);
  });
  const float want = std::ldexp(0x1p-100f, static_cast<int>(sites * steps) - 1);
  for (const auto& values : got) {
    for (const float v : values) ASSERT_EQ(v, want);
  }
}

TEST(CudaExchange, RecordingsOfWordsCanBeLaunchedAgain) {
  auto devices = OpenGpus(2, false);
  if (devices.empty()) GTEST_SKIP() << "needs 2 GPUs";
  GpuRanks ranks(std::move(devices), ExchangeTransport::kWords, 4096);
  ExpectRecordedSums(ranks, 25);
}

// Up to the largest tag: the counters are rewound in time, and only then.
TEST(CudaExchange, TagsNearTheirLargest) {
  const uint32_t steps = 20, exchanges = steps * static_cast<uint32_t>(kRecordedSites);
  for (const uint32_t first : {0xFFFFFFFFu - exchanges, 0x7FFFFFFFu - exchanges / 2}) {
    auto devices = OpenGpus(2, false);
    if (devices.empty()) GTEST_SKIP() << "needs 2 GPUs";
    GpuRanks ranks(std::move(devices), ExchangeTransport::kWords, 4096, 20, first);
    ExpectRecordedSums(ranks, steps);
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(ranks.exchange().RewindInTime().ok());
      ExpectRecordedSums(ranks, steps);
    }
    EXPECT_TRUE(ranks.exchange().status().ok()) << ranks.exchange().status().message();
  }
}

// A bridge's tensors in a GPU's memory.
class BridgeOnGpu {
 public:
  BridgeOnGpu(Device& device, Random& random, int64_t t, int64_t slots) : device_(device) {
    const int64_t h = 4, d = 4096, n = (2 + h) * h;
    args = {.streams = Make(random, {t, h, d}),
            .y = slots == 1 ? Make(random, {t, d}) : Make(random, {t, slots, d}),
            .base = Make(random, {n}),
            .scale = Make(random, {3}),
            .iters = 20,
            .eps = 1e-6f,
            .norm_eps = 1e-6f,
            .norm = Make(random, {d}),
            .x = Make(random, {t, d}),
            .post = Make(random, {t, h}),
            .comb = Make(random, {t, h, h})};
    args.fn = {.format = WeightFormat::kF32, .rows = n, .cols = h * d};
    args.fn.codes = static_cast<const uint8_t*>(Make(random, {n, h * d}).data);
  }
  // The results of the bridge.
  std::vector<float> Results() const {
    std::vector<float> all;
    for (const Tensor& t : {args.streams, args.x, args.post, args.comb}) {
      std::vector<float> values(static_cast<size_t>(t.num_elements()));
      device_.Download(values.data(), t.data, t.num_bytes());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  HcBridgeArgs args;

 private:
  Tensor Make(Random& random, const Shape& shape) {
    const std::vector<float> values = random.Normals(shape.num_elements());
    memory_.push_back(std::make_unique<DeviceBuffer>());
    EXPECT_TRUE(memory_.back()->Allocate(device_, 4 * shape.num_elements()));
    device_.Upload(memory_.back()->data(), values.data(), 4 * shape.num_elements());
    return {memory_.back()->data(), DType::kF32, shape};
  }
  Device& device_;
  std::vector<std::unique_ptr<DeviceBuffer>> memory_;
};

// A bridge that adds the ranks' partials has the bits of sum_ranks followed by a bridge; with choices, of the sums of
// the choices.
TEST(CudaExchange, ABridgeAddsUpRanks) {
  auto devices = OpenGpus(2, false);
  if (devices.empty()) GTEST_SKIP() << "needs 2 GPUs";
  GpuRanks ranks(std::move(devices), ExchangeTransport::kWords, 4 * 4096);
  for (const int64_t slots : {1, 7}) {
    for (int64_t t = 1; t <= kMaxClusterTokens; ++t) {
      std::vector<std::vector<float>> fused(2), apart(2);
      ranks.Run([&](const ExecContext& ctx, int r, Device& device) {
        Random same(1), same_again(1), part(static_cast<uint64_t>(r) + 5), part_again(static_cast<uint64_t>(r) + 5);
        BridgeOnGpu a(device, same, t, slots), b(device, same_again, t, slots);
        std::vector<float> y = part.Normals(a.args.y.num_elements());
        device.Upload(a.args.y.data, y.data(), a.args.y.num_bytes());
        device.Upload(b.args.y.data, y.data(), a.args.y.num_bytes());
        ASSERT_TRUE(HcBridgeSumsRanks(ctx, t, 4, 4096, a.args.fn));
        Together(ranks.exchange(), r);
        a.args.sums_ranks = true;
        HcBridge(ctx, a.args);
        if (slots > 1) {  // in order, from 0
          std::vector<float> sum(static_cast<size_t>(t * 4096));
          for (int64_t i = 0; i < t * 4096; ++i) {
            for (int64_t s = 0; s < slots; ++s)
              sum[static_cast<size_t>(i)] += y[static_cast<size_t>((i / 4096 * slots + s) * 4096 + i % 4096)];
          }
          b.args.y = {b.args.y.data, DType::kF32, {t, 4096}};
          device.Upload(b.args.y.data, sum.data(), b.args.y.num_bytes());
        }
        SumRanks(ctx, {.y = b.args.y, .site = 1});
        HcBridge(ctx, b.args);
        AdvanceExchanges(ctx, 2);
        fused[static_cast<size_t>(r)] = a.Results();
        apart[static_cast<size_t>(r)] = b.Results();
        Together(ranks.exchange(), r);
      });
      for (size_t r = 0; r < 2; ++r) EXPECT_TRUE(BitEqual(fused[r], apart[r])) << "rank " << r << ", " << t << " rows";
      EXPECT_TRUE(BitEqual(fused[0], fused[1]));
    }
  }
  EXPECT_TRUE(ranks.exchange().status().ok()) << ranks.exchange().status().message();
}

// Words and arrays of all sizes alternate, with random delays of the ranks: a buffer is never written before it has
// been read.
TEST(CudaExchange, WordsAndArraysTakeTurns) {
  auto devices = OpenGpus(2, false);
  if (devices.empty()) GTEST_SKIP() << "needs 2 GPUs";
  const int64_t room = 4096, most = 300 * 4096, rounds = 3000;
  GpuRanks ranks(std::move(devices), ExchangeTransport::kWords, room);
  std::vector<std::vector<float>> got(2, std::vector<float>(static_cast<size_t>(most)));
  std::vector<float> ones(static_cast<size_t>(most));
  for (size_t i = 0; i < ones.size(); ++i) ones[i] = static_cast<float>(i % 1021);
  std::atomic<int64_t> wrong = 0;
  ranks.Run([&](const ExecContext& ctx, int r, Device& device) {
    DeviceBuffer y, start;
    ASSERT_TRUE(y.Allocate(device, 4 * most) && start.Allocate(device, 4 * most));
    device.Upload(start.data(), ones.data(), 4 * most);
    Together(ranks.exchange(), r);
    Random random(7), mine(static_cast<uint64_t>(r));
    for (int64_t k = 0; k < rounds; ++k) {
      const int64_t n = random.Chance(0.5) ? 4 * (1 + random.Index(room / 4)) : 4096 * (1 + random.Index(most / 4096));
      if (mine.Chance(0.02)) std::this_thread::sleep_for(std::chrono::microseconds(mine.Index(500)));
      device.CopyWithin(y.data(), start.data(), 4 * n);
      const SumRanksArgs sum{.y = {y.data(), DType::kF32, {n / 4, 4}}};
      SumRanks(ctx, sum);
      GatherSharesArgs shared{.site = SumExchanges(ctx, sum)};
      shared.AddRows(ctx, sum.y);
      GatherShares(ctx, shared);
      AdvanceExchanges(ctx, shared.site + ShareExchanges(ctx, shared));
      if (k % 50 != 0) continue;
      auto& values = got[static_cast<size_t>(r)];
      device.Download(values.data(), y.data(), 4 * n);
      for (int64_t i = 0; i < n; ++i) wrong += values[static_cast<size_t>(i)] != 2 * ones[static_cast<size_t>(i)];
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(ranks.exchange().status().ok()) << ranks.exchange().status().message();
}

// Data that is sent early arrives, independently of the stream's other work and of random delays of the ranks. Each
// value states its rank and round, so a value that is read too early, or overwritten before it is read, is detected.
void SendEarlyInRounds(int count) {
  auto devices = OpenGpus(count, false);
  if (devices.empty()) GTEST_SKIP() << "needs " << count << " GPUs";
  const int64_t t = 4104 * count, width = 256, rounds = 40, early = (t / count + 8) * (width + 1);
  GpuRanks ranks(std::move(devices), ExchangeTransport::kWords, 4096, 20, 0, early + 2 * kBulkChunk);
  std::atomic<int64_t> wrong = 0, sent = 0;
  ranks.Run([&](const ExecContext& ctx, int r, Device& device) {
    DeviceBuffer rows, ids, small;
    ASSERT_TRUE(rows.Allocate(device, 4 * t * width) && ids.Allocate(device, 4 * t) && small.Allocate(device, 4 * 64));
    device.Clear(small.data(), 4 * 64);
    std::vector<float> values(static_cast<size_t>(t * width));
    std::vector<int32_t> marks(static_cast<size_t>(t));
    Together(ranks.exchange(), r);
    Random mine(static_cast<uint64_t>(r));
    for (int64_t k = 0; k < rounds; ++k) {
      const auto value = [&](int of, int64_t part) { return static_cast<float>((k * 2 + part) * 8 + of); };
      for (int64_t part = 0; part < 2; ++part) {  // two, one after the other, before another collective
        std::fill(values.begin(), values.end(), value(r, part));
        std::fill(marks.begin(), marks.end(), static_cast<int32_t>(k));
        device.Upload(rows.data(), values.data(), 4 * t * width);
        device.Upload(ids.data(), marks.data(), 4 * t);
        if (mine.Chance(0.2)) std::this_thread::sleep_for(std::chrono::microseconds(mine.Index(2000)));
        GatherSharesArgs shares;
        shares.AddRows(ctx, {rows.data(), DType::kF32, {t, width}});
        shares.AddRows(ctx, {ids.data(), DType::kI32, {t}});
        SendShares(ctx, shares);
        sent += shares.sent ? 1 : 0;
        device.Clear(small.data(), 4 * 64);
        GatherShares(ctx, shares);
        device.Download(values.data(), rows.data(), 4 * t * width);
        for (int p = 0; p < count; ++p) {
          const RankShare share = ShareOf(t, p, count, kShareRows);
          for (int64_t i = share.begin * width; i < share.end * width; ++i)
            wrong += values[static_cast<size_t>(i)] != value(p, part);
        }
      }
      SumRanks(ctx, {.y = {small.data(), DType::kF32, {1, 64}}});
      AdvanceExchanges(ctx, 1);
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(sent, 2 * rounds * count);
  EXPECT_TRUE(ranks.exchange().status().ok()) << ranks.exchange().status().message();
}
TEST(CudaExchange, SentEarlyBetweenTwo) { SendEarlyInRounds(2); }
TEST(CudaExchange, SentEarlyBetweenFour) { SendEarlyInRounds(4); }

TEST(CudaExchange, ADeadGpuIsNamedAndTheStepDrains) {
  auto devices = OpenGpus(2, false);
  if (devices.empty()) GTEST_SKIP() << "needs 2 GPUs";
  GpuRanks ranks(std::move(devices), ExchangeTransport::kWords, 4096, 0.3);
  const auto begun = std::chrono::steady_clock::now();
  ranks.Run([&](const ExecContext& ctx, int r, Device& device) {
    if (r == 1) return;
    DeviceBuffer y;
    ASSERT_TRUE(y.Allocate(device, 4 * 4096));
    device.Clear(y.data(), 4 * 4096);
    for (int64_t site = 0; site < 100; ++site) SumRanks(ctx, {.y = {y.data(), DType::kF32, {1, 4096}}, .site = site});
    EXPECT_TRUE(device.Synchronize().ok());
  });
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(), 2);
  EXPECT_THAT(ranks.exchange().status().message(),
              ::testing::HasSubstr("GPU 1 sent nothing to GPU 0 for 0.3 s (collective 0)"));
}

TEST(CudaExchange, AFailureOfTheHostEndsPollsAtOnce) {
  auto devices = OpenGpus(2, false);
  if (devices.empty()) GTEST_SKIP() << "needs 2 GPUs";
  GpuRanks ranks(std::move(devices), ExchangeTransport::kWords, 4096, 0);
  ranks.Run([&](const ExecContext& ctx, int r, Device& device) {
    if (r == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return ranks.exchange().FailRank(1, ResourceExhausted("no memory for this step"));
    }
    DeviceBuffer y;
    ASSERT_TRUE(y.Allocate(device, 4 * 4096));
    device.Clear(y.data(), 4 * 4096);
    SumRanks(ctx, {.y = {y.data(), DType::kF32, {1, 4096}}});
  });
  EXPECT_EQ(ranks.exchange().status().message(), "GPU 1: no memory for this step");
}

TEST(CudaExchange, WordsNeedAGpuARank) {
  DSV4_GPU_OR_SKIP();
  const ExchangeGpu gpu{.index = 0, .stream = Gpu()->Context(nullptr, false).stream};
  const auto opened = OpenGpuExchange(std::vector<ExchangeGpu>{gpu, gpu}, ExchangeTransport::kWords,
                                      {.elements = 4096});
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().message(), "GPU 0 has two ranks: they need collectives by events");
}

}  // namespace
}  // namespace dsv4::test
