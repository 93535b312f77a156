#include "model/deepseek_v4/load/bind.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/deepseek_v4/load/checkpoint_builder.h"
#include "support/fixture.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::Dialect;
using test::FixturesBeside;
using test::kModelOpt;
using test::kOfficial;
using test::MakeCheckpoint;
using test::Named;
using test::TempDir;
using test::TestFormat;
using test::TestTensor;
using test::TinyConfig;
using test::ToTransformersNames;
using test::WithPrefix;
using test::WriteTensors;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<TestTensor>;

Result<Weights> Bind(const Tensors& tensors, BindReport* report = nullptr, const BindOptions& options = {}) {
  const TempDir dir;  // the maps outlive the file names
  WriteTensors(dir / "model.safetensors", tensors);
  DSV4_ASSIGN_OR_RETURN(auto source, TensorSource::Open(dir.path()));
  return BindWeights(TinyConfig(), source, report, options);
}

std::string Bytes(const uint8_t* p, int64_t n) {
  return p == nullptr ? "" : std::string(reinterpret_cast<const char*>(p), static_cast<size_t>(n));
}

// Everything that a reader of the view can see, with the scales row by row.
std::string Fingerprint(const QuantTensor& q) {
  std::string s = StrCat(NameOf(q.format), " ", q.rows, "x", q.cols, " ", q.global_scale, " ");
  if (!q) return s;
  s += Bytes(q.codes, q.rows * q.row_bytes());
  for (int64_t row = 0; row < q.rows; ++row) {
    if (q.format == WeightFormat::kFp8Block) {
      const int64_t width = CeilDiv(q.cols, kFp8BlockSize) * SizeOf(q.scale_dtype);
      s += Bytes(q.block_scale + (q.scale_row_offset + row) / kFp8BlockSize * width, width);
    } else if (q.quantised()) {
      const int64_t width = q.cols / (q.format == WeightFormat::kMxfp4 ? kMxfp4BlockSize : kNvfp4BlockSize);
      s += Bytes(q.block_scale + row * width, width);
    }
  }
  return s;
}

std::string Fingerprint(const Tensor& t) {
  return t.shape.ToString() + Bytes(static_cast<const uint8_t*>(t.data), t ? t.num_bytes() : 0);
}

std::string Fingerprint(const CompressorWeights& w) {
  return Fingerprint(w.kv_proj) + Fingerprint(w.gate_proj) + Fingerprint(w.slot_bias) + Fingerprint(w.norm);
}

std::string Fingerprint(const ExpertWeights& w) {
  return Fingerprint(w.gate) + Fingerprint(w.up) + Fingerprint(w.down);
}

std::string Fingerprint(const HcWeights& w) { return Fingerprint(w.fn) + Fingerprint(w.base) + Fingerprint(w.scale); }

std::vector<std::string> Fingerprints(const Weights& w) {
  std::vector<std::string> all = {
      Fingerprint(w.embed), Fingerprint(w.head), Fingerprint(w.norm),
      Fingerprint(w.hc_head.fn) + Fingerprint(w.hc_head.base) + Fingerprint(w.hc_head.scale)};
  for (const LayerWeights& l : w.layers) {
    all.push_back(Fingerprint(l.hc_attn) + Fingerprint(l.hc_ffn));
    all.push_back(Fingerprint(l.attn_norm) + Fingerprint(l.ffn_norm));
    const AttentionWeights& a = l.attn;
    for (const QuantTensor* q : {&a.q_a, &a.q_b, &a.kv_proj, &a.o_a, &a.o_b, &a.indexer.q_b, &a.indexer.weights_proj}) {
      all.push_back(Fingerprint(*q));
    }
    all.push_back(Fingerprint(a.q_a_norm) + Fingerprint(a.kv_norm) + Fingerprint(a.sink));
    all.push_back(Fingerprint(a.compressor) + Fingerprint(a.indexer.compressor));
    all.push_back(Fingerprint(l.moe.router) + Fingerprint(l.moe.router_bias) + Fingerprint(l.moe.hash_table));
    for (const ExpertWeights& e : l.moe.experts) all.push_back(Fingerprint(e));
    all.push_back(Fingerprint(l.moe.shared));
  }
  return all;
}

void ExpectSameViews(const Tensors& a, const Tensors& b) {
  const auto wa = Bind(a), wb = Bind(b);
  ASSERT_TRUE(wa.ok()) << wa.status().message();
  ASSERT_TRUE(wb.ok()) << wb.status().message();
  EXPECT_TRUE(Fingerprints(*wa) == Fingerprints(*wb));  // bytes, so they are not printed
}

