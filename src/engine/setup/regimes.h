// The regime of a step's rows, and which rows share a pass (docs/dev/decisions/0008-regimes.md).
#pragma once

#include <cstdint>

#include "device/device_list.h"
#include "device/exec_context.h"
#include "dsv4/engine.h"

namespace dsv4 {

// A request that computes up to this many tokens has its prompt's rows treated as decode rows: one pass.
inline constexpr int64_t kShortPrompt = kMaxDecodeRows;
// up to this length an input of a prompt's matrix products is two numbers (docs/dev/numerics.md, 3.1)
inline constexpr int64_t kMediumPrompt = 1024;

// For a prompt of which a request computes `tokens` tokens in all.
constexpr Regime RegimeOfPrompt(int64_t tokens) {
  return tokens <= kShortPrompt ? Regime::kDecode : tokens <= kMediumPrompt ? Regime::kPrompt : Regime::kLongPrompt;
}

// The only class of the engine that depends on numbers of rows. One CPU has one regime. Ranks on CPUs divide prompts by
// tokens, so they distinguish prompts from decode rows (layers/plan.h). So does one rank that must have the same bits.
class Regimes {
 public:
  explicit Regimes(const EngineOptions& o)
      : one_((NamesOneCpu(o.device) && !o.ranks.invariant) || o.batch_invariant),
        prompt_inputs_(o.prompt_inputs),
        max_decode_rows_(o.max_decode_rows) {}

  // The regime of an item's rows; `prompt_tokens` as in StepItem.
  Regime Of(int64_t prompt_tokens) const {
    if (one_ || prompt_tokens == 0) return Regime::kDecode;
    switch (prompt_inputs_) {
      case PromptInputs::kOne:
        return Regime::kLongPrompt;
      case PromptInputs::kTwo:
        return Regime::kPrompt;
      case PromptInputs::kByLength:
        break;
    }
    return RegimeOfPrompt(prompt_tokens);
  }

  // The largest number of rows of a pass of that regime; `chunk` is the limit by memory and time.
  int64_t MaxRows(Regime regime, int64_t chunk) const {
    return one_ || regime != Regime::kDecode ? chunk : max_decode_rows_;
  }

  // The kernels of a pass. Decode kernels are slow above kMaxDecodeRows, and only options allow more rows.
  Regime OfPass(Regime rows, int64_t num_rows) const {
    return !one_ && rows == Regime::kDecode && num_rows > kMaxDecodeRows ? Regime::kPrompt : rows;
  }

  // Whether Decode's loop on the device accepts this many sequences: its steps are one pass each.
  bool DecodeTogether(int64_t sequences) const { return one_ || sequences <= max_decode_rows_; }

 private:
  bool one_;  // all rows are kDecode, in passes of any size
  PromptInputs prompt_inputs_;
  int64_t max_decode_rows_;
};

}  // namespace dsv4
