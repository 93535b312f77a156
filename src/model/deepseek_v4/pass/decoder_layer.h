// One layer of a pass: what the model's forward pass and its draft module share.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/exec_context.h"
#include "kv/layout.h"
#include "layers/activation.h"
#include "layers/attention.h"
#include "layers/plan.h"
#include "model/deepseek_v4/pass/activations.h"
#include "model/deepseek_v4/pass/forward.h"

namespace dsv4::deepseek_v4 {

// A pass's view of the buffers: the first T rows. A rank may have the streams and what follows from them of its own
// rows only.
struct Frame {
  Tensor streams, x, y, post, comb;
  RankShare own;            // rows
  Tensor main_hidden = {};  // f32 [T, targets * D]: of DSpark, what its target layers hand over; else empty

  Tensor Own(const Tensor& rows) const { return rows.Rows(own.begin, own.end - own.begin); }
};
Frame FrameOf(const Tensor& streams, Activations& a);

// The rows of a pass, as a layer sees them.
struct LayerRows {
  Tensor tokens;    // i32 [T]
  CacheView cache;  // of any layer
  RopeAnglesView rope;
  Appends appends = Appends::kBefore;  // to the layer's cache
};

// Writes the output of the sublayer before, if it is pending, into the streams; reads them into f.x through the next
// site's mixes; norms f.x. Where the plan wants blocks besides, they lie in `room`, those of own rows alone. `site`
// counts the pass's exchanges.
Activation NextSite(const ExecContext& ctx, const Config& c, const HcWeights& w, const Tensor& norm,
                    const Activation& pending, const Frame& f, Form form, const Room& room, int64_t* site);

// Behind those of layers, 2 l and 2 l + 1 (ExchangeName).
inline int64_t PlaceOfLogits(const Config& c) { return 2 * (c.num_layers + c.draft.stages); }

// The streams after layer `l`, if it is one of DSpark's targets, into f.main_hidden.
void KeepMean(const ExecContext& ctx, const Config& c, int64_t l, const Frame& f);

// `pending`: the output of the layer before, or none. Returns this layer's own, for the next one.
Activation DecoderLayer(const ExecContext& ctx, const Model& model, int64_t l, const LayerPlan& plan,
                        const LayerRows& rows, const Frame& f, const Activation& pending, int64_t* site,
                        Activations& a);

// The head's mixes, the model's or a draft module's: out f32 [R, D] of streams f32 [R, H, D].
void ReadStreams(const ExecContext& ctx, const Model& model, const HcHeadWeights& w, const Tensor& streams,
                 const Tensor& out);

// logits f32 [R, V] of rows that the head's mixes have read, x f32 [R, D]; may be a.out. `head`: the model's output
// matrix, or a draft module's.
void LogitsOf(const ExecContext& ctx, const Model& model, const Tensor& x, const Tensor& norm, const QuantTensor& head,
              const Tensor& logits, int64_t* site, Activations& a);

AttentionSettings SettingsOf(const Config& c, const NumericsModes& modes);

}  // namespace dsv4::deepseek_v4
