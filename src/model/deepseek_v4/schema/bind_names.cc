#include "model/deepseek_v4/schema/bind_names.h"

#include <span>
#include <utility>

#include "base/str.h"
#include "model/deepseek_v4/schema/schema.h"

namespace dsv4::deepseek_v4 {

namespace {

// Possible suffixes of a matrix's name. Stacked experts are parameters, not modules: `gate_up_proj`,
// `gate_up_proj_scale_inv`.
struct Ending {
  std::string_view found, official;
};
constexpr Ending kEndings[] = {
    {".weight", ".weight"},
    {".scale", ".scale"},
    {".weight_scale_inv", ".scale"},
    {".weight_scale", ".weight_scale"},
    {".weight_scale_2", ".weight_scale_2"},
    {".input_scale", ".input_scale"},
};
constexpr Ending kStackedEndings[] = {
    {"", ".weight"},
    {"_scale_inv", ".scale"},
    {"_weight_scale_inv", ".scale"},
    {"_weight_scale", ".weight_scale"},
    {"_weight_scale_2", ".weight_scale_2"},
    {"_input_scale", ".input_scale"},
};

bool Consume(std::string_view& s, std::string_view prefix) {
  if (!s.starts_with(prefix)) return false;
  s.remove_prefix(prefix.size());
  return true;
}

// Removes `123.` from the front.
bool ConsumeNumber(std::string_view& s) {
  const size_t dot = s.find_first_not_of("0123456789");
  if (dot == 0 || dot == std::string_view::npos || s[dot] != '.') return false;
  s.remove_prefix(dot + 1);
  return true;
}

// The official ending for the rest of `found` after `name`; null: it is none of `endings`.
const Ending* EndingOf(std::string_view found, std::string_view name, std::span<const Ending> endings) {
  if (!Consume(found, name)) return nullptr;
  for (const Ending& ending : endings) {
    if (found == ending.found) return &ending;
  }
  return nullptr;
}

// The official name for transformers' spelling `name`; empty: no row of `rows` has it.
std::string RenamedBy(std::span<const WeightRow> rows, std::string_view name) {
  for (const WeightRow& row : rows) {
    if (IsAnyFormat(row.kind)) {
      if (const Ending* e = EndingOf(name, row.transformers, kEndings)) return StrCat(row.official, e->official);
    } else if (!IsNested(row.kind) && name == row.transformers) {
      return std::string(row.official);
    }
  }
  return {};
}

// `rest` is the name after `layers.N.` or `mtp.N.`. Empty: not a name of transformers.
std::string RenamedBelowLayer(std::string_view rest) {
  std::string_view below = rest;
  if (Consume(below, "mlp.experts.")) {
    const std::string_view number = below;
    if (ConsumeNumber(below)) {
      const std::string name = RenamedBy(kExpertWeights, below);
      return name.empty() ? name : StrCat("ffn.experts.", number.substr(0, number.size() - below.size()), name);
    }
  }
  for (const StackedExperts& stack : kStackedExperts) {
    const Ending* e = EndingOf(rest, stack.transformers, kStackedEndings);
    if (e != nullptr) return StrCat(stack.official, e->official);
  }
  for (const Spelling& s : kOtherSpellings) {
    if (const Ending* e = EndingOf(rest, s.found, kEndings)) return StrCat(s.official, e->official);
  }
  return RenamedBy(kLayerWeights, rest);
}

std::string Renamed(std::string_view name) {
  std::string_view rest = name;
  if (!Consume(rest, "layers.") && !Consume(rest, "mtp.")) return RenamedBy(kModelWeights, name);
  if (!ConsumeNumber(rest)) return {};
  const std::string below = RenamedBelowLayer(rest);
  return below.empty() ? below : StrCat(name.substr(0, name.size() - rest.size()), below);
}

}  // namespace

std::string_view OfficialName(std::string_view name, std::deque<std::string>& storage) {
  constexpr std::string_view kScaleInv = ".weight_scale_inv";
  Consume(name, "model.");
  std::string renamed = Renamed(name);
  const std::string_view now = renamed.empty() ? name : std::string_view(renamed);
  if (now.ends_with(kScaleInv))
    return storage.emplace_back(StrCat(now.substr(0, now.size() - kScaleInv.size()), ".scale"));
  return renamed.empty() ? name : storage.emplace_back(std::move(renamed));
}

bool IsCopyInDraft(std::string_view official_name) {
  return official_name == "mtp.0.emb.tok_emb.weight" || official_name == "mtp.0.head.weight";
}

bool IsDraftName(std::string_view official_name) { return official_name.starts_with("mtp."); }

bool IsCompressedTensorsName(std::string_view official_name) {
  return official_name.ends_with(".weight_packed") || official_name.ends_with(".weight_global_scale") ||
         official_name.ends_with(".input_global_scale");
}

}  // namespace dsv4::deepseek_v4