TEST(Bind, GivesViewsOfTheFileBytes) {
  Tensors tensors = MakeCheckpoint(TinyConfig(), kModelOpt);
  const auto w = Bind(tensors);
  ASSERT_TRUE(w.ok()) << w.status().message();
  ASSERT_EQ(w->layers.size(), 3U);
  const QuantTensor& up = w->layers[1].moe.experts[2].up;
  EXPECT_EQ(up.format, WeightFormat::kNvfp4);
  EXPECT_EQ(up.rows, 64);
  EXPECT_EQ(up.cols, 128);
  const std::string name = "layers.1.ffn.experts.2.w3";
  EXPECT_EQ(Bytes(up.codes, 64 * 64), Named(tensors, name + ".weight").bytes);
  EXPECT_EQ(Bytes(up.block_scale, 64 * 8), Named(tensors, name + ".weight_scale").bytes);
  EXPECT_EQ(up.global_scale, 0.25f + static_cast<float>(name.size()));
  const QuantTensor& o_a = w->layers[2].attn.o_a;
  EXPECT_EQ(o_a.format, WeightFormat::kFp8Block);
  EXPECT_EQ(o_a.scale_dtype, DType::kF8E8M0);
  EXPECT_EQ(Bytes(o_a.block_scale, 1), Named(tensors, "layers.2.attn.wo_a.scale").bytes);
  EXPECT_FALSE(w->layers[0].attn.compressor.kv_proj);
  EXPECT_FALSE(w->layers[2].attn.indexer.q_b);
  EXPECT_EQ(w->layers[2].attn.compressor.slot_bias.shape, (Shape{128, 128}));
}

TEST(Bind, WidensVectorsAndHashTables) {
  Tensors tensors = MakeCheckpoint(TinyConfig(), kOfficial);
  const auto w = Bind(tensors);
  ASSERT_TRUE(w.ok()) << w.status().message();
  const std::string& norm = Named(tensors, "layers.1.attn_norm.weight").bytes;
  for (int64_t i = 0; i < 128; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, norm.data() + 2 * i, 2);
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    EXPECT_EQ(std::memcmp(w->layers[1].attn_norm.f32() + i, &wide, 4), 0);
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>(w->layers[1].attn_norm.data) % 64, 0U);
  const std::string& table = Named(tensors, "layers.0.ffn.gate.tid2eid").bytes;
  for (int64_t i = 0; i < 32; ++i) {
    int64_t id = 0;
    std::memcpy(&id, table.data() + 8 * i, 8);
    EXPECT_EQ(w->layers[0].moe.hash_table.i32()[i], id);
  }
  EXPECT_FALSE(w->layers[0].moe.router_bias);
  EXPECT_FALSE(w->layers[1].moe.hash_table);
  EXPECT_TRUE(w->layers[1].moe.router_bias);
}

class BindDialects : public ::testing::TestWithParam<Dialect> {};

TEST_P(BindDialects, AllNamingsGiveTheSameViews) {
  const Config config = TinyConfig();
  const Tensors official = MakeCheckpoint(config, GetParam());
  ExpectSameViews(official, WithPrefix("model.", official));
  const Tensors transformers = ToTransformersNames(config, official, /*stacked=*/false);
  ExpectSameViews(official, transformers);
  Tensors reversed(transformers.rbegin(), transformers.rend());
  for (TestTensor& t : reversed) {  // the early spelling, without `scorer`
    if (const size_t at = t.name.find("scorer."); at != std::string::npos) t.name.erase(at, 7);
  }
  ExpectSameViews(official, reversed);
}

INSTANTIATE_TEST_SUITE_P(Formats, BindDialects,
                         ::testing::Values(Dialect{}, kOfficial, kModelOpt,
                                           Dialect{TestFormat::kNvfp4, TestFormat::kNvfp4},
                                           Dialect{TestFormat::kFp8F32Scale, TestFormat::kFp8F32Scale},
                                           Dialect{TestFormat::kFp8, TestFormat::kFp8}));

void Replace(Tensors& tensors, std::string_view from, std::string_view to, std::string_view within = "") {
  for (TestTensor& t : tensors) {
    const size_t at = t.name.find(from);
    if (at != std::string::npos && t.name.find(within) != std::string::npos) t.name.replace(at, from.size(), to);
  }
}

