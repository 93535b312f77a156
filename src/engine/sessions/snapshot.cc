#include "engine/sessions/snapshot.h"

#include <new>

#include "engine/sessions/snapshot_file.h"

namespace dsv4 {

Result<std::shared_ptr<const KvSnapshot>> SessionImpl::Snapshot() {
  if (tokens_.empty()) return InvalidArgument("a session without tokens has no snapshot; append tokens first");
  try {
    kept_ = KeptTokens::Of(kept_, num_kept_, tokens_);
    num_kept_ = tokens_.size();
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<RankCaches> copy, caches_->Fork(static_cast<int64_t>(tokens_.size())));
    return std::shared_ptr<const KvSnapshot>(
        std::make_shared<SnapshotImpl>(memory_, std::move(copy), kept_, written_, drafts_from_));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a snapshot");
  }
}

Result<std::shared_ptr<const SnapshotImage>> SnapshotImpl::MakeImage(std::string_view note) const {
  if (memory_->fingerprint.empty()) {
    if (memory_->owner == nullptr)
      return InvalidArgument("the snapshot's engine is destroyed, and its fingerprint was not computed before");
    DSV4_RETURN_IF_ERROR(memory_->owner->SnapshotFingerprint().status());
  }
  const KvLayout& layout = memory_->layout();
  Device& device = memory_->device();
  const SequenceCache& cache = caches_->of(0);  // the rows of all ranks are equal
  const SnapshotHead head{.fixed_bytes = layout.fixed_bytes,
                          .page_bytes = layout.page_bytes,
                          .num_pages = static_cast<int64_t>(cache.pages().size()),
                          .num_written = written_,
                          .drafts_from = drafts_from_};
  try {
    const std::shared_ptr<ImageImpl> image = NewImage(head, memory_->fingerprint, tokens(), note);
    device.Download(image->body(), cache.fixed(), layout.fixed_bytes);
    for (int64_t i = 0; i < head.num_pages; ++i)
      device.Download(image->page(i), cache.pages()[static_cast<size_t>(i)], layout.page_bytes);
    DSV4_RETURN_IF_ERROR(device.Synchronize());  // keeps nothing of a device that has failed
    return std::shared_ptr<const SnapshotImage>(image);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a snapshot's file");
  }
}

Result<std::unique_ptr<Session>> SessionFrom(const KvSnapshot& snapshot, SessionOwner& owner,
                                             const std::shared_ptr<SequenceMemory>& memory) {
  const auto* from = dynamic_cast<const SnapshotImpl*>(&snapshot);
  if (from == nullptr || from->memory() != memory) return InvalidArgument("the snapshot belongs to another engine");
  try {
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<RankCaches> caches, from->caches().Fork(from->num_tokens()));
    return std::unique_ptr<Session>(
        new SessionImpl(owner, memory, std::move(caches), from->kept_tokens(), from->written(), from->drafts_from()));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a session");
  }
}

Result<std::shared_ptr<const KvSnapshot>> SnapshotFrom(const SnapshotImage& image,
                                                       const std::shared_ptr<SequenceMemory>& memory) {
  const auto* from = dynamic_cast<const ImageImpl*>(&image);
  if (from == nullptr || from->fingerprint() != memory->fingerprint)
    return InvalidArgument("the snapshot belongs to another engine");
  try {
    auto tokens = KeptTokens::Of(nullptr, 0, image.info().tokens);
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<RankCaches> caches, RankCaches::Create(memory->kv_of_ranks));
    DSV4_RETURN_IF_ERROR(caches->Reserve(static_cast<int64_t>(tokens->size())));
    const KvLayout& layout = memory->layout();
    for (int r = 0; r < caches->count(); ++r) {
      Device& device = *memory->devices[static_cast<size_t>(r)];
      const SequenceCache& cache = caches->of(r);
      device.Upload(cache.fixed(), from->body(), layout.fixed_bytes);
      for (int64_t i = 0; i < from->num_pages(); ++i) {
        device.Upload(cache.pages()[static_cast<size_t>(i)], from->page(i), layout.page_bytes);
      }
    }
    return std::shared_ptr<const KvSnapshot>(std::make_shared<SnapshotImpl>(
        memory, std::move(caches), std::move(tokens), from->num_written(), from->drafts_from()));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a snapshot");
  }
}

}  // namespace dsv4
