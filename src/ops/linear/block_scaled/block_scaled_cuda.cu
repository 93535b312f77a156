#include <dlfcn.h>

#include <map>
#include <mutex>
#include <tuple>
#include <type_traits>

#include "base/check.h"
#include "device/launch.cuh"
#include "kv/row_codec.cuh"
#include "ops/linear/block_scaled/block_scaled.h"
#include "ops/nvfp4_row.cuh"
#include "ops/pack_weight/pack_weight.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define DSV4_HAVE_CUBLASLT_HEADER 1
#endif

namespace dsv4 {

namespace {

constexpr int kBlockScaledThreads = 256;

// One warp per tile: lane 4 g + t owns rows g and g + 8, columns 16 t .. 16 t + 15.
__global__ void __launch_bounds__(kBlockScaledThreads)
    UnpackKernel(const uint8_t* tiles, uint8_t* codes, uint8_t* scales, int64_t row_tiles, int64_t col_tiles) {
  AllowNext();
  WaitForPrevious();
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * (kBlockScaledThreads / 32) + threadIdx.x / 32;
  if (tile >= row_tiles * col_tiles) return;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint8_t* from = tiles + tile * TileBytes(WeightFormat::kNvfp4);
  const uint4 words = reinterpret_cast<const uint4*>(from)[lane];
  const uint16_t both = reinterpret_cast<const uint16_t*>(from + 512)[lane];
  const int64_t row = tile / col_tiles * kTileRows16 + g, column_tile = tile % col_tiles;
  const int64_t row_bytes = col_tiles * kTileCols64 / 2, num_blocks = col_tiles * (kTileCols64 / kNvfp4BlockSize);
  const int64_t at = column_tile * (kTileCols64 / 2) + 8 * t, block = column_tile * (kTileCols64 / kNvfp4BlockSize) + t;
  *reinterpret_cast<uint64_t*>(codes + row * row_bytes + at) = UnplaceFp4(words.x, words.y);
  *reinterpret_cast<uint64_t*>(codes + (row + 8) * row_bytes + at) = UnplaceFp4(words.z, words.w);
  scales[BlockScaleOffset(row, block, num_blocks)] = static_cast<uint8_t>(E4m3OfTileScale(both & 255u));
  scales[BlockScaleOffset(row + 8, block, num_blocks)] = static_cast<uint8_t>(E4m3OfTileScale(both >> 8));
}

// One block per row: first the row's global scale, then half a warp per block of 16 columns.
__global__ void __launch_bounds__(kBlockScaledThreads)
    QuantiseKernel(const float* x, int64_t k_dim, uint8_t* codes, uint8_t* scales, float* row_scale) {
  AllowNext();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const float* in = x + row * k_dim;
  const Nvfp4RowScale of_row = Nvfp4RowScaleOf<kBlockScaledThreads>(in, k_dim);
  const float global = of_row.global;
  const bool empty = of_row.empty();
  if (threadIdx.x == 0) row_scale[row] = of_row.has_nan ? __uint_as_float(0x7FC00000u) : empty ? 0.0f : global;
  for (int64_t first = 0; first < k_dim; first += kBlockScaledThreads) {
    const int64_t k = first + threadIdx.x;
    const float v = k < k_dim && !empty ? in[k] : 0.0f;
    const float wanted = Nvfp4BlockScale(v, global);
    const uint8_t scale_code = gpu::F32ToE4m3(empty ? 1.0f : wanted);
    const float scale = gpu::E4m3ToF32(scale_code) * (empty ? 1.0f : global);
    const uint32_t code = gpu::F32ToE2m1(v / scale);
    const uint32_t next = __shfl_down_sync(0xFFFFFFFFu, code, 1);
    if (k >= k_dim) continue;
    if (k % 2 == 0) codes[row * (k_dim / 2) + k / 2] = static_cast<uint8_t>(code | next << 4);
    if (k % kNvfp4BlockSize == 0)
      scales[BlockScaleOffset(row, k / kNvfp4BlockSize, k_dim / kNvfp4BlockSize)] = scale_code;
  }
}

__global__ void __launch_bounds__(kBlockScaledThreads) ScaleRowsKernel(float* y, const float* row_scale, int64_t rows) {
  AllowNext();
  WaitForPrevious();
  const float s = row_scale[blockIdx.x];
  const int64_t n = static_cast<int64_t>(blockIdx.y) * kBlockScaledThreads + threadIdx.x;
  if (n < rows) y[blockIdx.x * rows + n] *= s;
}

// Writes {alpha, beta} to device memory, where cuBLASLt reads them.
__global__ void PutFactorsKernel(float* factors, float alpha) {
  AllowNext();
  WaitForPrevious();
  factors[0] = alpha;
  factors[1] = 0;
}

unsigned Blocks(int64_t n, int64_t each) { return static_cast<unsigned>(CeilDiv(n, each)); }

}  // namespace

void UnpackBlockScaled(const ExecContext& ctx, const QuantTensor& w, const BlockScaledOperand& out) {
  DSV4_CHECK(w.layout == WeightLayout::kTiles && w.format == WeightFormat::kNvfp4);
  DSV4_CHECK(w.rows % kTileRows16 == 0 && w.cols % kTileCols64 == 0);
  const int64_t row_tiles = w.rows / kTileRows16, col_tiles = w.cols / kTileCols64;
  if (w.rows % kScaleAtomRows != 0) {
    const auto bytes = static_cast<size_t>(BlockScaleBytes(w.rows, w.cols / kNvfp4BlockSize));
    if (const cudaError_t e = cudaMemsetAsync(out.scales, 0, bytes, StreamOf(ctx)); e != cudaSuccess)
      NoteCudaError(ctx, e, "clear scales");
  }
  Launch(ctx, UnpackKernel, dim3(Blocks(row_tiles * col_tiles, kBlockScaledThreads / 32)), dim3(kBlockScaledThreads), 0,
         w.codes, out.codes, out.scales, row_tiles, col_tiles);
}

void QuantiseBlockScaled(const ExecContext& ctx, const float* x, int64_t num_tokens, int64_t cols,
                         const BlockScaledOperand& out, float* row_scale) {
  DSV4_CHECK(cols % kTileCols64 == 0);  // whole scale atoms per row
  if (num_tokens % kScaleAtomRows != 0) {
    const auto bytes = static_cast<size_t>(BlockScaleBytes(num_tokens, cols / kNvfp4BlockSize));
    if (const cudaError_t e = cudaMemsetAsync(out.scales, 0, bytes, StreamOf(ctx)); e != cudaSuccess)
      NoteCudaError(ctx, e, "clear scales");
  }
  Launch(ctx, QuantiseKernel, dim3(static_cast<unsigned>(num_tokens)), dim3(kBlockScaledThreads), 0, x, cols, out.codes,
         out.scales, row_scale);
}

#ifdef DSV4_HAVE_CUBLASLT_HEADER

namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

// The functions of cuBLASLt that are used, by name. Null if the library is not on this machine.
struct Library {
  decltype(&cublasLtCreate) Create = nullptr;
  decltype(&cublasLtMatmulDescCreate) DescCreate = nullptr;
  decltype(&cublasLtMatmulDescDestroy) DescDestroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) DescSet = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) LayoutCreate = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) LayoutDestroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) PreferenceCreate = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) PreferenceDestroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) PreferenceSet = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) Heuristic = nullptr;
  decltype(&cublasLtMatmul) Matmul = nullptr;
  bool complete = false;
};

