#include "model/deepseek_v4/pass/activations.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kv/layer_kind.h"
#include "layers/slices.h"
#include "ops/rank_rows.h"
#include "tensor/quant_tensor.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr int64_t kAlignment = 256;

int64_t Aligned(int64_t bytes) { return CeilDiv(bytes, kAlignment) * kAlignment; }

// Counts what the buffers take.
struct Measured {
  int64_t bytes = 0;
  void operator()(Tensor&, DType dtype, const Shape& shape) { bytes += Aligned(shape.num_elements() * SizeOf(dtype)); }
  void operator()(Room&, int64_t room_bytes) { bytes += Aligned(room_bytes); }
};

// Lays them one behind the other.
struct Placed {
  uint8_t* next;
  void operator()(Tensor& tensor, DType dtype, const Shape& shape) {
    tensor = {next, dtype, shape};
    next += Aligned(tensor.num_bytes());
  }
  void operator()(Room& room, int64_t bytes) {
    room = {next, bytes};
    next += Aligned(bytes);
  }
};

}  // namespace

template <typename Place>
void Activations::ForEachOfDraft(const Config& c, int64_t t, int64_t r, Place& place) {
  const int64_t d = c.hidden_size, rows = std::min(t, kDraftRows), rank = c.draft.markov_rank;
  const auto targets = static_cast<int64_t>(c.draft.targets.size());
  const DType f32 = DType::kF32, i32 = DType::kI32, i64 = DType::kI64;
  place(draft.positions, i64, Shape{t});
  place(draft.confidence, f32, Shape{r});
  place(draft.sequences, DType::kU8, Shape{t * static_cast<int64_t>(sizeof(SequenceView))});
  if (c.draft.is_mtp()) {
    place(draft.rounded, FloatBytes(rows * c.hc_mult, d));
    place(draft.streams, f32, Shape{rows, c.hc_mult, d});
    return;
  }
  place(draft.rounded, FloatBytes(rows, std::max(targets * d, d + rank)));
  place(draft.main_hidden, f32, Shape{t, targets * d});
  for (Tensor* ids : {&draft.tokens, &draft.sequence_of, &draft.by_place}) place(*ids, i32, Shape{t});
  place(draft.last, i64, Shape{t});
  place(draft.hidden, f32, Shape{r, d});
  place(draft.base, f32, Shape{r, c.vocab_size});
  place(draft.markov, f32, Shape{r, rank});
  place(draft.joined, f32, Shape{r, d + rank});
}

