// What a row of a step is, and with which others it shares a pass (docs/dev/decisions/0008-regimes.md).
#pragma once

#include <cstdint>

#include "device/device_list.h"
#include "device/exec_context.h"
#include "dsv4/engine.h"

namespace dsv4 {

// Tokens that a request computes, up to which its prompt's rows are treated as decode rows: one pass of them.
inline constexpr int64_t kShortPrompt = kMaxDecodeRows;
// up to here an input of its matrix products is two numbers (docs/dev/numerics.md, 3.1)
inline constexpr int64_t kMediumPrompt = 1024;

// Of a prompt of which a request computes so many tokens in all.
constexpr Regime RegimeOfPrompt(int64_t tokens) {
  return tokens <= kShortPrompt ? Regime::kDecode : tokens <= kMediumPrompt ? Regime::kPrompt : Regime::kLongPrompt;
}

// The engine's one place that knows numbers of rows. One CPU has one regime; ranks on CPUs cut prompts by tokens, and
// so tell them from decode rows (layers/plan.h), as one does that is to have their bits.
class Regimes {
 public:
  explicit Regimes(const EngineOptions& o)
      : one_((NamesOneCpu(o.device) && !o.ranks.invariant) || o.batch_invariant),
        prompt_inputs_(o.prompt_inputs),
        max_decode_rows_(o.max_decode_rows) {}

  // Of an item's rows; `prompt_tokens` as in StepItem.
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

  // Rows of a pass of that regime; `chunk` is what memory and time allow.
  int64_t MaxRows(Regime regime, int64_t chunk) const {
    return one_ || regime != Regime::kDecode ? chunk : max_decode_rows_;
  }

  // The kernels of a pass. Those for decode rows are slow beyond kMaxDecodeRows, which only options allow.
  Regime OfPass(Regime rows, int64_t num_rows) const {
    return !one_ && rows == Regime::kDecode && num_rows > kMaxDecodeRows ? Regime::kPrompt : rows;
  }

  // Whether Decode's loop on the device takes so many sequences: its steps are one pass each.
  bool DecodeTogether(int64_t sequences) const { return one_ || sequences <= max_decode_rows_; }

 private:
  bool one_;  // everything is kDecode, in passes of any size
  PromptInputs prompt_inputs_;
  int64_t max_decode_rows_;
};

}  // namespace dsv4
