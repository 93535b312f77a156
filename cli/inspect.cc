// dsv4 inspect: describes a checkpoint and the memory that it needs.
#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsv4/inspect.h"
#include "errors.h"
#include "format.h"
#include "io.h"
#include "model.h"
#include "options.h"

namespace dsv4::cli {

namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const ModelDescription& d, const std::string& model_dir) {
  Json j = {{"model", model_dir},
            {"vocab_size", d.info.vocab_size},
            {"num_layers", d.info.num_layers},
            {"hidden_size", d.info.hidden_size},
            {"max_context", d.info.max_context},
            {"bos_token_id", d.info.bos_token_id},
            {"eos_token_ids", d.info.eos_token_ids},
            {"unused_tensors", d.info.unused_tensors},
            {"skipped_tensors", d.info.skipped_tensors}};
  j["config"] = Json::object();
  for (const auto& [field, value] : d.config) j["config"][field] = value;
  j["formats"] = Json::array();
  for (const FormatSummary& f : d.formats) {
    j["formats"].push_back(
        {{"format", f.format}, {"tensors", f.num_tensors}, {"parameters", f.num_parameters}, {"bytes", f.bytes}});
  }
  j["files"] = d.files;
  const MemoryPlan& p = d.plan;
  j["plan"] = {{"weight_bytes", p.weight_bytes},
               {"widened_bytes", p.widened_bytes},
               {"kv_bytes_per_1k_tokens", p.kv_bytes_per_1k_tokens},
               {"kv_fixed_bytes", p.kv_fixed_bytes},
               {"activation_bytes", p.activation_bytes},
               {"scratch_bytes", p.scratch_bytes},
               {"loading_bytes", p.loading_bytes},
               {"host_staging_bytes", p.host_staging_bytes},
               {"available_bytes", p.available_bytes},
               {"max_context_that_fits", p.max_context_that_fits},
               {"exchange_bytes", p.collective_bytes},
               {"ranks", p.ranks},
               {"devices", p.devices},
               {"slices", p.slices},
               {"experts", p.experts},
               {"experts_on_host", p.experts_on_host},
               {"host_expert_bytes", p.host_expert_bytes},
               {"host_embedding_bytes", p.host_embedding_bytes},
               {"host_bytes_per_token", p.host_bytes_per_token},
               {"host_available_bytes", p.host_available_bytes},
               {"experts_on_disk", p.experts_on_disk},
               {"disk_bytes", p.disk_bytes},
               {"disk_bytes_per_token", p.disk_bytes_per_token}};
  j["cards"] = Json::array();
  for (const CardPlan& c : d.cards) {
    j["cards"].push_back({{"name", c.name},
                          {"gigabytes", c.gigabytes},
                          {"count", c.count},
                          {"fits", c.fits},
                          {"resident", c.resident},
                          {"host_bytes", c.host_bytes},
                          {"tokens_per_s_extrapolated", c.tokens_per_s}});
  }
  j["ops"] = Json::array();
  for (const OpChoice& op : d.ops) {
    j["ops"].push_back({{"op", op.op}, {"chosen", op.chosen}, {"candidates", op.candidates}});
  }
  j["forward"] = Json::array();
  for (const PlannedOp& op : d.forward) {
    j["forward"].push_back({{"op", op.op}, {"layers", op.layers}, {"steps", op.steps}, {"runs", op.runs}});
  }
  return j;
}

