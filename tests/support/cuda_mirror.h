// Runs an op on the GPU with the arguments of a test on the host:
//   Mirror gpu;                       // DSV4_GPU_OR_SKIP() before
//   LinearCuda(gpu.ctx(), {.x = gpu.In(x.tensor()), .parts = {{gpu.Weight(w.tensor()), gpu.Out(y.tensor())}}});
//   gpu.Finish();                     // waits, checks errors and guard bytes, copies Out() and Cache() back
// Every device buffer is separate, between guard bytes. Out() first copies the host's (poisoned) content, so an element
// that a kernel does not write stays poison.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/device.h"
#include "kv/layout.h"
#include "ops/pack_weight/pack_weight.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4::test {

// The first GPU; null: this build supports no GPU of this machine.
inline Device* Gpu() {
  static const std::unique_ptr<Device> device = [] {
    auto opened = Device::Open("cuda");
    return opened.ok() ? std::move(opened).value() : nullptr;
  }();
  return device.get();
}

// Whether this machine has `count` GPUs.
inline bool HasGpus(int count) { return Device::Open("cuda:" + std::to_string(count - 1)).ok(); }

#define DSV4_GPU_OR_SKIP() \
  if (::dsv4::test::Gpu() == nullptr) GTEST_SKIP() << "no GPU that this build runs on"

class Mirror {
 public:
  // Binds the device: engines with several GPUs leave the last one bound.
  Mirror() : device_(*Gpu()), ctx_(device_.Context(nullptr, false)) { device_.Bind(); }
  // With the settings of `like` that are independent of the GPU: the regime and the type of inputs.
  explicit Mirror(const ExecContext& like) : Mirror() {
    ctx_.regime = like.regime;
    ctx_.f32_inputs = like.f32_inputs;
  }
  ~Mirror() {
    for (const Block& b : blocks_) device_.Free(b.device);
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  ExecContext& ctx() { return ctx_; }
  Device& device() { return device_; }

  Tensor In(const Tensor& host) {
    return host ? Tensor{Add(host.data, host.num_bytes(), false), host.dtype, host.shape} : Tensor{};
  }
  Tensor Out(const Tensor& host) {
    return host ? Tensor{Add(host.data, host.num_bytes(), true), host.dtype, host.shape} : Tensor{};
  }
  // An input that may share its memory with an operand that is present already.
  Tensor In(const Tensor& host, const Tensor& other, const Tensor& other_on_device) {
    return host && host.data == other.data ? other_on_device : In(host);
  }
  // Scratch of a contract (poisoned, not copied back).
  Tensor Temp(Shape shape, DType dtype = DType::kF32) {
    std::vector<uint8_t> poison(static_cast<size_t>(shape.num_elements() * SizeOf(dtype)), 0xFF);
    return {Add(poison.data(), static_cast<int64_t>(poison.size()), false), dtype, shape};
  }

  // The layout of the engine on a GPU: tiles, except F32 and `rows` (an embedding table, hyper-connection weights).
  QuantTensor Weight(const QuantTensor& host, bool rows = false) {
    QuantTensor w = host;
    if (rows || host.format == WeightFormat::kF32) {
      w.codes = Add(host.codes, host.rows * host.row_bytes(), false);
      DSV4_CHECK(!host.quantised());
      return w;
    }
    std::vector<uint8_t> codes(static_cast<size_t>(PackedCodeBytes(host))),
        scales(static_cast<size_t>(PackedScaleBytes(host)));
    PackWeight({}, {.w = host, .codes = codes.data(), .block_scale = scales.data()});
    return PackedView(
        {.w = host,
         .codes = Add(codes.data(), static_cast<int64_t>(codes.size()), false),
         .block_scale = scales.empty() ? nullptr : Add(scales.data(), static_cast<int64_t>(scales.size()), false)});
  }

  // An array of plain structs, e.g. ExpertMatrices made of Weight()s.
  template <typename T>
  const T* Array(const std::vector<T>& values) {
    return reinterpret_cast<const T*>(Add(values.data(), static_cast<int64_t>(values.size() * sizeof(T)), false));
  }

  // A step's view with every sequence's memory on the device; Finish() copies that memory back.
  CacheView Cache(const CacheView& host, int64_t page_tokens = 256) {
    CacheView view = host;
    const LayerLayout& l = *host.layer;
    int64_t fixed = l.window_offset + l.window_slots * l.window_row.row_bytes(), page = 0;
    for (const CompressorLayout* c : {&l.main, &l.index}) {
      if (c->ratio == 0) continue;
      fixed = std::max(fixed, c->state_offset + c->state_floats() * 4);
      page = std::max(page, c->rows_offset + c->rows_per_page * c->row.row_bytes());
    }
    std::vector<SequenceView> sequences(host.sequences, host.sequences + host.num_sequences);
    for (SequenceView& s : sequences) {
      s.fixed = Add(s.fixed, fixed, true);
      const int64_t num_pages = page == 0 ? 0 : CeilDiv(s.start + s.end - s.begin, page_tokens);
      std::vector<uint8_t*> pages;
      for (int64_t i = 0; i < num_pages; ++i) pages.push_back(Add(s.pages[i], page, true));
      s.pages = num_pages == 0 ? nullptr : Array(pages);
    }
    view.sequences = Array(sequences);
    view.sequence_of = reinterpret_cast<const int32_t*>(Add(host.sequence_of, host.num_tokens * 4, false));
    view.positions = reinterpret_cast<const int64_t*>(Add(host.positions, host.num_tokens * 8, false));
    return view;
  }

  void Finish() {
    const Status status = device_.Synchronize();
    ASSERT_TRUE(status.ok()) << status.message();
    for (const Block& b : blocks_) {
      std::vector<uint8_t> all(static_cast<size_t>(b.bytes + 2 * kGuard));
      device_.Download(all.data(), b.device, static_cast<int64_t>(all.size()));
      for (int64_t i = 0; i < kGuard; ++i) {
        ASSERT_EQ(all[static_cast<size_t>(i)], kGuardByte) << "written " << kGuard - i << " bytes before a buffer";
        ASSERT_EQ(all[static_cast<size_t>(kGuard + b.bytes + i)], kGuardByte)
            << "written " << i << " bytes after the end of a buffer";
      }
      if (b.back && b.bytes > 0)
        std::memcpy(const_cast<void*>(b.host), all.data() + kGuard, static_cast<size_t>(b.bytes));
    }
  }

 private:
  static constexpr int64_t kGuard = 256;
  static constexpr uint8_t kGuardByte = 0xA5;
  struct Block {
    void* device;
    const void* host;
    int64_t bytes;
    bool back;
  };

  // Not inlined: GCC 12 would follow branches that cannot be taken and warn of reads after a buffer's end.
  [[gnu::noinline]] uint8_t* Add(const void* host, int64_t bytes, bool back) {
    std::vector<uint8_t> all(static_cast<size_t>(bytes + 2 * kGuard), kGuardByte);
    if (bytes > 0) std::memcpy(all.data() + kGuard, host, static_cast<size_t>(bytes));
    void* p = device_.Allocate(static_cast<int64_t>(all.size()));
    DSV4_CHECK(p != nullptr, "out of GPU memory");
    device_.Upload(p, all.data(), static_cast<int64_t>(all.size()));
    DSV4_CHECK(device_.Synchronize().ok());
    blocks_.push_back({p, host, bytes, back});
    return static_cast<uint8_t*>(p) + kGuard;
  }

  Device& device_;
  ExecContext ctx_;
  std::deque<Block> blocks_;
};

}  // namespace dsv4::test