const Library& GetLibrary() {
  static const Library library = [] {
    Library l;
    void* handle = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) handle = dlopen("libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return l;
    bool found = true;
    const auto get = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      found = found && function != nullptr;
    };
    get(l.Create, "cublasLtCreate");
    get(l.DescCreate, "cublasLtMatmulDescCreate");
    get(l.DescDestroy, "cublasLtMatmulDescDestroy");
    get(l.DescSet, "cublasLtMatmulDescSetAttribute");
    get(l.LayoutCreate, "cublasLtMatrixLayoutCreate");
    get(l.LayoutDestroy, "cublasLtMatrixLayoutDestroy");
    get(l.PreferenceCreate, "cublasLtMatmulPreferenceCreate");
    get(l.PreferenceDestroy, "cublasLtMatmulPreferenceDestroy");
    get(l.PreferenceSet, "cublasLtMatmulPreferenceSetAttribute");
    get(l.Heuristic, "cublasLtMatmulAlgoGetHeuristic");
    get(l.Matmul, "cublasLtMatmul");
    l.complete = found;
    return l;
  }();
  return library;
}

// D [N, T] column by column (y by rows) = W [N, K] X [K, T]: both operands run along K, so the first is transposed.
class Product {
 public:
  Product(const BlockScaledOperand& w, const BlockScaledOperand& x, int64_t n, int64_t t, int64_t k)
      : lib_(GetLibrary()) {
    const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    const cublasLtMatmulMatrixScale_t scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    const cublasLtPointerMode_t pointers = CUBLASLT_POINTER_MODE_DEVICE;
    Try(lib_.DescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const void *w_scales = w.scales, *x_scales = x.scales;
    Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, plain);
    Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode);
    Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode);
    Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scales);
    Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales);
    Set(CUBLASLT_MATMUL_DESC_POINTER_MODE, pointers);
    Try(lib_.LayoutCreate(&a_, CUDA_R_4F_E2M1, static_cast<uint64_t>(k), static_cast<uint64_t>(n), k));
    Try(lib_.LayoutCreate(&b_, CUDA_R_4F_E2M1, static_cast<uint64_t>(k), static_cast<uint64_t>(t), k));
    Try(lib_.LayoutCreate(&d_, CUDA_R_32F, static_cast<uint64_t>(n), static_cast<uint64_t>(t), n));
  }
  ~Product() {
    if (a_ != nullptr) lib_.LayoutDestroy(a_);
    if (b_ != nullptr) lib_.LayoutDestroy(b_);
    if (d_ != nullptr) lib_.LayoutDestroy(d_);
    if (desc_ != nullptr) lib_.DescDestroy(desc_);
  }

  bool Choose(cublasLtHandle_t handle, cublasLtMatmulAlgo_t* algo) {
    cublasLtMatmulPreference_t preference = nullptr;
    Try(lib_.PreferenceCreate(&preference));
    if (!ok_) return false;
    const size_t workspace = kWorkspaceBytes;
    Try(lib_.PreferenceSet(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    Try(lib_.Heuristic(handle, desc_, a_, b_, d_, d_, preference, 1, &result, &found));
    lib_.PreferenceDestroy(preference);
    if (!ok_ || found == 0) return false;
    *algo = result.algo;
    return true;
  }

  bool Run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algo, const float* factors, const uint8_t* w,
           const uint8_t* x, float* y, void* workspace, cudaStream_t stream) {
    Try(lib_.Matmul(handle, desc_, factors, w, a_, x, b_, factors + 1, y, d_, y, d_, &algo, workspace, kWorkspaceBytes,
                    stream));
    return ok_;
  }

 private:
  void Try(cublasStatus_t status) { ok_ = ok_ && status == CUBLAS_STATUS_SUCCESS; }
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    if (ok_) Try(lib_.DescSet(desc_, attribute, &value, sizeof(value)));
  }

  const Library& lib_;
  bool ok_ = true;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
};

