// Which draft module a checkpoint has, and what config.json says about it.
#pragma once

#include <memory>
#include <string>

#include "dsv4/status.h"
#include "io/tensor_source.h"
#include "model/deepseek_v4/config/config.h"
#include "model/draft_module.h"

namespace dsv4::deepseek_v4 {

// `source` and the tensors of a draft module beside the checkpoint, in the folder `mtp` or `dspark` of model_dir: where
// `wanted` asks for a module and `source` has no `mtp.` tensors. Of both folders the one that is asked for, with kAny
// dspark. Errors: those of opening the folder.
Result<std::shared_ptr<const TensorSource>> WithDraftFolder(const std::string& model_dir,
                                                            std::shared_ptr<const TensorSource> source,
                                                            DraftModule wanted);

// Fills config->draft, and a layer of ratio 0 for each stage, when `wanted` asks for a module and `source` has it: told
// by names, MTP by mtp.0.e_proj.weight, DSpark by mtp.0.main_proj.weight, stages by the numbers behind `mtp.`. With
// kNone nothing is looked at. Errors: kNotFound (the module that is asked for is not there), kDataLoss and kUnsupported
// (`mtp.` tensors of neither or both, fields of config.json).
Status LoadDraftConfig(const std::string& model_dir, const TensorSource& source, DraftModule wanted, Config* config);

// The fields of `module` with so many stages, from the text of config.json; `what` names it in errors.
Status ParseDraftConfig(const std::string& json_text, const std::string& what, DraftModule module, int64_t stages,
                        Config* config);

}  // namespace dsv4::deepseek_v4
