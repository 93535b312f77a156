// Draft modules (docs/dev/model.md): what they keep of every step of the model, and their own passes.
#pragma once

#include <cstdint>

#include "device/exec_context.h"
#include "model/deepseek_v4/pass/activations.h"
#include "model/deepseek_v4/pass/decoder_layer.h"
#include "model/deepseek_v4/pass/forward.h"
#include "model/model.h"

namespace dsv4::deepseek_v4 {

// At the end of a step of the model, whose streams are f.streams (scratch from here on): writes the rows of the
// module's rings for the step's positions (MTP: for the positions before). They are right where the step's tokens turn
// out to be; the step that has a position again writes its rows again, before anything reads them.
void KeepDraftRows(const ExecContext& ctx, const Model& model, const StepView& step, const Frame& f, Activations& a);

// As LoadedModel::Draft.
void Draft(const ExecContext& ctx, const Model& model, const StepView& step, int64_t place, Activations& a,
           const Tensor& logits, const Tensor& confidence);

}  // namespace dsv4::deepseek_v4
