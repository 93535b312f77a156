// The draft modules of checkpoints, for speculative decoding.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsv4 {

enum class DraftModule : uint8_t {
  kNone,
  kMtp,     // one block that predicts the token after the next; further tokens by reading its own output
  kDspark,  // blocks that predict B tokens at once, and a chain over them
  kAny,     // as a request: the module of the checkpoint, or none
};

constexpr std::string_view NameOf(DraftModule module) {
  switch (module) {
    case DraftModule::kNone:
      return "none";
    case DraftModule::kMtp:
      return "MTP";
    case DraftModule::kDspark:
      return "DSpark";
    case DraftModule::kAny:
      return "any";
  }
  return "?";
}

// The properties of a bound draft module that the engine uses.
struct DraftFacts {
  DraftModule module = DraftModule::kNone;
  int64_t most = 0;            // most draft tokens of a sequence in a step
  int64_t rows = 1;            // rows of a sequence in a pass of LoadedModel::Draft
  int64_t usual = 0;           // default number of draft tokens
  bool makes_at_once = false;  // one pass makes all of a sequence's drafts
  bool says_how_sure = false;  // LoadedModel::Draft gives a confidence
};

}  // namespace dsv4
