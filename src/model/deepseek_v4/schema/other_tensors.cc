#include "model/deepseek_v4/schema/other_tensors.h"

#include <algorithm>

namespace dsv4::deepseek_v4 {

namespace {

constexpr std::string_view kUnused[] = {
    "inv_freq",       ".k_scale",       ".v_scale",        ".q_scale",      ".kv_scale",
    ".k_cache_scale", ".v_cache_scale", ".kv_cache_scale", ".output_scale", ".prob_output_scale",
    ".cos_cached",    ".sin_cached",    ".freqs_cis",      ".k_zero_point", ".v_zero_point",
};

constexpr std::string_view kScaleEndings[] = {".scale", ".weight_scale", ".weight_scale_2", ".input_scale"};

constexpr ForeignFormat kForeign[] = {
    {".weight_zero_point", "the integer format of compressed-tensors"},
    {".weight_g_idx", "the integer format of compressed-tensors"},
    {".weight_shape", "the integer format of compressed-tensors"},
    {".weight_packed", "the compressed-tensors layout"},
    {".weight_global_scale", "the compressed-tensors layout"},
    {".input_global_scale", "the compressed-tensors layout"},
    {".qweight", "GPTQ or AWQ"},
    {".qzeros", "GPTQ or AWQ"},
    {".g_idx", "GPTQ or AWQ"},
    {".pre_quant_scale", "NVFP4_AWQ, whose weights are smoothed"},
    {".svdquant_lora_a", "NVFP4_SVD, whose weights are split"},
    {".svdquant_lora_b", "NVFP4_SVD, whose weights are split"},
    {".absmax", "bitsandbytes"},
    {".quant_map", "bitsandbytes"},
    {".SCB", "bitsandbytes"},
    {".scales", "an MLX conversion"},
    {".biases", "an MLX conversion"},
};

}  // namespace

bool IsUnusedValue(std::string_view official_name) {
  return std::any_of(std::begin(kUnused), std::end(kUnused),
                     [&](std::string_view ending) { return official_name.ends_with(ending); });
}

std::string_view MatrixOfScale(std::string_view official_name) {
  for (const std::string_view ending : kScaleEndings) {
    if (official_name.ends_with(ending)) return official_name.substr(0, official_name.size() - ending.size());
  }
  return {};
}

const ForeignFormat* ForeignFormatOf(std::string_view official_name) {
  for (const ForeignFormat& format : kForeign) {
    if (official_name.ends_with(format.sign)) return &format;
  }
  return nullptr;
}

bool IsRowOfTransformers58(std::string_view official_name) {
  constexpr std::string_view kShared = ".ffn.shared_experts.";
  const size_t at = official_name.find(kShared);
  if (at == std::string_view::npos) return false;
  const std::string_view rest = official_name.substr(at + kShared.size());
  return !rest.empty() && rest[0] >= '0' && rest[0] <= '9' && rest.ends_with(".weight.weight");
}

}  // namespace dsv4::deepseek_v4