// Per device: a handle, and cuBLASLt's choice for each shape.
struct State {
  bool usable = false;
  cublasLtHandle_t handle = nullptr;
  std::map<std::tuple<int64_t, int64_t, int64_t>, cublasLtMatmulAlgo_t> algos;
};
std::mutex state_mutex;

State& StateOfDevice() {  // with state_mutex held
  static std::map<int, State> states;
  int device = 0;
  cudaGetDevice(&device);
  const auto [at, is_new] = states.try_emplace(device);
  State& s = at->second;
  if (is_new) s.usable = GetLibrary().complete && GetLibrary().Create(&s.handle) == CUBLAS_STATUS_SUCCESS;
  return s;
}

// The layout of a call's scratch memory.
struct Places {
  BlockScaledOperand w, x;
  float *row_scale, *factors;
  uint8_t* workspace;
  int64_t bytes = 0;

  Places(uint8_t* base, int64_t n, int64_t t, int64_t k) {
    const auto take = [&](int64_t size) {
      uint8_t* at = base + bytes;
      bytes += CeilDiv(size, 256) * 256;
      return at;
    };
    w = {take(n * k / 2), take(BlockScaleBytes(n, k / kNvfp4BlockSize))};
    x = {take(t * k / 2), take(BlockScaleBytes(t, k / kNvfp4BlockSize))};
    row_scale = reinterpret_cast<float*>(take(4 * t));
    factors = reinterpret_cast<float*>(take(8));
    workspace = take(kWorkspaceBytes);
  }
};

}  // namespace

bool BlockScaledLinear(const ExecContext& ctx, const Tensor& in, const QuantTensor& weight, const Tensor& y) {
  DSV4_CHECK(weight.layout == WeightLayout::kTiles);
  const int64_t t = in.dim(0), n = weight.rows, k = weight.cols;
  const Places p(ctx.scratch.data, n, t, k);
  if (p.bytes > ctx.scratch.bytes) return false;
  const std::lock_guard lock(state_mutex);
  State& s = StateOfDevice();
  if (!s.usable) return false;
  Product product(p.w, p.x, n, t, k);
  const auto [algo, is_new] = s.algos.try_emplace({n, t, k});
  if (is_new && !product.Choose(s.handle, &algo->second)) {
    s.algos.erase(algo);
    return false;
  }
  UnpackBlockScaled(ctx, weight, p.w);
  QuantiseBlockScaled(ctx, in.f32(), t, k, p.x, p.row_scale);
  Launch(ctx, PutFactorsKernel, dim3(1), dim3(1), 0, p.factors, weight.global_scale);
  if (!product.Run(s.handle, algo->second, p.factors, p.w.codes, p.x.codes, y.f32(), p.workspace, StreamOf(ctx))) {
    NoteCudaError(ctx, cudaErrorUnknown, "cuBLASLt's NVFP4 product");
  }
  Launch(ctx, ScaleRowsKernel, dim3(static_cast<unsigned>(t), Blocks(n, kBlockScaledThreads)),
         dim3(kBlockScaledThreads), 0, y.f32(), p.row_scale, n);
  return true;
}

#else  // no header of cuBLASLt in this build

bool BlockScaledLinear(const ExecContext&, const Tensor&, const QuantTensor&, const Tensor&) { return false; }

#endif  // DSV4_HAVE_CUBLASLT_HEADER

}  // namespace dsv4
