// Every buffer of a step, named, with its shape. Sized once for the largest step; a step uses the first T rows.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "layers/attention.h"
#include "layers/moe.h"
#include "model/deepseek_v4/config/config.h"
#include "model/model.h"
#include "tensor/tensor.h"

namespace dsv4::deepseek_v4 {

// Rows that a draft module takes through its own projections at once, and of one of its passes.
inline constexpr int64_t kDraftRows = 512;

// Of a draft module; empty without one.
struct DraftBuffers {
  Room rounded;       // a linear's rounded input, of at most kDraftRows rows of the model
  Tensor positions;   // i64 [T]
  Tensor sequences;   // SequenceView [T]
  Tensor confidence;  // f32 [R]
  Tensor streams;     // f32 [min(T, kDraftRows), H, D]: MTP's input
  // DSpark:
  Tensor main_hidden;                    // f32 [T, targets * D]
  Tensor tokens, sequence_of, by_place;  // i32 [T]: of the blocks
  Tensor last;                           // i64 [T]: position of a block's last row
  Tensor hidden;                         // f32 [R, D]: what the blocks' rows are, place by place
  Tensor base;                           // f32 [R, V]: their logits
  Tensor markov;                         // f32 [R, rank]: of the token before
  Tensor joined;                         // f32 [R, D + rank]: both
};

class Activations : public StepMemory {
 public:
  // Bytes that Activations(config, max_tokens, max_rows) takes.
  static int64_t Bytes(const Config& config, int64_t max_tokens, int64_t max_rows);

  // For steps of up to max_tokens tokens with up to max_rows rows of logits, in the memory of `device` (which outlives
  // them) or of the host. Throws std::bad_alloc.
  Activations(const Config& config, int64_t max_tokens, int64_t max_rows, Device* device = nullptr);

  int64_t max_tokens() const override { return max_tokens_; }
  int64_t max_rows() const override { return max_rows_; }
  Tensor Logits(int64_t num_rows) const override { return logits.Head(num_rows); }
  Tensor Confidence(int64_t num_rows) const override {
    return draft.confidence ? draft.confidence.Head(num_rows) : Tensor{};
  }

  // Before a layer runs: gives moe its part of what every layer has.
  void UseLayer(int64_t layer);

  Tensor streams;           // f32 [T, H, D]
  Tensor x;                 // f32 [T, D]: a sublayer's input
  Tensor y;                 // f32 [T, D]: a sublayer's output
  Tensor post;              // f32 [T, H]
  Tensor comb;              // f32 [T, H, H]
  Tensor plain_cos_sin;     // f32 [T, Dr/2, 2]
  Tensor compress_cos_sin;  // f32 [T, Dr/2, 2]
  AttentionBuffers attention;
  MoeBuffers moe;
  DraftBuffers draft;
  Tensor expert_ids;   // i32 [L, T in fours, 1 + A]: moe's of every layer, kept until the pass ends; stages of
                       // a draft module have one more together
  Tensor out_streams;  // f32 [R, H, D]
  Tensor out;          // f32 [R, D]
  Room rounded_out;    // D columns, R rows
  Tensor logits;       // f32 [R, V]
  Tensor rank_logits;  // f32 [R, V/n]: of n ranks' cut output matrix, this one's columns; else empty

 private:
  struct Measure {};
  explicit Activations(Measure) {}
  // Calls place(tensor, dtype, shape) or place(room, bytes) for every buffer.
  template <typename Place>
  void ForEachOfDraft(const Config& config, int64_t max_tokens, int64_t max_rows, Place& place);
  template <typename Place>
  void ForEach(const Config& config, int64_t max_tokens, int64_t max_rows, Place& place);

  int64_t max_tokens_ = 0, max_rows_ = 0;
  std::unique_ptr<Device> host_;  // when no device was given
  DeviceBuffer memory_;
};

}  // namespace dsv4::deepseek_v4