// The names that transformers' save_pretrained writes, and llm-compressor.
TEST_P(BindDialects, EveryReleaseOfTransformersGivesTheSameViews) {
  const Config config = TinyConfig();
  const Tensors official = MakeCheckpoint(config, GetParam());
  Tensors of_5_11 = ToTransformersNames(config, official, /*stacked=*/false);
  Replace(of_5_11, "lm_head.", "head.");
  Replace(of_5_11, "gate_proj", "w1", "mlp.experts.");
  Replace(of_5_11, "up_proj", "w3", "mlp.experts.");
  Replace(of_5_11, "down_proj", "w2", "mlp.experts.");
  ExpectSameViews(official, of_5_11);
  Tensors of_5_9 = of_5_11;
  Replace(of_5_9, "scorer.", "");
  ExpectSameViews(official, of_5_9);
  Tensors of_5_15 = WithPrefix("model.", official);
  Replace(of_5_15, "model.head.", "head.");
  Replace(of_5_15, "model.embed.", "model.embed_tokens.");
  Replace(of_5_15, "model.hc_head_", "model.hc_head.hc_");
  Replace(of_5_15, "attn.kv_norm.", "attn.norm.");
  ExpectSameViews(official, of_5_15);
  Replace(of_5_15, ".w1.", ".wgate.", "ffn.experts.");
  Replace(of_5_15, ".w3.", ".up_proj.", "ffn.experts.");
  Replace(of_5_15, ".w2.", ".down_proj.", "ffn.experts.");
  ExpectSameViews(official, of_5_15);
}

// Names of several releases, and names whose components are spelled as in several releases.
TEST(Bind, SpellingsMayBeMixed) {
  const Config config = TinyConfig();
  const Tensors official = MakeCheckpoint(config, kModelOpt);
  const Tensors transformers = ToTransformersNames(config, official, /*stacked=*/false);
  for (size_t parity : {0U, 1U}) {
    Tensors mixed = official;
    for (size_t i = parity; i < mixed.size(); i += 2) mixed[i].name = transformers[i].name;
    ExpectSameViews(official, mixed);
  }
  Tensors mixed = transformers;
  Replace(mixed, "self_attn", "attn");
  Replace(mixed, "mlp.", "ffn.", "layers.2.");
  Replace(mixed, "compressor.indexer.kv_proj", "compressor.indexer.wkv");
  Replace(mixed, "compressor.indexer.gate_proj", "indexer.compressor.gate_proj");
  ExpectSameViews(official, mixed);
}

TEST(Bind, ExpertsMayBeStackedInPart) {
  const Config config = TinyConfig();
  const Tensors official = MakeCheckpoint(config, {});
  const Tensors stacked = ToTransformersNames(config, official, /*stacked=*/true);
  for (const char* kept : {"gate_up_proj", "down_proj"}) {
    const bool down = std::string_view(kept) == "down_proj";
    Tensors mixed = official;
    std::erase_if(mixed, [&](const TestTensor& t) {
      return t.name.find("ffn.experts.") != std::string::npos && t.name.ends_with(".w2.weight") == down;
    });
    for (const TestTensor& t : stacked) {
      if (t.name.ends_with(kept)) mixed.push_back(t);
    }
    ExpectSameViews(official, mixed);
  }
}

TEST(Bind, StackedExpertsAreGateRowsFirst) {
  const Config config = TinyConfig();
  const Tensors official = MakeCheckpoint(config, {});
  ExpectSameViews(official, ToTransformersNames(config, official, /*stacked=*/true));
}

// F = 64: gate and up share one 128-row block of scales, so `up` starts in its middle.
TEST(Bind, StackedFp8ExpertsShareScaleRows) {
  const Config config = TinyConfig();
  Tensors stacked = ToTransformersNames(config, MakeCheckpoint(config, {}), /*stacked=*/true);
  const auto as_fp8 = [&](const std::string& name, int64_t rows, int64_t cols) {
    TestTensor& t = Named(stacked, name);
    t.dtype = DType::kF8E4M3;
    t.bytes = std::string(static_cast<size_t>(4 * rows * cols), '\x21');
    std::string scales;
    for (float s : {1.0f, 2.0f, 4.0f, 8.0f}) scales.append(reinterpret_cast<const char*>(&s), 4);
    stacked.push_back({name + "_scale_inv", DType::kF32, {4, 1, 1}, scales});
  };
  as_fp8("model.layers.1.mlp.experts.gate_up_proj", 128, 128);
  as_fp8("model.layers.1.mlp.experts.down_proj", 128, 64);
  const auto w = Bind(stacked);
  ASSERT_TRUE(w.ok()) << w.status().message();
  const ExpertWeights& e = w->layers[1].moe.experts[3];
  EXPECT_EQ(e.up.scale_row_offset, 64);
  EXPECT_EQ(e.up.codes, e.gate.codes + 64 * 128);
  EXPECT_EQ(e.up.block_scale, e.gate.block_scale);
  float scale = 0;
  std::memcpy(&scale, e.down.block_scale, 4);
  EXPECT_EQ(scale, 8.0f);
}

