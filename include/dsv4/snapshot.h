// KvSnapshot: the KV state of a session at one point of its timeline. Any number of sessions can continue from it.
//
//   auto snapshot = (*session)->Snapshot();
//   auto branch = engine->NewSession(**snapshot);
//   (*snapshot)->Save("conversation.dsv4kv");
//
// Sessions and snapshots share the compressed rows of complete pages (256 tokens). A snapshot has its own copy of the
// window rings, the compressor states and the incomplete page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/export.h"
#include "dsv4/status.h"
#include "dsv4/types.h"

namespace dsv4 {

// Header of a snapshot file.
struct SnapshotInfo {
  std::vector<TokenId> tokens;
  std::string note;  // of KvSnapshot::MakeImage
  int64_t file_bytes = 0;
};

// The contents of a snapshot file in host memory. It can be written and read while the engine works. Immutable and
// thread-safe.
class DSV4_API SnapshotImage {
 public:
  virtual ~SnapshotImage() = default;

  virtual const SnapshotInfo& info() const = 0;

  // Writes the file that Engine::LoadSnapshot reads, with checksums. Writes a temporary file, syncs it to the disk and
  // renames it, so that `path` never contains half a snapshot. Errors: kInvalidArgument, kNotFound, kResourceExhausted.
  virtual Status Write(const std::string& path) const = 0;

  // Writes the same bytes to `out`, for Engine::ReadSnapshot. Error: kInvalidArgument (`out` is not info().file_bytes
  // long).
  virtual Status CopyTo(std::span<std::byte> out) const {
    (void)out;
    return Unsupported("this image has no bytes");
  }
  Result<std::vector<std::byte>> bytes() const {
    std::vector<std::byte> out(static_cast<size_t>(info().file_bytes));
    DSV4_RETURN_IF_ERROR(CopyTo(out));
    return out;
  }
};

// Immutable. May outlive its session and its engine. After its engine is destroyed, no session can continue from it.
class DSV4_API KvSnapshot {
 public:
  virtual ~KvSnapshot() = default;

  // Returns a copy of the token ids, in order. (Snapshots of one timeline share the storage of common tokens.)
  virtual std::vector<TokenId> tokens() const = 0;
  virtual int64_t num_tokens() const = 0;

  // Returns the bytes of KV memory that the snapshot refers to; own_bytes() returns the bytes that destroying it would
  // free now.
  virtual int64_t memory_bytes() const = 0;
  virtual int64_t own_bytes() const = 0;

  // Returns a copy in the format of its file. `note` is any text of the caller. Errors: kResourceExhausted;
  // kInvalidArgument if the engine is destroyed and Engine::SnapshotFingerprint was never called.
  virtual Result<std::shared_ptr<const SnapshotImage>> MakeImage(std::string_view note = {}) const = 0;

  // Calls MakeImage and SnapshotImage::Write.
  Status Save(const std::string& path, std::string_view note = {}) const {
    DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const SnapshotImage> image, MakeImage(note));
    return image->Write(path);
  }
};

}  // namespace dsv4