std::string Summary(const ModelDescription& d, const std::string& model_dir) {
  std::string out = model_dir + "\n" +
                    Table({{"layers", FormatCount(d.info.num_layers)},
                           {"hidden size", FormatCount(d.info.hidden_size)},
                           {"vocabulary", FormatCount(d.info.vocab_size)},
                           {"context", FormatCount(d.info.max_context)},
                           {"BOS, EOS", std::to_string(d.info.bos_token_id) + "; " + FormatIds(d.info.eos_token_ids)},
                           {"files", FormatCount(static_cast<int64_t>(d.files.size()))}},
                          {false, false});
  out += "\nconfig\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& [field, value] : d.config) rows.push_back({field, value});
  out += Table(rows, {false, false});

  out += "\ntensors by format\n";
  rows = {{"format", "tensors", "parameters", "bytes"}};
  FormatSummary total{.format = "all", .num_tensors = 0, .num_parameters = 0, .bytes = 0};
  for (const FormatSummary& f : d.formats) {
    rows.push_back({f.format, FormatCount(f.num_tensors), FormatCount(f.num_parameters), FormatBytes(f.bytes)});
    total.num_tensors += f.num_tensors;
    total.num_parameters += f.num_parameters;
    total.bytes += f.bytes;
  }
  rows.push_back(
      {total.format, FormatCount(total.num_tensors), FormatCount(total.num_parameters), FormatBytes(total.bytes)});
  out += Table(rows, {false, true, true, true});
  if (!d.info.unused_tensors.empty()) {
    out += "  not used: " + FormatCount(static_cast<int64_t>(d.info.unused_tensors.size())) +
           " tensors (first: " + d.info.unused_tensors.front() + ")\n";
  }
  if (!d.info.skipped_tensors.empty()) out += "  warning: " + WarningOfSkipped(d.info) + "\n";
  return out;
}

// Returns a table with one row per size and number of GPUs.
std::string Cards(const ModelDescription& d) {
  std::vector<std::vector<std::string>> rows = {
      {"memory per GPU", "GPUs", "experts on GPUs", "in host memory", "tok/s, extrapolated"}};
  const int64_t here = d.plan.host_available_bytes;
  bool marked = false;
  for (const CardPlan& c : d.cards) {
    const bool beyond = here > 0 && c.host_bytes > here;
    marked = marked || beyond;
    rows.push_back({FormatCount(c.gigabytes) + " GB (" + c.name + ")", FormatCount(c.count),
                    c.fits ? FormatFixed(100 * c.resident, 1) + " %" : "does not fit",
                    c.fits ? FormatBytes(c.host_bytes) + (beyond ? " *" : "") : "-",
                    c.fits ? FormatFixed(c.tokens_per_s, 0) : "-"});
  }
  return "\nother GPUs (docs/offload.md)\n" + Table(rows, {false, true, true, true, true}) +
         "  the rates need that much free host memory; with less, experts are read from the disk" +
         (marked ? "\n  *: more than " + FormatBytes(here) + ", the host memory of this plan" : "") + "\n";
}

// Describes the slices of --rank-invariant.
std::string Slices(const MemoryPlan& p) {
  const int of_rank = p.slices / (p.ranks * p.devices);
  const std::string all = FormatCount(p.slices), mine = FormatCount(of_rank);
  return "\nsame bits on up to " + all + " ranks\n" +
         Table(
             {{"slices of a layer, slices per rank", all + ", " + mine},
              {"runs per layer on a rank", mine + ": queries to output, and experts, with 1/" + all + " of the width"},
              {"partial sums added on a rank", FormatCount(2 * (of_rank - 1))},
              {"not sliced", "the output matrix"}},
             {false, false});
}