TEST(Bind, FindsShardsThroughTheIndex) {
  const Config config = TinyConfig();
  const Tensors all = MakeCheckpoint(config, kModelOpt);
  const TempDir whole, parts;
  WriteTensors(whole / "model.safetensors", all);
  Json map;
  Tensors shards[3];
  for (size_t i = 0; i < all.size(); ++i) {
    shards[i % 3].push_back(all[i]);
    map[all[i].name] = "model-0000" + std::to_string(i % 3) + ".safetensors";
  }
  for (size_t s = 0; s < 3; ++s) WriteTensors(parts / ("model-0000" + std::to_string(s) + ".safetensors"), shards[s]);
  test::WriteBytes(parts / "model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  const auto a = BindWeights(config, TensorSource::Open(whole.path()).value());
  const auto b = BindWeights(config, TensorSource::Open(parts.path()).value());
  ASSERT_TRUE(a.ok() && b.ok()) << b.status().message();
  EXPECT_TRUE(Fingerprints(*a) == Fingerprints(*b));
}

TEST(Bind, ReportsFormatsAndUnusedDraftTensors) {
  Tensors tensors = MakeCheckpoint(TinyConfig(), kModelOpt);
  tensors.push_back({"mtp.0.enorm.weight", DType::kBf16, {128}, std::string(256, '\0')});
  tensors.push_back({"mtp.0.strange", DType::kU8, {1}, "x"});
  BindReport report;
  ASSERT_TRUE(Bind(tensors, &report).ok());
  EXPECT_THAT(report.unused_tensors, ElementsAre("mtp.0.enorm.weight", "mtp.0.strange"));
  const auto format = [&](const std::string& name) {
    for (const FormatSummary& f : report.formats) {
      if (f.format == name) return f;
    }
    return FormatSummary{};
  };
  EXPECT_EQ(format("NVFP4").num_tensors, 3 * 4 * 3);
  EXPECT_EQ(format("NVFP4").num_parameters, 3 * 4 * 3 * 64 * 128);
  EXPECT_EQ(format("NVFP4").bytes, 3 * 4 * 3 * (64 * 128 / 2 + 64 * 128 / 16 + 4));
  EXPECT_EQ(format("FP8-128x128").num_tensors, 3 * 8 + 1);
  EXPECT_EQ(format("I64").bytes, 16 * 2 * 8);
  int64_t bytes = 0;
  for (const FormatSummary& f : report.formats) bytes += f.bytes;
  EXPECT_EQ(report.weight_bytes, bytes);
  EXPECT_GT(report.widened_bytes, 128 * 128 * 4);
}

TEST(Bind, TellsMxfp4InU8FromNvfp4) {
  Tensors tensors = MakeCheckpoint(TinyConfig(), kOfficial);
  const Tensors plain = tensors;
  for (TestTensor& t : tensors) {
    if (t.name.find("experts.") == std::string::npos) continue;
    if (t.dtype == DType::kI8 || t.dtype == DType::kF8E8M0) t.dtype = DType::kU8;
  }
  ExpectSameViews(plain, tensors);
}

TEST(Bind, AcceptsGlobalScalesOfShapeOne) {
  Tensors tensors = MakeCheckpoint(TinyConfig(), kModelOpt);
  const Tensors plain = tensors;
  for (TestTensor& t : tensors) {
    if (t.name.ends_with("weight_scale_2") || t.name.ends_with("input_scale")) t.shape = {1};
  }
  ExpectSameViews(plain, tensors);
}

TEST(Bind, InputScaleIsOptionalAndNeverUsed) {
  Tensors tensors = MakeCheckpoint(TinyConfig(), kModelOpt);
  const Tensors plain = tensors;
  std::erase_if(tensors, [](const TestTensor& t) { return t.name.ends_with("input_scale"); });
  ASSERT_LT(tensors.size(), plain.size());
  ExpectSameViews(plain, tensors);
}

TEST(Bind, ValuesThatTheModelDoesNotUseAreSkipped) {
  const Tensors plain = MakeCheckpoint(TinyConfig(), kModelOpt);
  const std::string one("\x00\x00\x80\x3f", 4), infinity("\x00\x00\x80\x7f", 4);
  Tensors tensors = plain;
  std::vector<std::string> skipped;
  for (const char* name : {
           "model.rotary_emb.inv_freq", "model.rotary_emb.compress_original_inv_freq",
           "layers.0.attn.rotary_emb.inv_freq", "layers.0.attn.k_scale", "layers.0.self_attn.v_scale",
           "layers.1.self_attn.kv_proj.output_scale",
           "layers.1.attn.compressor.wkv.weight_scale",  // BF16 weights
           "layers.1.self_attn.compressor.gate_proj.weight_scale_inv", "embed.scale",
           "layers.1.attn.wq_a.input_scale",  // FP8 weights
       }) {
    skipped.emplace_back(name);
    tensors.push_back({name, DType::kF32, {1}, one});
  }
  const std::string input = "layers.1.ffn.experts.2.w1.input_scale";
  Named(tensors, input).bytes = infinity;
  skipped.push_back(input);
  ExpectSameViews(plain, tensors);
  BindReport report;
  ASSERT_TRUE(Bind(tensors, &report).ok());
  EXPECT_THAT(report.skipped_tensors, ::testing::UnorderedElementsAreArray(skipped));
  EXPECT_THAT(report.unused_tensors, ::testing::IsEmpty());
  ASSERT_TRUE(Bind(plain, &report).ok());
  EXPECT_THAT(report.skipped_tensors, ::testing::IsEmpty()) << "a finite input_scale is no news";
}

// As model.to(bfloat16) leaves them.
TEST(Bind, EveryF32TensorMayBeBf16) {
  Tensors tensors = MakeCheckpoint(TinyConfig(), {});
  for (TestTensor& t : tensors) {
    if (t.dtype != DType::kF32) continue;
    std::string bytes;
    for (size_t i = 0; i < t.bytes.size(); i += 4) bytes += t.bytes.substr(i + 2, 2);
    t.dtype = DType::kBf16;
    t.bytes = bytes;
  }
  const auto w = Bind(tensors);
  EXPECT_TRUE(w.ok()) << w.status().message();
}

TEST(Bind, ChecksEveryNthScaleTensorBeyondTheBound) {
  constexpr int64_t kScaleBytes = 3 * 4 * 3 * 64 * 128 / 16;  // of all experts
  int caught_by_half = 0;
  for (const char* damaged : {"0.w1", "0.w3", "0.w2", "1.w1"}) {  // neighbours in binding order
    Tensors tensors = MakeCheckpoint(TinyConfig(), kModelOpt);
    Named(tensors, StrCat("layers.2.ffn.experts.", damaged, ".weight_scale")).bytes[0] = '\x7f';
    EXPECT_THAT(Bind(tensors, nullptr, {.scale_check_bytes = kScaleBytes}).status().message(), HasSubstr("NaN"));
    caught_by_half += Bind(tensors, nullptr, {.scale_check_bytes = kScaleBytes / 2}).ok() ? 0 : 1;
  }
  EXPECT_EQ(caught_by_half, 2);
}

TEST(Bind, WeightsKeepTheFilesMapped) {
  Result<Weights> w = Internal("unset");
  {
    const TempDir dir;
    WriteTensors(dir / "model.safetensors", MakeCheckpoint(TinyConfig(), {}));
    w = BindWeights(TinyConfig(), TensorSource::Open(dir.path()).value());
  }
  ASSERT_TRUE(w.ok()) << w.status().message();
  const QuantTensor& head = w->head;
  int sum = 0;
  for (int64_t i = 0; i < head.rows * head.row_bytes(); ++i) sum += head.codes[i];
  EXPECT_GT(sum, 0);
}

TEST(Bind, SharedFixturesBind) {
  const std::string folder = FixturesBeside();
  if (!std::filesystem::is_directory(folder)) GTEST_SKIP() << "no " << folder;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    const auto config = LoadConfig(entry.path());
    if (entry.path().filename().string().rfind("v41", 0) == 0) {  // another model
      EXPECT_THAT(config.status().message(), HasSubstr("deepseek_v41"));
      continue;
    }
    ASSERT_TRUE(config.ok()) << config.status().message();
    const auto source = TensorSource::Open(entry.path());
    ASSERT_TRUE(source.ok()) << source.status().message();
    BindReport report;
    const auto w = BindWeights(*config, *source, &report);
    EXPECT_TRUE(w.ok()) << entry.path() << ": " << w.status().message();
    EXPECT_THAT(report.unused_tensors, ::testing::Each(::testing::StartsWith("mtp.")));
  }
}

}  // namespace
}  // namespace dsv4::deepseek_v4
