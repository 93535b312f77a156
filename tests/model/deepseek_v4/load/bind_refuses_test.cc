#include <cstring>
#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/load/checkpoint_builder.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::Dialect;
using test::Erase;
using test::kModelOpt;
using test::kOfficial;
using test::MakeCheckpoint;
using test::Named;
using test::TempDir;
using test::TestFormat;
using test::TestTensor;
using test::TinyConfig;
using test::WriteTensors;
using ::testing::HasSubstr;
using Tensors = std::vector<TestTensor>;

// Empty if it binds.
std::string ErrorOf(const Tensors& tensors) {
  const TempDir dir;
  WriteTensors(dir / "model.safetensors", tensors);
  const auto source = TensorSource::Open(dir.path());
  if (!source.ok()) return source.status().message();
  return BindWeights(TinyConfig(), *source).status().message();
}

// One change to a good checkpoint, and the expected message.
struct Damage {
  const char* name;
  Dialect dialect;
  std::function<void(Tensors&)> change;
  std::vector<std::string> says;
};

class BindRefuses : public ::testing::TestWithParam<Damage> {};

TEST_P(BindRefuses, NamingTheTensor) {
  Tensors tensors = MakeCheckpoint(TinyConfig(), GetParam().dialect);
  ASSERT_EQ(ErrorOf(tensors), "");
  GetParam().change(tensors);
  const std::string error = ErrorOf(tensors);
  for (const std::string& part : GetParam().says) EXPECT_THAT(error, HasSubstr(part));
  EXPECT_THAT(error, Not(HasSubstr("\n")));
}

void Reshape(Tensors& tensors, const std::string& name, std::vector<int64_t> shape) {
  TestTensor& t = Named(tensors, name);
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  t.shape = std::move(shape);
  t.bytes.resize(static_cast<size_t>(n * SizeOf(t.dtype)));
}

void PutF32(Tensors& tensors, const std::string& name, size_t index, float value) {
  std::memcpy(Named(tensors, name).bytes.data() + 4 * index, &value, 4);
}

void PutI64(Tensors& tensors, const std::string& name, size_t index, int64_t value) {
  std::memcpy(Named(tensors, name).bytes.data() + 8 * index, &value, 8);
}

