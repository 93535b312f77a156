// Times llama.cpp's CPU kernels (ggml) for matrix products of one weight type. The matrices alternate and are larger
// than the caches together.
//   ggml_linear THREADS K N T NVFP4|MXFP4|BF16|Q8_0      one JSON line, the fields of `dsv4 bench linears`
// Not part of the build: compile it with ggml's sources (llama.cpp, or the sdist of llama-cpp-python) and link ggml
// and ggml-cpu.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  const int threads = atoi(argv[1]);
  const int64_t k = atoll(argv[2]), n = atoll(argv[3]), t = atoll(argv[4]);
  const std::string name = argv[5];
  const ggml_type type = name == "NVFP4"   ? GGML_TYPE_NVFP4
                         : name == "MXFP4" ? GGML_TYPE_MXFP4
                         : name == "BF16"  ? GGML_TYPE_BF16
                         : name == "Q8_0"  ? GGML_TYPE_Q8_0
                                           : GGML_TYPE_F32;
  const size_t bytes = ggml_row_size(type, k) * n;
  const int copies = std::max<int>(1, (256u << 20) / bytes);
  ggml_init_params params{
      .mem_size = bytes * copies + (size_t)copies * 4096 + k * t * 4 + n * t * 4 * copies + (64u << 20),
      .mem_buffer = nullptr,
      .no_alloc = false};
  ggml_context* ctx = ggml_init(params);
  std::vector<float> row(k * n);
  unsigned s = 1;
  for (float& x : row) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) s = s * 1664525 + 1013904223, sum += (s >> 8) / 16777216.0f - 0.5f;
    x = sum;
  }
  ggml_tensor* x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k, t);
  for (int64_t i = 0; i < k * t; ++i) ((float*)x->data)[i] = row[i % row.size()];
  std::vector<ggml_tensor*> w;
  for (int i = 0; i < copies; ++i) {
    w.push_back(ggml_new_tensor_2d(ctx, type, k, n));
    if (i == 0) ggml_quantize_chunk(type, row.data(), w[0]->data, 0, n, k, nullptr);
    else memcpy(w[i]->data, w[0]->data, bytes);
  }
  std::vector<ggml_cgraph*> graphs;
  for (int i = 0; i < copies; ++i) {
    ggml_cgraph* g = ggml_new_graph_custom(ctx, 8, false);
    ggml_build_forward_expand(g, ggml_mul_mat(ctx, w[i], x));
    graphs.push_back(g);
  }
  ggml_threadpool_params tpp = ggml_threadpool_params_default(threads);
  ggml_threadpool* pool = ggml_threadpool_new(&tpp);
  ggml_cplan plan = ggml_graph_plan(graphs[0], threads, pool);
  std::vector<uint8_t> work(plan.work_size + 64);
  plan.work_data = work.data();
  std::vector<double> times;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3 || std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 0.5; ++i) {
    const auto a = std::chrono::steady_clock::now();
    ggml_graph_compute(graphs[i % copies], &plan);
    if (i) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - a).count());
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  const double m = times[times.size() / 2];
  printf(
      "{\"peer\": \"llama.cpp\", \"format\": \"%s\", \"rows\": %ld, \"cols\": %ld, \"tokens\": %ld, \"threads\": %d, "
      "\"us\": %.1f, \"gb_per_s\": %.2f, \"gflops\": %.1f}\n",
      name.c_str(), (long)n, (long)k, (long)t, threads, m * 1e6, bytes / m / 1e9, 2.0 * k * n * t / m / 1e9);
}
