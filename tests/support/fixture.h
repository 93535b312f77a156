// Reference fixtures: a small random checkpoint with the logits that a float64 implementation computed from it
// (tests/golden/README.md). Larger ones may be in a folder next to the repository.
#pragma once

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "io/tensor_source.h"

namespace dsv4::test {

// The folder of larger fixtures next to the repository; it may not exist.
inline std::string FixturesBeside() { return DSV4_SOURCE_DIR "/../shared/fixtures"; }

// NAME in tests/golden, next to the repository, or where scripts/fixtures makes it; "": in none of them.
inline std::string FixtureDir(const std::string& name) {
  for (const std::string& dir : {std::string(DSV4_SOURCE_DIR "/tests/golden"), FixturesBeside(),
                                 std::string(DSV4_SOURCE_DIR "/build/fixtures")}) {
    if (std::filesystem::exists(dir + "/" + name + "/reference.safetensors")) return dir + "/" + name;
  }
  return "";
}

struct Array {
  std::vector<int64_t> shape;
  std::vector<float> f32;    // F32 tensors
  std::vector<int32_t> i32;  // I32 tensors
};

// A tensor of DIR/reference.safetensors; fails the test if it is missing.
inline Array ReferenceArray(const std::string& dir, const std::string& name) {
  Array out;
  auto source = TensorSource::OpenFile(dir + "/reference.safetensors");
  EXPECT_TRUE(source.ok()) << source.status().message();
  if (!source.ok()) return out;
  const FileTensor* tensor = (*source)->Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return out;
  for (int i = 0; i < tensor->shape.rank(); ++i) out.shape.push_back(tensor->shape[i]);
  const auto n = static_cast<size_t>(tensor->shape.num_elements());
  if (tensor->dtype == DType::kI32) {
    out.i32.resize(n);
    std::memcpy(out.i32.data(), tensor->data, n * 4);
  } else {
    EXPECT_EQ(tensor->dtype, DType::kF32) << name;
    out.f32.resize(n);
    std::memcpy(out.f32.data(), tensor->data, n * 4);
  }
  return out;
}

// Without rounding: comparable with the float64 reference.
inline EngineOptions ExactOptions(const std::string& dir) {
  EngineOptions options;
  options.model_dir = dir;
  options.num_threads = 2;
  options.kv_dtype = KvDtype::kF32;
  options.index_dtype = IndexDtype::kF32;
  options.activation_dtype = ActivationDtype::kF32;
  return options;
}

inline std::unique_ptr<Engine> LoadOrFail(const EngineOptions& options) {
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(*engine) : nullptr;
}

// Logits [tokens, V] of a fresh session: the first `prefill` tokens in one Append (chunked by the engine), the rest one
// by one.
inline std::vector<float> AllLogits(Engine& engine, std::span<const TokenId> tokens, size_t prefill) {
  auto session = engine.NewSession();
  EXPECT_TRUE(session.ok()) << session.status().message();
  std::vector<float> all, part;
  const auto append = [&](std::span<const TokenId> some) {
    const Status status = (*session)->Append(some, LogitRows::kAll, &part);
    EXPECT_TRUE(status.ok()) << status.message();
    all.insert(all.end(), part.begin(), part.end());
  };
  if (prefill > 0) append(tokens.first(prefill));
  for (size_t i = prefill; i < tokens.size(); ++i) append(tokens.subspan(i, 1));
  return all;
}

inline std::vector<float> AllLogits(Engine& engine, std::span<const TokenId> tokens) {
  return AllLogits(engine, tokens, tokens.size());
}

}  // namespace dsv4::test

// Skips the test if a fixture is not on this machine.
#define DSV4_FIXTURE_OR_SKIP(dir, name)                   \
  const std::string dir = ::dsv4::test::FixtureDir(name); \
  if (dir.empty()) GTEST_SKIP() << "fixture " << (name) << " is not on this machine"
