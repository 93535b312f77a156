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
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// What a saved snapshot says about itself.
struct SnapshotInfo {
  std::vector<TokenId> tokens;
  std::string note;
  int64_t file_bytes = 0;
};

// A snapshot as the bytes of its file, in the host's memory: what can be written and read while the engine works.
// Immutable; any thread.
class SnapshotImage {
 public:
  virtual ~SnapshotImage() = default;

  virtual const SnapshotInfo& info() const = 0;

  // To a file that Engine::LoadSnapshot reads: with checksums, in a temporary file first, which is renamed when it is
  // on the disk, so that `path` never holds half of it. Errors: kInvalidArgument, kNotFound, kResourceExhausted.
  virtual Status Write(const std::string& path) const = 0;
};

// Immutable. May outlive its session; also its engine, though nothing can then go on from it.
class KvSnapshot {
 public:
  virtual ~KvSnapshot() = default;

  // Its ids, in order: a copy, as the snapshots of one timeline store what they have in common once.
  virtual std::vector<TokenId> tokens() const = 0;
  virtual int64_t num_tokens() const = 0;

  // Everything that it refers to, and what would come free with it now.
  virtual int64_t memory_bytes() const = 0;
  virtual int64_t own_bytes() const = 0;

  // A copy in the form of its file. `note` is the caller's. Errors: kResourceExhausted; kInvalidArgument, when its
  // engine is gone and Engine::SnapshotFingerprint was never asked for.
  virtual Result<std::shared_ptr<const SnapshotImage>> MakeImage(std::string_view note = {}) const = 0;

  // MakeImage and Write.
  Status Save(const std::string& path, std::string_view note = {}) const {
    DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const SnapshotImage> image, MakeImage(note));
    return image->Write(path);
  }
};

}  // namespace dsv4
