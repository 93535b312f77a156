// KV caches of several sequences and the CacheView of a step over them, for tests of the ops that read or write them.
//   CacheFixture cache(TinyKvSpec({0, 4, 128}), {{.cached = 130, .tokens = 5}, {.cached = 0, .tokens = 1}});
//   cache.FillRandom(random);           // everything that the sequences hold before this step
//   op(..., cache.View(/*layer=*/1));
//   cache.Advance({1, 3});              // the next step: 1 and 3 more tokens
// All KV memory starts as 0xFF bytes, which are NaN in every format, so that a read of an unwritten slot becomes
// visible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "kv/layout.h"
#include "kv/sequence_cache.h"
#include "support/random.h"

namespace dsv4::test {

// Small dimensions with the structure of the released models.
inline KvSpec TinyKvSpec(std::vector<int64_t> compress_ratios, KvDtype kv = KvDtype::kFp8,
                         IndexDtype index = IndexDtype::kFp4) {
  return {.compress_ratios = std::move(compress_ratios),
          .window = 128,
          .head_dim = 96,
          .rope_dim = 16,
          .index_head_dim = 32,
          .kv_dtype = kv,
          .index_dtype = index};
}

// The dimensions of the released models.
inline KvSpec FullKvSpec(std::vector<int64_t> compress_ratios, KvDtype kv = KvDtype::kFp8,
                         IndexDtype index = IndexDtype::kFp4) {
  return {.compress_ratios = std::move(compress_ratios),
          .window = 128,
          .head_dim = 512,
          .rope_dim = 64,
          .index_head_dim = 128,
          .kv_dtype = kv,
          .index_dtype = index};
}

struct SequenceStep {
  int64_t cached = 0;  // tokens before this step
  int64_t tokens = 0;  // tokens in this step; 0 is allowed
};

class CacheFixture {
 public:
  CacheFixture(const KvSpec& spec, std::vector<SequenceStep> steps)
      : layout_(MakeKvLayout(spec)), memory_(std::make_unique<KvMemory>(layout_)), steps_(std::move(steps)) {
    for (size_t s = 0; s < steps_.size(); ++s) {
      auto cache = SequenceCache::Create(*memory_);
      DSV4_CHECK(cache.ok());
      caches_.push_back(std::move(cache).value());
      std::memset(caches_.back()->View(0, 0, 0).fixed, 0xFF, static_cast<size_t>(layout_.fixed_bytes));
      pages_poisoned_.push_back(0);
    }
    Rebuild();
  }
  CacheFixture(const CacheFixture&) = delete;
  CacheFixture& operator=(const CacheFixture&) = delete;

  const KvLayout& layout() const { return layout_; }
  const std::vector<SequenceView>& sequences() const { return sequences_; }
  const std::vector<int64_t>& positions() const { return positions_; }
  int64_t num_tokens() const { return static_cast<int64_t>(positions_.size()); }

  CacheView View(size_t layer) const {
    return {.layer = &layout_.layers[layer],
            .window = layout_.window,
            .sequences = sequences_.data(),
            .num_sequences = static_cast<int64_t>(sequences_.size()),
            .sequence_of = sequence_of_.data(),
            .positions = positions_.data(),
            .num_tokens = num_tokens()};
  }

  // Makes this step's tokens cached ones and begins the next step.
  void Advance(const std::vector<int64_t>& tokens) {
    DSV4_CHECK_EQ(tokens.size(), steps_.size());
    for (size_t s = 0; s < steps_.size(); ++s) {
      steps_[s].cached += steps_[s].tokens;
      steps_[s].tokens = tokens[s];
    }
    Rebuild();
  }

  // Fills, for every layer and sequence, the window rows and compressor states of the cached tokens, and every
  // compressed row and index key that a token of this step may see.
  void FillRandom(Random& random, float scale = 1) {
    for (const LayerLayout& layer : layout_.layers) {
      for (const SequenceView& seq : sequences_) {
        const RowArray ring{seq.fixed + layer.window_offset, layer.window_slots, layer.window_row};
        for (int64_t p = std::max<int64_t>(0, seq.start - layout_.window); p < seq.start; ++p) {
          ring.Write(p % layer.window_slots, random.Normals(layer.window_row.dim, scale).data());
        }
        for (const CompressorLayout* c : {&layer.main, &layer.index}) {
          if (c->ratio == 0) continue;
          const int64_t end = seq.start + seq.end - seq.begin;
          for (int64_t row = 0; row < end / c->ratio; ++row) {
            const RowSlot slot = EmittedRow(*c, seq, row);
            slot.rows.Write(slot.index, random.Normals(c->dim, scale).data());
          }
          const int64_t width = 2 * c->overlap * c->dim;
          for (int64_t p = std::max<int64_t>(0, seq.start - c->inputs()); p < seq.start; ++p) {
            const std::vector<float> state = random.Normals(width, scale);
            std::memcpy(StateRow(*c, seq, p), state.data(), state.size() * sizeof(float));
          }
        }
      }
    }
  }

 private:
  void Rebuild() {
    sequences_.clear();
    sequence_of_.clear();
    positions_.clear();
    for (size_t s = 0; s < steps_.size(); ++s) {
      const SequenceStep& step = steps_[s];
      DSV4_CHECK(caches_[s]->Reserve(step.cached + step.tokens).ok());
      const int64_t begin = num_tokens();
      sequences_.push_back(caches_[s]->View(step.cached, begin, begin + step.tokens));
      const int64_t num_pages = layout_.page_bytes == 0
                                    ? 0
                                    : (step.cached + step.tokens + layout_.page_tokens - 1) / layout_.page_tokens;
      for (; pages_poisoned_[s] < num_pages; ++pages_poisoned_[s]) {
        std::memset(sequences_.back().pages[pages_poisoned_[s]], 0xFF, static_cast<size_t>(layout_.page_bytes));
      }
      for (int64_t i = 0; i < step.tokens; ++i) {
        sequence_of_.push_back(static_cast<int32_t>(s));
        positions_.push_back(step.cached + i);
      }
    }
  }

  KvLayout layout_;
  std::unique_ptr<KvMemory> memory_;  // outlives the caches
  std::vector<SequenceStep> steps_;
  std::vector<std::unique_ptr<SequenceCache>> caches_;
  std::vector<int64_t> pages_poisoned_;
  std::vector<SequenceView> sequences_;
  std::vector<int32_t> sequence_of_;
  std::vector<int64_t> positions_;
};

}  // namespace dsv4::test