int64_t Sum(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// Returns the label of a row about free memory: the flag if it limits the memory, otherwise `free`.
std::string FreeOrLimit(const char* flag, int64_t limit, int64_t available, const std::string& free) {
  return limit > 0 && limit == available ? std::string("limit of ") + flag : free;
}

// Describes weights that are not in GPU memory, or on a CPU not in memory.
std::string Elsewhere(const MemoryPlan& p, const OffloadOptions& offload) {
  std::string out;
  std::vector<std::vector<std::string>> rows;
  if (p.host_embedding_bytes > 0) rows.push_back({"embedding table", FormatBytes(p.host_embedding_bytes)});
  if (!p.experts_on_host.empty()) {
    rows.push_back({"experts, of " + FormatCount(p.experts), FormatCount(Sum(p.experts_on_host))});
    rows.push_back({"bytes of these experts", FormatBytes(p.host_expert_bytes)});
    rows.push_back(
        {"expected reads of a token over one link", FormatBytes(static_cast<int64_t>(p.host_bytes_per_token))});
  }
  if (!rows.empty()) {
    rows.push_back({FreeOrLimit("--host-memory", offload.host_memory, p.host_available_bytes, "free host memory"),
                    p.host_available_bytes > 0 ? FormatBytes(p.host_available_bytes) : "unknown"});
    out += "\nin host memory\n" + Table(rows, {false, true});
  }
  if (p.disk_bytes == 0) return out;
  rows.clear();
  if (!p.experts_on_disk.empty())
    rows.push_back({"experts, of " + FormatCount(p.experts), FormatCount(Sum(p.experts_on_disk))});
  rows.push_back({p.experts_on_disk.empty() ? "weights that do not fit in memory" : "bytes of these experts",
                  FormatBytes(p.disk_bytes)});
  rows.push_back({"expected reads of a token", FormatBytes(static_cast<int64_t>(p.disk_bytes_per_token))});
  return out + "\nread from the disk when tokens choose it\n" + Table(rows, {false, true});
}

std::string Plan(const ModelDescription& d, const OffloadOptions& offload) {
  const MemoryPlan& p = d.plan;
  const bool on_gpu = p.host_staging_bytes > 0;
  const auto kv_per_1k = static_cast<int64_t>(p.kv_bytes_per_1k_tokens);
  std::string out;
  const std::string n = FormatCount(p.ranks * p.devices);
  if (n != "1") {
    out += "\nranks\n" + Table({{p.devices > 1 ? "GPUs, one rank each" : "ranks on " + p.device, n},
                                {"a rank has", "1/" + n + " of the heads, of every expert's width" +
                                                   (p.slices > 0 ? "" : " and of the output matrix")},
                                {"", "all other weights, and all KV rows"},
                                {"memory below is for", p.devices > 1 ? "each GPU" : "all ranks together"}},
                               {false, false});
  }
  if (p.slices > 0) out += Slices(p);
  out += "\nmemory\n" +
         Table(
             {{on_gpu ? "weights, packed for the GPU" : "weights, mapped from the files", FormatBytes(p.weight_bytes)},
              {"small vectors as f32", FormatBytes(p.widened_bytes)},
              {"activations of a prefill chunk", FormatBytes(p.activation_bytes)},
              {"scratch of ops, at the longest context", FormatBytes(p.scratch_bytes)},
              {"collectives between ranks", FormatBytes(p.collective_bytes)},
              {"while loading, before activations are allocated", FormatBytes(p.loading_bytes)},
              {"KV per sequence, fixed", FormatBytes(p.kv_fixed_bytes)},
              {"KV per 1,000 tokens", FormatBytes(kv_per_1k)},
              {on_gpu ? FreeOrLimit("--gpu-memory", offload.gpu_memory, p.available_bytes, "free on " + p.device)
                      : FreeOrLimit("--host-memory", offload.host_memory, p.available_bytes, "free on this machine"),
               p.available_bytes > 0 ? FormatBytes(p.available_bytes) : "unknown"},
              {"longest context that fits", p.weights_are_paged() ? "any, weights are read from the disk"
                                                                  : FormatCount(p.max_context_that_fits) + " tokens"}},
             {false, true});
  out += Elsewhere(p, offload);
  out += Cards(d) + "\nops\n";
  std::vector<std::vector<std::string>> rows = {{"op", "implementation", "candidates"}};
  for (const OpChoice& op : d.ops) {
    rows.push_back({op.op, op.chosen, FormatList(op.candidates)});
  }
  out += Table(rows, {false, false, false}) + "\nforward pass\n";
  rows = {{"op", "layers", "steps", "runs"}};
  for (const PlannedOp& op : d.forward) rows.push_back({op.op, op.layers, op.steps, op.runs});
  return out + Table(rows, {false, false, false, false});
}

}  // namespace

int RunInspect(const InspectOptions& options) {
  EngineOptions model = options.model;
  CheckGpuMemory(model);
  const bool synthetic = !model.synthetic.shape.empty();
  if (!synthetic) model.model_dir = FindModelDir(model.model_dir);
  const std::string name = synthetic ? "synthetic " + model.synthetic.shape : model.model_dir;
  const ModelDescription description = Must(Inspect(model));
  if (const std::string& why = description.info.unusable_draft; !why.empty())
    PrintNote("--speculate auto uses lookup instead of the draft module: " + why);
  if (options.json) {
    Print(ToJson(description, name).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    Print(Summary(description, name) + (options.plan ? Plan(description, model.offload) : ""));
  }
  return kExitDone;
}

}  // namespace dsv4::cli
