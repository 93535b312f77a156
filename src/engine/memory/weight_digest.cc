#include "engine/memory/weight_digest.h"

#include <algorithm>
#include <vector>

namespace dsv4 {

namespace {

constexpr int64_t kSampleBytes = 256;
constexpr int64_t kBatch = 4096;  // samples in flight together: a wait for each would take seconds on a GPU

// Samples in flight from the device. Their digest does not depend on the batches.
class Samples {
 public:
  explicit Samples(Device& device) : device_(device), ok_(staged_.Allocate(device, kBatch * kSampleBytes)) {}
  ~Samples() { (void)device_.Synchronize(); }
  bool ok() const { return ok_; }

  void Take(const void* data, int64_t bytes, float factor) {
    AddToDigest(&digest_, &bytes, sizeof(bytes));
    AddToDigest(&digest_, &factor, sizeof(factor));
    const int64_t n = std::min(bytes, kSampleBytes);
    for (const int64_t at : {(bytes - n) / 3, bytes - n}) {
      if (static_cast<int64_t>(sizes_.size()) == kBatch) Collect();
      device_.DownloadLater(staged_.data() + static_cast<int64_t>(sizes_.size()) * kSampleBytes,
                            static_cast<const uint8_t*>(data) + at, n);
      sizes_.push_back(n);
    }
  }
  Result<uint64_t> Finish() {
    Collect();
    DSV4_RETURN_IF_ERROR(status_);
    return digest_;
  }

 private:
  void Collect() {
    if (status_.ok()) status_ = device_.Synchronize();
    for (size_t i = 0; i < sizes_.size(); ++i) AddToDigest(&digest_, staged_.data() + i * kSampleBytes, sizes_[i]);
    sizes_.clear();
  }

  Device& device_;
  StagingBuffer staged_;
  const bool ok_;
  std::vector<int64_t> sizes_;  // of the samples in staged_
  uint64_t digest_ = kDigestBegin;
  Status status_;
};

}  // namespace

void AddToDigest(uint64_t* digest, const void* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) *digest = (*digest ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001B3u;
}

Result<uint64_t> WeightDigest(const LoadedModel& model, Device& device, int slice) {
  Samples samples(device);
  if (!samples.ok()) return ResourceExhausted("no memory for samples of the weights");
  const auto take = [&](const void* data, int64_t bytes, float factor) { samples.Take(data, bytes, factor); };
  slice < 0 ? model.VisitBytes(take) : model.VisitSlice(slice, take);
  return samples.Finish();
}

}  // namespace dsv4
