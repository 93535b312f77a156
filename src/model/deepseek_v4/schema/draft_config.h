// The draft module of a checkpoint, and its fields in config.json.
#pragma once

#include <memory>
#include <string>

#include "dsv4/status.h"
#include "io/tensor_source.h"
#include "model/deepseek_v4/config/config.h"
#include "model/draft_module.h"

namespace dsv4::deepseek_v4 {

// Returns `source` with the tensors of a draft module in the folder `mtp` or `dspark` of model_dir. Returns `source`
// alone if `wanted` requests no module, or if `source` has `mtp.` tensors. If both folders exist, `wanted` selects one;
// kAny selects dspark. Errors: any error of opening the folder.
Result<std::shared_ptr<const TensorSource>> WithDraftFolder(const std::string& model_dir,
                                                            std::shared_ptr<const TensorSource> source,
                                                            DraftModule wanted);

// Fills config->draft and adds a layer of ratio 0 per stage, if `wanted` requests a module and `source` has it. Tensor
// names identify the module: MTP by mtp.0.e_proj.weight, DSpark by mtp.0.main_proj.weight. The numbers after `mtp.`
// give the stages. A module in a folder with a config.json has its fields there; model_dir's config.json has the
// others. The module's embedding table and output matrix are its own if they differ from the model's, which this
// function finds by comparing their bytes. kNone: does nothing. Errors: kNotFound (the requested module is not
// present), kDataLoss and kUnsupported (`mtp.` tensors of neither or both, fields of config.json).
Status LoadDraftConfig(const std::string& model_dir, const TensorSource& source, DraftModule wanted, Config* config);

// Reads the fields of `module` with `stages` stages from the text of config.json; `what` names it in errors.
Status ParseDraftConfig(const std::string& json_text, const std::string& what, DraftModule module, int64_t stages,
                        Config* config);

}  // namespace dsv4::deepseek_v4
