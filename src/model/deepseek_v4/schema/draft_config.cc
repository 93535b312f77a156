#include "model/deepseek_v4/schema/draft_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <string_view>

#include "base/str.h"
#include "kv/layout.h"
#include "model/deepseek_v4/config/config_reader.h"
#include "model/deepseek_v4/schema/bind_names.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr std::string_view kMtpMarker = "mtp.0.e_proj.weight", kDsparkMarker = "mtp.0.main_proj.weight";
constexpr int64_t kMaxStages = 16;

// The draft module that the names of a checkpoint's tensors indicate.
struct FoundModule {
  bool mtp = false, dspark = false;
  int64_t stages = 0;
  std::string first;  // the first tensor of a draft module, with the file's name
  std::string file;   // the file that has it
};

FoundModule FindModule(const TensorSource& source) {
  FoundModule found;
  std::deque<std::string> storage;
  for (const FileTensor& tensor : source.tensors()) {
    const std::string_view name = OfficialName(tensor.name, storage);
    if (!IsDraftName(name)) continue;
    if (found.first.empty()) found.first = tensor.name, found.file = source.FileOf(tensor);
    found.mtp |= name == kMtpMarker;
    found.dspark |= name == kDsparkMarker;
    int64_t stage = 0;
    const std::string_view number = name.substr(name.find('.') + 1);
    if (std::from_chars(number.data(), number.data() + number.size(), stage).ec == std::errc() && stage < kMaxStages)
      found.stages = std::max(found.stages, stage + 1);
  }
  return found;
}

Status Lacks(const TensorSource& source, DraftModule wanted, DraftModule has) {
  const std::string_view marker = wanted == DraftModule::kMtp ? kMtpMarker : kDsparkMarker;
  return NotFound(StrCat(
      "'", source.where(), "' has no ", NameOf(wanted), " module (", marker, "), ",
      has == DraftModule::kNone ? std::string("and no other draft module") : StrCat("but ", NameOf(has), "'s module"),
      "; use --speculate auto, lookup or off"));
}

// kNone: there is no module, and none is required.
Result<DraftModule> ModuleOf(const TensorSource& source, const FoundModule& found, DraftModule wanted) {
  if (!found.first.empty() && found.mtp == found.dspark) {
    const std::string markers = found.mtp
                                    ? StrCat("both MTP's ", kMtpMarker, " and DSpark's ", kDsparkMarker, " are")
                                    : StrCat("neither MTP's ", kMtpMarker, " nor DSpark's ", kDsparkMarker, " is");
    return DataLoss(StrCat("'", source.where(), "': tensor '", found.first, "' belongs to a draft module, but ",
                           markers, " present; use --speculate lookup or off"));
  }
  const DraftModule has = found.mtp ? DraftModule::kMtp : found.dspark ? DraftModule::kDspark : DraftModule::kNone;
  if (wanted != DraftModule::kAny && wanted != has) return Lacks(source, wanted, has);
  return has;
}

// Checks the ratios of layers after the model's own: config.json's list may end with the draft module's layers. A model
// that was cut may have the list of the whole model: ratios of other layers, then zeros or nothing.
void CheckDraftRatios(ConfigReader& in, const Config& c) {
  const Json* ratios = in.Find({"compress_ratios"});
  const auto first = static_cast<size_t>(c.num_layers), end = static_cast<size_t>(c.num_layers + c.draft.stages);
  if (ratios == nullptr || !ratios->is_array() || ratios->size() != end) return;
  for (size_t i = first + 1; i < end; ++i) {
    if ((*ratios)[i] != 0 && (*ratios)[i - 1] == 0)
      in.Refuse(StrCat("compress_ratios[", i, "]"), (*ratios)[i], "0 for the blocks of a draft module");
  }
}

bool SameBytes(const TensorSource& source, const FileTensor& a, const FileTensor& b) {
  if (a.dtype_name != b.dtype_name || a.shape != b.shape || a.num_bytes != b.num_bytes) return false;
  source.WillRead(a), source.WillRead(b);
  return std::memcmp(a.data, b.data, static_cast<size_t>(a.num_bytes)) == 0;
}

// The embedding tables and output matrices of a checkpoint: official names to tensors.
class Matrices {
 public:
  explicit Matrices(const TensorSource& source) : source_(source) {
    std::deque<std::string> storage;
    for (const FileTensor& tensor : source.tensors()) {
      const std::string_view name = OfficialName(tensor.name, storage);
      if (IsCopyInDraft(name) || name.starts_with("embed.") || name.starts_with("head."))
        tensors_.emplace(name, &tensor);
    }
  }

  // Whether the tensors that begin with `copy` are present and differ from the model's, which begin with `model`; the
  // first of them.
  const FileTensor* Different(const std::string& copy, std::string_view model) const {
    for (auto it = tensors_.lower_bound(copy); it != tensors_.end() && it->first.starts_with(copy); ++it) {
      const auto same = tensors_.find(StrCat(model, it->first.substr(copy.size())));
      if (same == tensors_.end() || !SameBytes(source_, *it->second, *same->second)) return it->second;
    }
    return nullptr;
  }

 private:
  const TensorSource& source_;
  std::map<std::string, const FileTensor*> tensors_;
};