template <typename Place>
void Activations::ForEach(const Config& c, int64_t t, int64_t r, Place& place) {
  const int64_t d = c.hidden_size, h = c.hc_mult, heads_width = c.num_heads * c.head_dim;
  const int64_t o_width = c.o_groups * c.o_lora_rank, a = c.experts_per_token, f = c.moe_intermediate;
  const DType f32 = DType::kF32;
  // Of n ranks each has a part of the heads of all tokens, or all heads of about 1/n of the tokens.
  const int64_t own = LongestShare(t, c.num_ranks, kShareRows) * c.num_cuts();
  const auto floats = [&](int64_t width) { return std::max(FloatBytes(t, width), FloatBytes(own, width)); };
  const auto blocks = [&](int64_t width) {
    return std::max(ActivationBlocksBytes(t, width), ActivationBlocksBytes(own, width));
  };
  place(streams, f32, Shape{t, h, d});
  place(x, f32, Shape{t, d});
  place(y, f32, Shape{t, d});
  place(post, f32, Shape{t, h});
  place(comb, f32, Shape{t, h, h});
  place(plain_cos_sin, f32, Shape{t, c.rope_dim / 2, 2});
  place(compress_cos_sin, f32, Shape{t, c.rope_dim / 2, 2});

  place(attention.rounded,
        std::max({FloatBytes(t, std::max(d, c.q_lora_rank)), floats(o_width), ActivationBlocksBytes(t, d)}));
  place(attention.q_lora, f32, Shape{t, c.q_lora_rank});
  // The queries are used up when o_lora is written, both when the experts' hidden values are; the index queries when
  // the heads are, those when the experts' outputs are, which the next layer's first op has read before it writes any.
  const Shape hidden{t * (1 + a), 2 * f}, outputs{t * (1 + a), d};
  const Shape index_q{t, c.index_heads * c.index_head_dim};
  const int64_t o_lora = std::max(floats(o_width), blocks(o_width));
  const auto bytes = [](const Shape& shape) { return shape.num_elements() * SizeOf(DType::kF32); };
  place(attention.q, std::max({floats(heads_width), QueryBytes(t, heads_width), QueryBytes(own, heads_width), o_lora,
                               bytes(hidden)}));
  attention.o_lora = {attention.q.data, o_lora};
  moe.hidden = {attention.q.data, f32, hidden};
  place(attention.kv, f32, Shape{t, c.head_dim});
  place(attention.heads, std::max({floats(heads_width), blocks(heads_width), bytes(index_q), bytes(outputs)}));
  attention.index_q = {attention.heads.data, f32, index_q};
  moe.outputs = {attention.heads.data, f32, outputs};
  place(attention.values, f32, Shape{t, MaxOverlap() * c.head_dim});
  place(attention.gates, f32, Shape{t, MaxOverlap() * c.head_dim});
  place(attention.index_values, f32, Shape{t, MaxOverlap() * c.index_head_dim});
  place(attention.index_gates, f32, Shape{t, MaxOverlap() * c.index_head_dim});
  place(attention.index_weights, f32, Shape{t, c.index_heads});
  place(attention.topk_idxs, DType::kI32, Shape{t, c.index_topk});

  place(moe.rounded,
        std::max(FloatBytes(t, std::max(d, f)), ActivationBlocksBytes(t, d) + ActivationBlocksBytes(t, f)));
  place(moe.router_logits, f32, Shape{t, c.num_experts});
  // Every layer's begin 16-byte aligned, as ranks' exchanges take them.
  place(expert_ids, DType::kI32, Shape{c.num_layers + (c.draft.stages > 0 ? 1 : 0), CeilDiv(t, 4) * 4, 1 + a});
  place(moe.routing_weights, f32, Shape{t, 1 + a});
  place(moe.shared_gate, f32, Shape{t, f});
  place(moe.shared_up, f32, Shape{t, f});
  if (const int levels = SliceLevels(c.num_slices()); levels > 0) {
    place(attention.sums, f32, Shape{levels, t, d});
    moe.sums = attention.sums;
  }

  if (c.draft.stages > 0) ForEachOfDraft(c, t, r, place);
  place(out_streams, f32, Shape{r, h, d});
  place(out, f32, Shape{r, d});
  place(rounded_out, FloatBytes(r, d));
  place(logits, f32, Shape{r, c.vocab_size});
  if (c.num_ranks > 1 && c.fixed_cuts == 0) place(rank_logits, f32, Shape{r, c.vocab_size / c.num_ranks});
}

int64_t Activations::Bytes(const Config& config, int64_t max_tokens, int64_t max_rows) {
  Measured measured;
  Activations(Measure{}).ForEach(config, max_tokens, max_rows, measured);
  return measured.bytes + kAlignment;
}

Activations::Activations(const Config& config, int64_t max_tokens, int64_t max_rows, Device* device)
    : max_tokens_(max_tokens), max_rows_(max_rows) {
  if (device == nullptr) {
    host_ = std::move(Device::Open("cpu")).value();
    device = host_.get();
  }
  if (!memory_.Allocate(*device, Bytes(config, max_tokens, max_rows))) throw std::bad_alloc();
  Placed placed{memory_.data()};
  ForEach(config, max_tokens, max_rows, placed);
  UseLayer(0);
}

void Activations::UseLayer(int64_t layer) {
  layer = std::min(layer, expert_ids.dim(0) - 1);
  const int64_t rows = expert_ids.dim(1), slots = expert_ids.dim(2);
  moe.expert_ids = {expert_ids.i32() + layer * rows * slots, DType::kI32, {rows, slots}};
}

}  // namespace dsv4::deepseek_v4
