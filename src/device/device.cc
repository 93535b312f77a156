#include "device/device.h"

#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#include "base/str.h"
#include "device/cpu_features.h"
#include "device/cpu_rates.h"
#include "device/cuda.h"
#include "device/fault_log.h"

namespace dsv4 {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kHugePage = size_t{1} << 21;

// The host's memory: every call is done when it returns.
class CpuDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return StrCat("CPU (", CpuFeatureList(), ")"); }
  int64_t free_bytes() const override { return 0; }
  int64_t scratch_bytes() const override { return 0; }
  void* Allocate(int64_t bytes) override {
    const size_t wanted = static_cast<size_t>(bytes > 0 ? bytes : 1);
    const size_t alignment = wanted >= kHugePage ? kHugePage : kAlignment;
    const size_t rounded = (wanted + alignment - 1) / alignment * alignment;
    void* p = std::aligned_alloc(alignment, rounded);
    if (p != nullptr && alignment == kHugePage) (void)::madvise(p, rounded, MADV_HUGEPAGE);  // a hint, for speed only
    return p;
  }
  void Free(void* p) override { std::free(p); }
  void* AllocateStaging(int64_t bytes) override { return Allocate(bytes); }
  void FreeStaging(void* p) override { Free(p); }
  void Upload(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void Download(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void DownloadLater(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void CopyWithin(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void CopyColumns(void* dst, const void* src, int64_t rows, int64_t bytes, int64_t stride) override {
    for (int64_t r = 0; r < rows; ++r)
      Copy(static_cast<uint8_t*>(dst) + r * bytes, static_cast<const uint8_t*>(src) + r * stride, bytes);
  }
  void Clear(void* dst, int64_t bytes) override { std::memset(dst, 0, static_cast<size_t>(bytes)); }
  Status Synchronize() override { return faults_.status(); }
  Status status() const override { return faults_.status(); }
  void Fail(const std::string& why) override { faults_.Note("simulated", why); }
  int64_t Mark() override { return 0; }
  Status Wait(int64_t) override { return faults_.status(); }
  bool Reached(int64_t) override { return true; }
  std::unique_ptr<Recording> Record(const std::function<void()>&) override { return nullptr; }
  Result<double> MeasureReadRate(ThreadPool* pool) override { return CpuReadRate(pool); }
  ExecContext Context(ThreadPool* pool, bool reference_ops) override {
    return {.pool = pool, .reference_ops = reference_ops};
  }

 private:
  static void Copy(void* dst, const void* src, int64_t bytes) {
    if (bytes > 0) std::memcpy(dst, src, static_cast<size_t>(bytes));
  }

  FaultLog faults_{"CPU"};
};

}  // namespace

Result<std::unique_ptr<Device>> Device::Open(const std::string& name) {
  if (name == "cpu") {
    DSV4_RETURN_IF_ERROR(CheckCpuIsa());
    return std::unique_ptr<Device>(std::make_unique<CpuDevice>());
  }
  if (name == "cuda" || name.rfind("cuda:", 0) == 0) return OpenCudaDevice(name);
  return InvalidArgument(StrCat("unknown device '", name, "'; use cpu, cuda or cuda:N"));
}

}  // namespace dsv4
