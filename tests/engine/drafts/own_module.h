// The bundled model with one of its draft modules, which are sometimes right.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/drafts/drafts_fixture.h"

namespace dsv4::test {

class OwnModule {
 public:
  OwnModule(Speculate module, const char* device, int num_threads)
      : engine_(LoadOrFail({.model_dir = DSV4_SOURCE_DIR "/models/nano",
                            .device = device,
                            .num_threads = num_threads,
                            .drafts = {.speculate = module, .threshold = 0}})) {
    if (engine_ == nullptr) return;
    decode_ = std::make_unique<DraftedDecode>(*engine_);
    drafter_ = std::move(decode_->engine().drafting().drafter);
  }
  explicit operator bool() const { return drafter_ != nullptr; }
  DraftCounts counts() const { return engine_->draft_counts(); }

  // With drafts of up to `most` tokens, all of which are verified; 0: without drafts.
  std::vector<DraftOutcome> Run(const std::vector<DraftWanted>& wanted, int64_t most) {
    std::vector<DraftOutcome> out = decode_->Run(wanted, most > 0 ? std::move(drafter_) : nullptr, most);
    if (most > 0) drafter_ = std::move(decode_->engine().drafting().drafter);
    return out;
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DraftedDecode> decode_;
  std::unique_ptr<Drafter> drafter_;
};

}  // namespace dsv4::test
