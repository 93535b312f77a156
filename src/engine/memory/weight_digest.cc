#include "engine/memory/weight_digest.h"

#include <vector>

#include "ops/digest/digest.h"

namespace dsv4 {

namespace {

constexpr int64_t kBatch = 4096;  // digests in flight together: a wait for each would take seconds on a GPU

// Digests of pieces, queued on the device. Their order counts, the batches do not.
class Pieces {
 public:
  Pieces(const ExecContext& ctx, Device& device)
      : ctx_(ctx), device_(device), ok_(sums_.Allocate(device, kBatch * static_cast<int64_t>(sizeof(int64_t)))) {}
  ~Pieces() { (void)device_.Synchronize(); }
  bool ok() const { return ok_; }

  void Take(const void* data, int64_t bytes, float factor) {
    if (count_ == 0) device_.Clear(sums_.data(), sums_.bytes());
    AddToDigest(&digest_, &bytes, sizeof(bytes));
    AddToDigest(&digest_, &factor, sizeof(factor));
    Digest(ctx_, {.data = static_cast<const uint8_t*>(data),
                  .bytes = bytes,
                  .sum = {reinterpret_cast<int64_t*>(sums_.data()) + count_, DType::kI64, {1}}});
    if (++count_ == kBatch) Collect();
  }
  Result<uint64_t> Finish() {
    Collect();
    DSV4_RETURN_IF_ERROR(status_);
    return digest_;
  }

 private:
  void Collect() {
    std::vector<int64_t> sums(static_cast<size_t>(count_));
    const int64_t bytes = count_ * static_cast<int64_t>(sizeof(int64_t));
    if (count_ > 0) device_.Download(sums.data(), sums_.data(), bytes);
    if (status_.ok()) status_ = device_.Synchronize();
    AddToDigest(&digest_, sums.data(), bytes);
    count_ = 0;
  }

  const ExecContext& ctx_;
  Device& device_;
  DeviceBuffer sums_;
  const bool ok_;
  int64_t count_ = 0;
  uint64_t digest_ = kDigestBegin;
  Status status_;
};

}  // namespace

void AddToDigest(uint64_t* digest, const void* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) *digest = (*digest ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001B3u;
}

Result<uint64_t> WeightDigest(const LoadedModel& model, const ExecContext& ctx, Device& device, int slice) {
  device.Bind();
  Pieces pieces(ctx, device);
  if (!pieces.ok()) return ResourceExhausted("no memory for digests of the weights");
  const auto take = [&](const void* data, int64_t bytes, float factor) { pieces.Take(data, bytes, factor); };
  slice < 0 ? model.VisitBytes(take) : model.VisitSlice(slice, take);
  return pieces.Finish();
}

}  // namespace dsv4
