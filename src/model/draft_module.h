// The draft modules that checkpoints bring along for speculative decoding.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsv4 {

enum class DraftModule : uint8_t {
  kNone,
  kMtp,     // one block that predicts the token after the next; more by feeding it its own output
  kDspark,  // blocks that predict B tokens at once, and a chain over them
  kAny,     // asked for: the one that is there, or none
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

// What the engine needs to know of a draft module that is bound.
struct DraftFacts {
  DraftModule module = DraftModule::kNone;
  int64_t most = 0;            // drafts of a sequence in a step
  int64_t rows = 1;            // of a sequence in a pass of LoadedModel::Draft
  int64_t usual = 0;           // drafts, where nobody asks for a number
  bool makes_at_once = false;  // a pass makes all of a sequence's drafts
  bool says_how_sure = false;  // LoadedModel::Draft gives a confidence
};

}  // namespace dsv4
