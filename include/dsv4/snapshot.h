// KvSnapshot: the KV state of a session at one point of its timeline, from which any number of sessions can go on.
//
//   auto cut = (*session)->Snapshot();
//   auto branch = engine->NewSession(**cut);
//   (*cut)->Save("conversation.dsv4kv");
//
// The compressed rows of whole pages (256 tokens) are shared by all who hold them; window rings, compressor states and
// the page that was being filled are the snapshot's own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// Immutable. May outlive its session; also its engine, though nothing can then go on from it.
class KvSnapshot {
 public:
  virtual ~KvSnapshot() = default;

  virtual const std::vector<TokenId>& tokens() const = 0;

  // Everything that it refers to, and what would come free with it now.
  virtual int64_t memory_bytes() const = 0;
  virtual int64_t own_bytes() const = 0;

  // Writes everything to a file that Engine::LoadSnapshot reads: with checksums, in a temporary file first, so that
  // `path` never holds half of it. `note` is the caller's. Errors: kInvalidArgument, kNotFound, kResourceExhausted.
  virtual Status Save(const std::string& path, std::string_view note = {}) const = 0;
};

// What a saved snapshot says about itself.
struct SnapshotInfo {
  std::vector<TokenId> tokens;
  std::string note;
  int64_t file_bytes = 0;
};

}  // namespace dsv4