// Finds the module's own embedding table (of the first stage) and output matrix (of the last one).
Status FindOwnMatrices(const TensorSource& source, DraftConfig& draft) {
  const Matrices matrices(source);
  for (int64_t stage = 0; stage < draft.stages; ++stage) {
    const FileTensor* embed = matrices.Different(StrCat("mtp.", stage, ".emb.tok_emb."), "embed.");
    const FileTensor* head = matrices.Different(StrCat("mtp.", stage, ".head."), "head.");
    const bool first = stage == 0, last = stage == draft.stages - 1;
    for (const FileTensor* stray : {first ? nullptr : embed, last ? nullptr : head}) {
      if (stray == nullptr) continue;
      return Unsupported(StrCat("'", source.FileOf(*stray), "': tensor '", stray->name,
                                "' differs from the model's; accepted: an own embedding table in the first block of a "
                                "draft module, an own output matrix in the last; use --speculate lookup or off"));
    }
    if (first) draft.own_embed = embed != nullptr;
    if (last) draft.own_head = head != nullptr;
  }
  return {};
}

// Returns the config.json of the module: the fields of its own folder, then the fields of the model.
Result<ConfigText> DraftConfigText(const std::string& model_dir, const FoundModule& found) {
  DSV4_ASSIGN_OR_RETURN(ConfigText text, ReadConfigText(model_dir));
  const std::string folder = std::filesystem::path(found.file).parent_path().string();
  std::error_code error;
  const std::string own_path = StrCat(folder, "/config.json");
  if (!std::filesystem::exists(own_path, error) || std::filesystem::equivalent(own_path, text.path, error)) return text;
  DSV4_ASSIGN_OR_RETURN(const ConfigText own, ReadConfigText(folder));
  DSV4_ASSIGN_OR_RETURN(const Json own_fields, ParseJson(own.text, own.path));
  DSV4_ASSIGN_OR_RETURN(Json fields, ParseJson(text.text, text.path));
  if (!own_fields.is_object()) return DataLoss(StrCat(own.path, ": not a JSON object"));
  for (const auto& [name, value] : own_fields.items()) {
    if (name.starts_with("dspark_") && !value.is_null()) fields[name] = value;
  }
  return ConfigText{.text = fields.dump(-1, ' ', false, Json::error_handler_t::replace),
                    .path = StrCat(own.path, " and ", text.path)};
}

void ReadTargets(ConfigReader& in, Config& c) {
  constexpr std::string_view kField = "dspark_target_layer_ids";
  const Json* list = in.Find({kField});
  if (list == nullptr) return in.Fail(StrCat(kField, " is missing"));
  if (!list->is_array() || list->empty() || static_cast<int64_t>(list->size()) > c.num_layers)
    return in.Fail(StrCat(kField, " is ", Shown(*list), "; accepted: a list of 1 to ", c.num_layers, " layers"));
  for (const Json& id : *list) c.draft.targets.push_back(in.IntOf(kField, id, 0, c.num_layers - 1));
  const auto falls = std::adjacent_find(c.draft.targets.begin(), c.draft.targets.end(), std::greater_equal<>());
  if (in.status().ok() && falls != c.draft.targets.end())
    in.Fail(StrCat(kField, " is ", Shown(*list), "; accepted: layers in rising order, each once"));
}

}  // namespace

Status ParseDraftConfig(const std::string& json_text, const std::string& what, DraftModule module, int64_t stages,
                        Config* config) {
  DSV4_ASSIGN_OR_RETURN(const Json root, ParseJson(json_text, what));
  ConfigReader in(root, what);
  Config c = *config;
  c.draft.module = module;
  c.draft.stages = stages;
  if (module == DraftModule::kMtp && stages != 1)
    return Unsupported(StrCat(what, ": the model has ", stages, " MTP blocks (mtp.0 .. mtp.", stages - 1,
                              "); accepted: 1; use --speculate lookup or off"));
  CheckDraftRatios(in, c);
  if (module == DraftModule::kDspark) {
    c.draft.block = in.Int({"dspark_block_size"}, 2, kMaxDraftBlock);
    c.draft.noise_token_id = static_cast<TokenId>(in.Int({"dspark_noise_token_id"}, 0, c.vocab_size - 1));
    c.draft.markov_rank = in.Int({"dspark_markov_rank"}, 1, 1 << 16);
    ReadTargets(in, c);
  }
  DSV4_RETURN_IF_ERROR(in.status());
  c.compress_ratios.resize(static_cast<size_t>(c.num_layers + stages), 0);
  *config = std::move(c);
  return {};
}

Result<std::shared_ptr<const TensorSource>> WithDraftFolder(const std::string& model_dir,
                                                            std::shared_ptr<const TensorSource> source,
                                                            DraftModule wanted) {
  if (wanted == DraftModule::kNone || !FindModule(*source).first.empty()) return source;
  std::array<std::string, 2> folders = {StrCat(model_dir, "/dspark"), StrCat(model_dir, "/mtp")};
  if (wanted == DraftModule::kMtp) std::swap(folders[0], folders[1]);
  for (const std::string& folder : folders) {
    std::error_code error;
    if (std::filesystem::is_directory(folder, error)) return source->With(folder);
  }
  return source;
}

Status LoadDraftConfig(const std::string& model_dir, const TensorSource& source, DraftModule wanted, Config* config) {
  if (wanted == DraftModule::kNone) return {};
  const FoundModule found = FindModule(source);
  DSV4_ASSIGN_OR_RETURN(const DraftModule module, ModuleOf(source, found, wanted));
  if (module == DraftModule::kNone) return {};
  DSV4_ASSIGN_OR_RETURN(const ConfigText fields, DraftConfigText(model_dir, found));
  DSV4_RETURN_IF_ERROR(ParseDraftConfig(fields.text, fields.path, module, found.stages, config));
  return FindOwnMatrices(source, config->draft);
}

}  // namespace dsv4::deepseek_v4
