// Files of snapshots, and their images in host memory. docs/dev/formats.md describes the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/snapshot.h"
#include "kv/layout.h"

namespace dsv4 {

// The header of a file. After it come: fingerprint, tokens, note, the header's checksum; the fixed block, the pages,
// their checksums, and the checksum of these checksums.
struct SnapshotHead {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  int64_t num_tokens, fingerprint_bytes, note_bytes;
  int64_t fixed_bytes, page_bytes, num_pages;
  int64_t num_written;  // tokens that the rings have held: num_tokens, and later ones that were removed
  int64_t drafts_from;  // a draft module's rings have all positions from this one

  int64_t text_bytes() const {
    return fingerprint_bytes + num_tokens * static_cast<int64_t>(sizeof(TokenId)) + note_bytes;
  }
};
static_assert(sizeof(SnapshotHead) == 80);

class ImageImpl : public SnapshotImage {
 public:
  // `head_bytes`: a whole header with its checksum. The creator fills the body.
  ImageImpl(const SnapshotHead& head, std::string head_bytes, SnapshotInfo info)
      : head_(head),
        head_bytes_(std::move(head_bytes)),
        info_(std::move(info)),
        body_(std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(body_size()))) {
    info_.file_bytes = static_cast<int64_t>(head_bytes_.size()) + body_size() + (head_.num_pages + 2) * 4;
  }

  const SnapshotInfo& info() const override { return info_; }
  Status Write(const std::string& path) const override;
  Status CopyTo(std::span<std::byte> out) const override;

  int64_t num_pages() const { return head_.num_pages; }
  int64_t num_written() const { return head_.num_written; }
  int64_t drafts_from() const { return head_.drafts_from; }
  int64_t body_size() const { return head_.fixed_bytes + head_.num_pages * head_.page_bytes; }
  uint8_t* body() const { return body_.get(); }
  uint8_t* page(int64_t i) const { return body_.get() + head_.fixed_bytes + i * head_.page_bytes; }
  std::string_view fingerprint() const {
    return std::string_view(head_bytes_).substr(sizeof(SnapshotHead), static_cast<size_t>(head_.fingerprint_bytes));
  }

 private:
  const SnapshotHead head_;
  const std::string head_bytes_;  // with its checksum
  SnapshotInfo info_;
  const std::unique_ptr<uint8_t[]> body_;  // the fixed block, then the pages
};

// Returns an image with an empty body. Fills in the header's fields for its format and for these texts. Throws
// std::bad_alloc.
std::shared_ptr<ImageImpl> NewImage(SnapshotHead head, std::string_view fingerprint, std::vector<TokenId> tokens,
                                    std::string_view note);

// Checks everything before it uses anything. Errors as in Engine::ReadSnapshot.
Result<SnapshotInfo> ReadImageInfo(const std::string& path, const KvLayout& layout, const std::string& fingerprint,
                                   const ModelInfo& model);
Result<std::shared_ptr<const SnapshotImage>> ReadImage(const std::string& path, const KvLayout& layout,
                                                       const std::string& fingerprint, const ModelInfo& model);
// The same for the bytes of a file.
Result<std::shared_ptr<const SnapshotImage>> ReadImage(std::span<const std::byte> bytes, const KvLayout& layout,
                                                       const std::string& fingerprint, const ModelInfo& model);

}  // namespace dsv4
