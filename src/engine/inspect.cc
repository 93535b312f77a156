#include "dsv4/inspect.h"

#include <algorithm>
#include <utility>

#include "base/str.h"
#include "device/device.h"
#include "engine/engine_impl.h"
#include "io/tensor_source.h"
#include "model/deepseek_v4/bind.h"
#include "model/deepseek_v4/config.h"
#include "model/deepseek_v4/gpu_limits.h"
#include "ops/registry.h"

namespace dsv4 {

namespace {

template <typename T>
std::string Joined(const std::vector<T>& values) {
  std::string s;
  for (const T& v : values) s += StrCat(s.empty() ? "" : ", ", v);
  return s;
}

std::vector<std::pair<std::string, std::string>> DescribeConfig(const Config& c) {
  std::vector<std::pair<std::string, std::string>> fields;
  const auto add = [&](const char* name, auto value) { fields.emplace_back(name, StrCat(value)); };
  add("vocab_size", c.vocab_size);
  add("hidden_size", c.hidden_size);
  add("num_layers", c.num_layers);
  add("compress_ratios", Joined(c.compress_ratios));
  add("num_heads", c.num_heads);
  add("head_dim", c.head_dim);
  add("rope_dim", c.rope_dim);
  add("q_lora_rank", c.q_lora_rank);
  add("o_groups", c.o_groups);
  add("o_lora_rank", c.o_lora_rank);
  add("window", c.window);
  add("index_heads", c.index_heads);
  add("index_head_dim", c.index_head_dim);
  add("index_topk", c.index_topk);
  add("moe_intermediate", c.moe_intermediate);
  add("num_experts", c.num_experts);
  add("num_shared_experts", c.num_shared_experts);
  add("experts_per_token", c.experts_per_token);
  add("num_hash_layers", c.num_hash_layers);
  add("routed_scaling_factor", c.routed_scaling_factor);
  add("swiglu_limit", c.swiglu_limit);
  add("hc_mult", c.hc_mult);
  add("hc_sinkhorn_iters", c.hc_sinkhorn_iters);
  add("hc_eps", c.hc_eps);
  add("rms_norm_eps", c.rms_norm_eps);
  add("rope_theta", c.rope_theta);
  add("compress_rope_theta", c.compress_rope_theta);
  add("yarn_factor", c.yarn_factor);
  add("yarn_original_positions", c.yarn_original_positions);
  add("yarn_beta_fast", c.yarn_beta_fast);
  add("yarn_beta_slow", c.yarn_beta_slow);
  add("max_positions", c.max_positions);
  add("bos_token_id", c.bos_token_id);
  add("eos_token_ids", Joined(c.eos_token_ids));
  return fields;
}

}  // namespace

Result<ModelDescription> Inspect(const EngineOptions& options) {
  DSV4_RETURN_IF_ERROR(CheckEngineOptions(options));
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, Device::Open(options.device));
  DSV4_ASSIGN_OR_RETURN(const Config config, LoadConfig(options.model_dir));
  if (device->kind() != DeviceKind::kCpu) DSV4_RETURN_IF_ERROR(CheckGpuLimits(config));
  DSV4_ASSIGN_OR_RETURN(const auto source, TensorSource::Open(options.model_dir));
  BindReport report;
  DSV4_ASSIGN_OR_RETURN(const Weights weights, BindWeights(config, source, &report));

  ModelDescription d;
  d.info = MakeModelInfo(config, options, report);
  d.config = DescribeConfig(config);
  d.formats = std::move(report.formats);
  d.files = source->files();

  d.plan = PlanMemory(options, config, *device, weights, report);
  for (OpImplementations& op : ListOps(device->Context(nullptr, options.reference_ops))) {
    d.ops.push_back({std::move(op.op), std::move(op.chosen), std::move(op.candidates)});
  }
  return d;
}

}  // namespace dsv4
