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

}  // namespace dsv4