void Copy(Tensors& tensors, const std::string& from, const std::string& to) {
  TestTensor t = Named(tensors, from);
  t.name = to;
  tensors.push_back(t);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<Damage> AllDamages() {
  return {
      Damage{"Missing",
             kOfficial,
             [](Tensors& t) { Erase(t, "layers.1.attn.wq_b.weight"); },
             {"'layers.1.attn.wq_b.weight'", "missing", "[256, 64]"}},
      Damage{"MissingVector",
             kOfficial,
             [](Tensors& t) { Erase(t, "layers.2.attn.attn_sink"); },
             {"'layers.2.attn.attn_sink'", "missing", "[2]"}},
      Damage{"MissingFp8Scale",
             kOfficial,
             [](Tensors& t) { Erase(t, "layers.0.attn.wo_a.scale"); },
             {"'layers.0.attn.wo_a.scale'", "missing", "[1, 1]"}},
      Damage{"MissingGlobalScale",
             kModelOpt,
             [](Tensors& t) { Erase(t, "layers.0.ffn.experts.3.w2.weight_scale_2"); },
             {"'layers.0.ffn.experts.3.w2.weight_scale_2'", "missing"}},
      Damage{"MissingExpert",
             kModelOpt,
             [](Tensors& t) { Erase(t, "layers.2.ffn.experts.3.w3.weight"); },
             {"'layers.2.ffn.experts.3.w3.weight'", "missing"}},
      Damage{"Unknown",
             kOfficial,
             [](Tensors& t) { Copy(t, "norm.weight", "layers.1.attn.extra.weight"); },
             {"'layers.1.attn.extra.weight'", "[128]", "unknown", "model.safetensors"}},
      Damage{"LayerTooMany",
             kOfficial,
             [](Tensors& t) { Copy(t, "norm.weight", "layers.3.attn_norm.weight"); },
             {"'layers.3.attn_norm.weight'", "unknown"}},
      Damage{"CompressorInSlidingLayer",
             kOfficial,
             [](Tensors& t) { Copy(t, "layers.1.attn.compressor.ape", "layers.0.attn.compressor.ape"); },
             {"'layers.0.attn.compressor.ape'", "unknown"}},
      Damage{"BiasInHashLayer",
             kOfficial,
             [](Tensors& t) { Copy(t, "layers.1.ffn.gate.bias", "layers.0.ffn.gate.bias"); },
             {"'layers.0.ffn.gate.bias'", "unknown"}},
      Damage{"WrongShape",
             {},
             [](Tensors& t) {
               Reshape(t, "layers.1.attn.wq_b.weight", {64, 256});
             },
             {"'layers.1.attn.wq_b.weight'", "[64, 256]", "[256, 64]", "model.safetensors"}},
      Damage{"WrongShapeEmbed",
             {},
             [](Tensors& t) {
               Reshape(t, "embed.weight", {17, 128});
             },
             {"'embed.weight'", "[17, 128]", "[16, 128]"}},
      Damage{"WrongRank",
             {},
             [](Tensors& t) {
               Reshape(t, "layers.0.hc_attn_fn", {8, 2, 128});
             },
             {"'layers.0.hc_attn_fn'", "[8, 2, 128]", "[8, 256]"}},
      Damage{"KMajorNvfp4",
             kModelOpt,
             [](Tensors& t) {
               Reshape(t, "layers.1.ffn.experts.0.w1.weight", {32, 128});
             },
             {"'layers.1.ffn.experts.0.w1.weight'", "[32, 128]", "[64, 64]"}},
      Damage{"TransposedScales",
             kModelOpt,
             [](Tensors& t) {
               Reshape(t, "layers.1.ffn.experts.0.w1.weight_scale", {8, 64});
             },
             {"'layers.1.ffn.experts.0.w1.weight_scale'", "[8, 64]", "[64, 8]"}},
      Damage{"Fp8GridWrong",
             kOfficial,
             [](Tensors& t) {
               Reshape(t, "layers.1.attn.wq_b.scale", {1, 1});
             },
             {"'layers.1.attn.wq_b.scale'", "[1, 1]", "[2, 1]"}},
      Damage{"ScalarTooLong",
             kModelOpt,
             [](Tensors& t) { Reshape(t, "layers.1.ffn.experts.0.w1.weight_scale_2", {2}); },
             {"'layers.1.ffn.experts.0.w1.weight_scale_2'", "[2]"}},
      Damage{"InputScaleTooLong",
             kModelOpt,
             [](Tensors& t) { Reshape(t, "layers.1.ffn.experts.0.w1.input_scale", {64}); },
             {"'layers.1.ffn.experts.0.w1.input_scale'", "[64]"}},
      Damage{"OneProjectionDiffers",
             kModelOpt,
             [](Tensors& t) {
               Reshape(t, "layers.1.ffn.experts.2.w3.weight", {64, 32});
             },
             {"'layers.1.ffn.experts.2.w3.weight'", "[64, 32]"}},
      Damage{"F16Weight",
             {},
             [](Tensors& t) { Named(t, "layers.1.attn.wq_b.weight").dtype = DType::kF16; },
             {"'layers.1.attn.wq_b.weight'", "F16"}},
      Damage{"I8Vector",
             {},
             [](Tensors& t) {
               Named(t, "norm.weight").dtype = DType::kI8;
               Reshape(t, "norm.weight", {128});
             },
             {"'norm.weight'", "I8", "F32 or BF16"}},
      Damage{"QuantisedEmbedding",
             {},
             [](Tensors& t) {
               Named(t, "embed.weight").dtype = DType::kF8E4M3;
               Reshape(t, "embed.weight", {16, 128});
             },
             {"'embed.weight'", "F8_E4M3", "F32 or BF16"}},
      Damage{"Bf16BlockScale",
             kOfficial,
             [](Tensors& t) {
               Named(t, "layers.1.attn.wq_b.scale").dtype = DType::kBf16;
               Reshape(t, "layers.1.attn.wq_b.scale", {2, 1});
             },
             {"'layers.1.attn.wq_b.scale'", "BF16", "F8_E8M0 or F32"}},
      Damage{"E8m0ScaleOnNvfp4",
             kModelOpt,
             [](Tensors& t) { Named(t, "layers.1.ffn.experts.0.w1.weight_scale").dtype = DType::kF8E8M0; },
             {"'layers.1.ffn.experts.0.w1.weight_scale'", "F8_E8M0", "F8_E4M3"}},
      Damage{"F32HashTable",
             kOfficial,
             [](Tensors& t) {
               Named(t, "layers.0.ffn.gate.tid2eid").dtype = DType::kF32;
               Reshape(t, "layers.0.ffn.gate.tid2eid", {16, 2});
             },
             {"'layers.0.ffn.gate.tid2eid'", "F32", "I64"}},
      Damage{"HashTableBeyondExperts",
             kOfficial,
             [](Tensors& t) { PutI64(t, "layers.0.ffn.gate.tid2eid", 21, 4); },
             {"'layers.0.ffn.gate.tid2eid'", "expert 4", "row 10", "there are 4"}},
      Damage{"HashTableNegative",
             kOfficial,
             [](Tensors& t) { PutI64(t, "layers.0.ffn.gate.tid2eid", 0, -1); },
             {"'layers.0.ffn.gate.tid2eid'", "expert -1"}},
      Damage{"HashTableHuge",
             kOfficial,
             [](Tensors& t) { PutI64(t, "layers.0.ffn.gate.tid2eid", 0, int64_t{1} << 32); },
             {"'layers.0.ffn.gate.tid2eid'", "expert 4294967296"}},
      Damage{"NanE8m0Fp8",
             kOfficial,
             [](Tensors& t) { Named(t, "layers.1.attn.wq_b.scale").bytes[1] = '\xff'; },
             {"'layers.1.attn.wq_b.scale'", "NaN"}},
      Damage{"NanE8m0Mxfp4",
             kOfficial,
             [](Tensors& t) { Named(t, "layers.1.ffn.experts.1.w2.scale").bytes.back() = '\xff'; },
             {"'layers.1.ffn.experts.1.w2.scale'", "NaN"}},
      Damage{"NanE4m3",
             kModelOpt,
             [](Tensors& t) { Named(t, "layers.1.ffn.experts.1.w2.weight_scale").bytes[7] = '\x7f'; },
             {"'layers.1.ffn.experts.1.w2.weight_scale'", "NaN"}},
      Damage{"NegativeNanE4m3",
             kModelOpt,
             [](Tensors& t) { Named(t, "layers.1.ffn.experts.1.w2.weight_scale").bytes[7] = '\xff'; },
             {"'layers.1.ffn.experts.1.w2.weight_scale'", "NaN"}},
      Damage{"NanF32Grid",
             {TestFormat::kFp8F32Scale, TestFormat::kBf16},
             [](Tensors& t) { PutF32(t, "layers.1.attn.wq_b.scale", 1, kNan); },
             {"'layers.1.attn.wq_b.scale'", "NaN"}},
      Damage{"InfiniteGlobalScale",
             kModelOpt,
             [](Tensors& t) { PutF32(t, "layers.1.ffn.experts.1.w2.weight_scale_2", 0, kInfinity); },
             {"'layers.1.ffn.experts.1.w2.weight_scale_2'", "infinite"}},
      Damage{"NanInputScale",
             kModelOpt,
             [](Tensors& t) { PutF32(t, "layers.1.ffn.experts.1.w2.input_scale", 0, kNan); },
             {"'layers.1.ffn.experts.1.w2.input_scale'", "NaN"}},
      Damage{"NanSink",
             kOfficial,
             [](Tensors& t) { PutF32(t, "layers.1.attn.attn_sink", 1, kNan); },
             {"'layers.1.attn.attn_sink'", "NaN", "element 1"}},
      Damage{"InfiniteNorm",
             kOfficial,
             [](Tensors& t) { std::memcpy(Named(t, "norm.weight").bytes.data() + 6, "\x80\x7f", 2); },
             {"'norm.weight'", "infinity", "element 3"}},
      Damage{"BothPrefixes",
             kOfficial,
             [](Tensors& t) { Copy(t, "norm.weight", "model.norm.weight"); },
             {"'norm.weight'", "'model.norm.weight'", "present twice"}},
      Damage{"BothSpellings",
             kOfficial,
             [](Tensors& t) { Copy(t, "layers.1.attn.wq_a.weight", "model.layers.1.self_attn.q_a_proj.weight"); },
             {"'layers.1.attn.wq_a.weight'", "'model.layers.1.self_attn.q_a_proj.weight'", "present twice"}},
      Damage{"BothScales",
             kOfficial,
             [](Tensors& t) { Copy(t, "layers.1.attn.wq_a.scale", "layers.1.attn.wq_a.weight_scale_inv"); },
             {"'layers.1.attn.wq_a.scale'", "'layers.1.attn.wq_a.weight_scale_inv'", "present twice"}},
      Damage{"StackedAndSingle",
             {},
             [](Tensors& t) {
               t.push_back({"layers.1.mlp.experts.gate_up_proj", DType::kBf16, {4, 128, 128}, std::string(131072, 0)});
             },
             {"'layers.1.ffn.experts.0.w1.weight'", "present twice", "'layers.1.mlp.experts.gate_up_proj'"}},
      Damage{"CompressedTensors",
             kModelOpt,
             [](Tensors& t) {
               Named(t, "layers.1.ffn.experts.1.w2.weight").name = "layers.1.ffn.experts.1.w2.weight_packed";
             },
             {"'layers.1.ffn.experts.1.w2.weight_packed'", "compressed-tensors"}},
      Damage{"PackedIntegers",
             {},
             [](Tensors& t) { Copy(t, "norm.weight", "layers.1.ffn.experts.1.w2.weight_shape"); },
             {"'layers.1.ffn.experts.1.w2.weight_shape'", "integer format of compressed-tensors", "NVFP4"}},
      Damage{"Gptq",
             {},
             [](Tensors& t) {
               Copy(t, "norm.weight", "layers.1.attn.wq_a.scales");
               Copy(t, "norm.weight", "layers.1.attn.wq_a.qweight");
             },
             {"'layers.1.attn.wq_a.qweight'", "GPTQ or AWQ", "use the official checkpoint"}},
      Damage{"Smoothed",
             kModelOpt,
             [](Tensors& t) { Copy(t, "norm.weight", "layers.1.attn.wq_a.pre_quant_scale"); },
             {"'layers.1.attn.wq_a.pre_quant_scale'", "NVFP4_AWQ"}},
      Damage{"Mlx",
             {},
             [](Tensors& t) {
               Named(t, "layers.1.attn.wq_a.weight").dtype = DType::kI32;
               Reshape(t, "layers.1.attn.wq_a.weight", {64, 16});
               Copy(t, "layers.1.attn.wq_a.weight", "layers.1.attn.wq_a.scales");
               Copy(t, "layers.1.attn.wq_a.weight", "layers.1.attn.wq_a.biases");
             },
             {"'layers.1.attn.wq_a.scales'", "MLX", "use the official checkpoint"}},
      Damage{"MlxWithoutScales",
             {},
             [](Tensors& t) {
               Named(t, "layers.1.attn.wq_a.weight").dtype = DType::kI32;
               Reshape(t, "layers.1.attn.wq_a.weight", {64, 16});
             },
             {"'layers.1.attn.wq_a.weight'", "I32", "MLX", "use the official checkpoint"}},
      Damage{"IntegersOfEightBits",
             {},
             [](Tensors& t) {
               Named(t, "layers.1.attn.wq_a.weight").dtype = DType::kI8;
               Reshape(t, "layers.1.attn.wq_a.weight", {64, 128});
               Copy(t, "norm.weight", "layers.1.attn.wq_a.weight_scale");
             },
             {"'layers.1.attn.wq_a.weight'", "W8A8", "use the official checkpoint"}},
      Damage{"RowsOfTransformers58",
             {},
             [](Tensors& t) {
               Erase(t, "layers.1.ffn.shared_experts.w2.weight");
               Copy(t, "norm.weight", "model.layers.1.mlp.shared_experts.17.w2.weight.weight");
             },
             {"shared_experts.17.w2.weight.weight'", "transformers 5.8", "transformers 5.9 or later"}},
      Damage{"LayerWithItsOwnNumberOfExperts",
             kOfficial,
             [](Tensors& t) {
               Reshape(t, "layers.2.ffn.gate.weight", {3, 128});
             },
             {"'layers.2.ffn.gate.weight'", "layer 2 has 3 experts", "n_routed_experts of config.json is 4"}},
      Damage{"NearestUnknown",
             kOfficial,
             [](Tensors& t) {
               Named(t, "layers.1.attn.wkv.weight").name = "model.layers.1.self_attn.kv_projection.weight";
               Named(t, "layers.1.attn.wkv.scale").name = "model.layers.1.self_attn.kv_projection.scale";
               Copy(t, "norm.weight", "layers.1.strange.weight");
             },
             {"'layers.1.attn.wkv.weight' is missing", "[128, 128]",
              "'model.layers.1.self_attn.kv_projection.weight' of shape [128, 128]"}},
      Damage{"NearestUnknownScale",
             kModelOpt,
             [](Tensors& t) {
               Named(t, "layers.1.ffn.experts.2.w2.weight_scale_2").name = "layers.1.ffn.experts.2.w2.weight_scale2";
             },
             {"'layers.1.ffn.experts.2.w2.weight_scale_2' is missing", "'layers.1.ffn.experts.2.w2.weight_scale2'"}},
      Damage{"OneOfAStackIsSeparate",
             {},
             [](Tensors& t) {
               t.push_back({"layers.1.mlp.experts.down_proj", DType::kBf16, {4, 128, 64}, std::string(65536, 0)});
               for (const char* e : {"0", "1", "3"}) Erase(t, StrCat("layers.1.ffn.experts.", e, ".w2.weight"));
             },
             {"'layers.1.ffn.experts.2.w2.weight'", "present twice", "'layers.1.mlp.experts.down_proj'"}},
      Damage{"ScaleOfFp8IsNoOrphan",
             kOfficial,
             [](Tensors& t) { Copy(t, "norm.weight", "layers.1.attn.wq_a.weight_scale_2"); },
             {"'layers.1.attn.wq_a.weight_scale_2'", "unknown"}},
      Damage{"ScaleOfNothing",
             kOfficial,
             [](Tensors& t) { Copy(t, "norm.weight", "layers.1.attn.wq_x.weight_scale"); },
             {"'layers.1.attn.wq_x.weight_scale'", "unknown"}},
  };
}

INSTANTIATE_TEST_SUITE_P(All, BindRefuses, ::testing::ValuesIn(AllDamages()),
                         [](const auto& p) { return std::string(p.param.name); });

}  // namespace
}  // namespace dsv4::deepseek_v4
