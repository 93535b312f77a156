// A device with the memory of the CPU. Tests override what they pretend.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "device/device.h"

namespace dsv4 {

class CpuBackedDevice : public Device {
 public:
  DeviceKind kind() const override { return cpu_->kind(); }
  std::string name() const override { return cpu_->name(); }
  int64_t free_bytes() const override { return 0; }
  int64_t scratch_bytes() const override { return 0; }
  void* Allocate(int64_t bytes) override { return cpu_->Allocate(bytes); }
  void Free(void* p) override { cpu_->Free(p); }
  void* AllocateStaging(int64_t bytes) override { return cpu_->AllocateStaging(bytes); }
  void FreeStaging(void* p) override { cpu_->FreeStaging(p); }
  void Upload(void* dst, const void* src, int64_t bytes) override { cpu_->Upload(dst, src, bytes); }
  void Download(void* dst, const void* src, int64_t bytes) override { cpu_->Download(dst, src, bytes); }
  void DownloadLater(void* dst, const void* src, int64_t bytes) override { cpu_->DownloadLater(dst, src, bytes); }
  void CopyWithin(void* dst, const void* src, int64_t bytes) override { cpu_->CopyWithin(dst, src, bytes); }
  void CopyColumns(void* dst, const void* src, int64_t rows, int64_t bytes, int64_t stride) override {
    cpu_->CopyColumns(dst, src, rows, bytes, stride);
  }
  void Clear(void* dst, int64_t bytes) override { cpu_->Clear(dst, bytes); }
  Status Synchronize() override { return {}; }
  Status status() const override { return {}; }
  void Fail(const std::string&) override {}
  int64_t Mark() override { return 0; }
  Status Wait(int64_t) override { return {}; }
  bool Reached(int64_t) override { return true; }
  std::unique_ptr<Recording> Record(const std::function<void()>&) override { return nullptr; }
  Result<double> MeasureReadRate(ThreadPool* pool) override { return cpu_->MeasureReadRate(pool); }
  ExecContext Context(ThreadPool* pool, bool reference_ops) override { return cpu_->Context(pool, reference_ops); }

 private:
  std::unique_ptr<Device> cpu_ = std::move(Device::Open("cpu")).value();
};

}  // namespace dsv4
