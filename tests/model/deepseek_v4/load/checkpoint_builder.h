// Tiny random checkpoints of this architecture, in every dialect, for tests of config, binding and inspection.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/test_files.h"
#include "model/deepseek_v4/config/config.h"

namespace dsv4::test {

// Formats of the projections of attention, shared expert and indexer, and of the routed experts.
enum class TestFormat { kBf16, kFp8, kFp8F32Scale, kMxfp4, kNvfp4 };

struct Dialect {
  TestFormat linears = TestFormat::kBf16;
  TestFormat experts = TestFormat::kBf16;
};
constexpr Dialect kOfficial = {TestFormat::kFp8, TestFormat::kMxfp4};
constexpr Dialect kModelOpt = {TestFormat::kFp8, TestFormat::kNvfp4};

// Three layers: sliding with hash router, CSA, HCA. Official field names.
Json TinyConfigJson();
deepseek_v4::Config TinyConfig();

// All tensors under their official names, with the same bytes for the same dialect.
std::vector<TestTensor> MakeCheckpoint(const deepseek_v4::Config& config, const Dialect& dialect);

// The tensors of a draft module: an MTP block, or DSpark with `stages`. Its experts have their own format.
std::vector<TestTensor> MakeMtp(const deepseek_v4::Config& config, const Dialect& dialect);
std::vector<TestTensor> MakeDspark(const deepseek_v4::Config& config, const Dialect& dialect, int64_t stages);
// With the fields of DSpark: block of 3, targets 0 and 2, rank 32.
Json TinyDsparkConfigJson();

// The same tensors under transformers' names; with `stacked`, experts as gate_up_proj and down_proj.
std::vector<TestTensor> ToTransformersNames(const deepseek_v4::Config& config, std::vector<TestTensor> tensors,
                                            bool stacked);

std::vector<TestTensor> WithPrefix(const std::string& prefix, std::vector<TestTensor> tensors);

// The tensor with that name, which must exist.
TestTensor& Named(std::vector<TestTensor>& tensors, const std::string& name);
void Erase(std::vector<TestTensor>& tensors, const std::string& name);

// DIR/config.json and DIR/model.safetensors.
void WriteModel(const std::string& dir, const Json& config, const std::vector<TestTensor>& tensors);

}  // namespace dsv4::test
