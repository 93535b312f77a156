// Attention of the three layer kinds (docs/dev/model.md).
#pragma once

#include <vector>

#include "device/exec_context.h"
#include "dsv4/types.h"
#include "kv/layout.h"
#include "layers/activation.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

struct AttentionPlan;  // plan.h

// coff = 2 for ratio 4 (overlapping windows), 1 for ratio 128. d = Dh for the main compressor, Di in the indexer.
struct CompressorWeights {
  QuantTensor kv_proj;    // [coff*d, D]   official: wkv
  QuantTensor gate_proj;  // [coff*d, D]   official: wgate
  Tensor slot_bias;       // f32 [m, coff*d]   official: ape
  Tensor norm;            // f32 [d]
};

struct IndexerWeights {
  QuantTensor q_b;           // [Ni*Di, Rq]
  QuantTensor weights_proj;  // [Ni, D]
  CompressorWeights compressor;
};

// What belongs to heads.
struct HeadWeights {
  QuantTensor q_b;  // [N*Dh, Rq]
  Tensor sink;      // f32 [N]
  QuantTensor o_a;  // [G*Ro, N*Dh/G]
  QuantTensor o_b;  // [D, G*Ro]
};

struct AttentionWeights {
  QuantTensor q_a;               // [Rq, D]
  Tensor q_a_norm;               // f32 [Rq]
  QuantTensor q_b;               // [N*Dh, Rq]
  QuantTensor kv_proj;           // [Dh, D]
  Tensor kv_norm;                // f32 [Dh]
  Tensor sink;                   // f32 [N]
  QuantTensor o_a;               // [G*Ro, N*Dh/G]: rows g*Ro .. (g+1)*Ro-1 belong to group g
  QuantTensor o_b;               // [D, G*Ro]
  CompressorWeights compressor;  // empty when the ratio is 0
  IndexerWeights indexer;        // CSA layers only
  HeadWeights whole;             // of one of several ranks, whose heads are above: all heads, for prompts; else empty
  // Of a rank whose heads come in slices that are summed one by one (AttentionPlan::sliced): each, of which the first
  // is above, too; else empty.
  std::vector<HeadWeights> slices;
};

// What the weights do not say.
struct AttentionSettings {
  int64_t num_heads = 0;    // N
  int64_t head_dim = 0;     // Dh
  int64_t o_groups = 0;     // G
  int64_t index_heads = 0;  // Ni
  int64_t index_head_dim = 0;
  float norm_eps = 0;
  ActivationDtype activation = ActivationDtype::kNative;
  IndexDtype index_dtype = IndexDtype::kFp4;
};

// RoPE of one layer kind, for the tokens of a step.
struct RopeAnglesView {
  Tensor frequencies;  // f32 [Dr/2]
  Tensor cos_sin;      // f32 [T, Dr/2, 2]
};

// Of a rank that has all heads: what it takes for its own tokens of a prompt. num_cuts: parts that heads are cut in.
AttentionWeights WithAllHeads(const AttentionWeights& w);
AttentionSettings WithAllHeads(const AttentionSettings& settings, int num_cuts);

// Intermediates, by their stable names. Every buffer holds T rows; rooms hold them in any of a plan's forms.
struct AttentionBuffers {
  Room rounded;                      // a linear's rounded input, of D, Rq or G*Ro columns; or x as blocks
  Tensor q_lora;                     // f32 [T, Rq]
  Room q;                            // N*Dh columns
  Tensor kv;                         // f32 [T, Dh]
  Room heads;                        // N*Dh columns: what the heads read from the cache
  Room o_lora;                       // G*Ro columns
  Tensor values, gates;              // f32 [T, 2*Dh]: compressor projections
  Tensor index_values, index_gates;  // f32 [T, 2*Di]: the index compressor's
  Tensor index_q;                    // f32 [T, Ni*Di]
  Tensor index_weights;              // f32 [T, Ni]
  Tensor topk_idxs;                  // i32 [T, K]
  Tensor sums;                       // f32 [levels, T, D]: of slices (slices.h); else empty
};

// When a step's rows go into the cache.
enum class Appends : uint8_t {
  kBefore,  // attention reads them, in the launch that makes them, unless a plan is by tokens: where no sequence has
            // more tokens than one and those that rings have slots to spare for
  kAfter,
  kNever,  // does not append. For sliding layers, in decode steps with several tokens per sequence: cache.positions
           // gives the last visible row of each token, `rope` its own position
};

// y [T, D] = attention of x [T, D] (normalised input). Every choice of kernels and forms is the plan's. Where that is
// by tokens, x and y have the rank's own rows (RowsOfRank), x's blocks these alone; what becomes keys is gathered, from
// the pass's exchange `site` on, and every rank appends all rows.
void Attention(const ExecContext& ctx, const AttentionPlan& plan, const AttentionWeights& w,
               const AttentionSettings& settings, const RopeAnglesView& rope, const CacheView& cache,
               const Activation& x, AttentionBuffers& buffers, const Tensor& y, int64_t* site, Appends appends);

// The two halves of writing rows to the cache of a layer that does not compress, without attending: what x [T, D] is as
// key and value, kv f32 [T, Dh]; and its norm, RoPE and rounding (in place), and its place in the window's ring.
void KeyRows(const ExecContext& ctx, const AttentionPlan& plan, const AttentionWeights& w,
             const AttentionSettings& settings, const Activation& x, const AttentionBuffers& buffers, const Tensor& kv);
void AppendRows(const ExecContext& ctx, const AttentionWeights& w, const AttentionSettings& settings,
                const RopeAnglesView& rope, const CacheView& cache, const Tensor& kv);

}  // namespace dsv4
