#include "model/deepseek_v4/config/read_schedule.h"

#include <string>
#include <string_view>

#include "base/str.h"

namespace dsv4::deepseek_v4 {

namespace {

// The rule of an entry: a ratio (1, like 0, compresses nothing) in the official list, a name in transformers' list.
// Null: there is no such rule.
const LayerRule* RuleOf(const Json& entry, bool ratio) {
  if (ratio) return entry.is_number_integer() ? FindLayerRule(entry == 1 ? 0 : entry.get<int64_t>()) : nullptr;
  for (const LayerRule& rule : kLayerRules) {
    if (entry == rule.other) return &rule;
  }
  return nullptr;
}

std::string AcceptedRules(bool ratio) {
  std::string all;
  for (const LayerRule& rule : kLayerRules) {
    const std::string one = ratio ? StrCat(rule.ratio) : StrCat("\"", rule.other, "\"");
    all += StrCat(all.empty() ? "" : ", ", one);
  }
  return all;
}

// The list of one entry per layer that `field` must be; null after an error.
const Json* ListOfLayers(ConfigReader& in, const Config& c, std::string_view field, const Json& list) {
  if (list.is_array() && static_cast<int64_t>(list.size()) >= c.num_layers) return &list;
  in.Fail(
      StrCat(field, " is ", Shown(list), "; accepted: a list of at least ", c.num_layers, " entries, one per layer"));
  return nullptr;
}

// Appends the ratios of the model's layers, or compares them with the ratios of a field that was read before.
void TakeRatios(ConfigReader& in, Config& c, std::string_view field, bool ratio) {
  const Json* found = in.Find({field});
  const Json* list = found == nullptr ? nullptr : ListOfLayers(in, c, field, *found);
  if (list == nullptr) return;
  const bool compare = !c.compress_ratios.empty();
  for (size_t i = 0; i < static_cast<size_t>(c.num_layers); ++i) {
    const Json& entry = (*list)[i];
    const LayerRule* rule = RuleOf(entry, ratio);
    if (rule == nullptr)
      return in.Fail(StrCat(field, "[", i, "] is ", Shown(entry), "; accepted: ", AcceptedRules(ratio)));
    if (!compare) {
      c.compress_ratios.push_back(rule->ratio);
    } else if (rule->ratio != c.compress_ratios[i]) {
      return in.Fail(StrCat(field, "[", i, "] is ", Shown(entry), " but compress_ratios[", i, "] is ",
                            c.compress_ratios[i], "; remove the wrong list of the two"));
    }
  }
}

// The number of layers with a hash router in mlp_layer_types.
int64_t CountHashLayers(ConfigReader& in, const Config& c, const Json& types) {
  const Json* list = ListOfLayers(in, c, "mlp_layer_types", types);
  int64_t count = 0;
  for (size_t i = 0; list != nullptr && i < static_cast<size_t>(c.num_layers); ++i) {
    const Json& entry = (*list)[i];
    if (entry == "hash_moe" && count == static_cast<int64_t>(i)) {
      ++count;
    } else if (entry != "moe") {
      in.Fail(StrCat("mlp_layer_types[", i, "] is ", Shown(entry), "; accepted: \"hash_moe\" first, then \"moe\""));
      return 0;
    }
  }
  return count;
}

}  // namespace

void ReadSchedule(ConfigReader& in, Config& c) {
  if (in.Find({"compress_ratios"}) == nullptr && in.Find({"layer_types"}) == nullptr)
    return in.Fail("compress_ratios (also read as layer_types) is missing");
  TakeRatios(in, c, "compress_ratios", true);
  TakeRatios(in, c, "layer_types", false);
  if (const Json* rates = in.Find({"compress_rates"}); rates != nullptr && !rates->is_object())
    return in.Refuse("compress_rates", *rates, "an object");
  in.Expect({"compress_rates.compressed_sparse_attention", "compress_rate_csa"}, 4);
  in.Expect({"compress_rates.heavily_compressed_attention", "compress_rate_hca"}, 128);
}

void ReadHashLayers(ConfigReader& in, Config& c) {
  const Json* count = in.Find({"num_hash_layers", "n_hash_layers"});
  const Json* types = in.Find({"mlp_layer_types"});
  const int64_t listed = types == nullptr ? 0 : CountHashLayers(in, c, *types);
  c.num_hash_layers = count == nullptr && types != nullptr
                          ? listed
                          : in.Int({"num_hash_layers", "n_hash_layers"}, 0, c.num_layers);
  if (in.status().ok() && types != nullptr && listed != c.num_hash_layers) {
    in.Fail(StrCat("mlp_layer_types has ", listed, " layers of \"hash_moe\" but num_hash_layers is ", c.num_hash_layers,
                   "; remove the wrong field of the two"));
  }
}

}  // namespace dsv4::deepseek_v4
