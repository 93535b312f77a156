#include "engine/snapshot.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/file.h"
#include "base/input_file.h"
#include "base/str.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr std::string_view kMagic = "dsv4kv\r\n";  // a transfer as text would change it
constexpr uint32_t kVersion = 3;
constexpr int64_t kMaxFingerprint = 4096, kMaxTokens = int64_t{1} << 28, kMaxNote = int64_t{256} << 20;

// The head of a file. Behind it: fingerprint, tokens, note, the head's checksum; then the fixed block, the pages, their
// checksums, and the checksum of these.
struct Head {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  int64_t num_tokens, fingerprint_bytes, note_bytes;
  int64_t fixed_bytes, page_bytes, num_pages;
  int64_t num_written;  // tokens that the rings have held: num_tokens, and some behind them that were taken back
  int64_t drafts_from;  // position from which a draft module's rings hold all

  int64_t text_bytes() const {
    return fingerprint_bytes + num_tokens * static_cast<int64_t>(sizeof(TokenId)) + note_bytes;
  }
};
static_assert(sizeof(Head) == 80);
constexpr int64_t kHeadBytes = sizeof(Head);

uint32_t Checksum(const void* data, int64_t bytes, uint32_t so_far = 0) {
  return static_cast<uint32_t>(crc32_z(so_far, static_cast<const Bytef*>(data), static_cast<size_t>(bytes)));
}

std::string_view Bytes(const auto& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])};
}

std::vector<uint32_t> ChecksumsOf(const uint8_t* body, const Head& h) {
  std::vector<uint32_t> sums = {Checksum(body, h.fixed_bytes)};
  for (int64_t i = 0; i < h.num_pages; ++i)
    sums.push_back(Checksum(body + h.fixed_bytes + i * h.page_bytes, h.page_bytes));
  sums.push_back(Checksum(sums.data(), static_cast<int64_t>(sums.size() * 4)));
  return sums;
}

class ImageImpl : public SnapshotImage {
 public:
  ImageImpl(const Head& head, std::string head_bytes, SnapshotInfo info)
      : head_(head),
        head_bytes_(std::move(head_bytes)),
        info_(std::move(info)),
        body_(std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(body_size()))) {
    info_.file_bytes = static_cast<int64_t>(head_bytes_.size()) + body_size() + (head_.num_pages + 2) * 4;
  }

  const SnapshotInfo& info() const override { return info_; }
  Status Write(const std::string& path) const override {
    try {
      const std::vector<uint32_t> sums = ChecksumsOf(body_.get(), head_);
      const std::string_view body(reinterpret_cast<const char*>(body_.get()), static_cast<size_t>(body_size()));
      const std::string_view pieces[] = {head_bytes_, body, Bytes(sums)};
      return WriteFile(path, pieces);
    } catch (const std::bad_alloc&) {
      return ResourceExhausted(StrCat("no memory to write '", path, "'"));
    }
  }

  int64_t num_pages() const { return head_.num_pages; }
  int64_t num_written() const { return head_.num_written; }
  int64_t drafts_from() const { return head_.drafts_from; }
  int64_t body_size() const { return head_.fixed_bytes + head_.num_pages * head_.page_bytes; }
  uint8_t* body() const { return body_.get(); }
  uint8_t* page(int64_t i) const { return body_.get() + head_.fixed_bytes + i * head_.page_bytes; }
  std::string_view fingerprint() const {
    return std::string_view(head_bytes_).substr(kHeadBytes, static_cast<size_t>(head_.fingerprint_bytes));
  }

 private:
  const Head head_;
  const std::string head_bytes_;  // with its checksum
  SnapshotInfo info_;
  const std::unique_ptr<uint8_t[]> body_;  // the fixed block, then the pages
};

// A file whose head has been checked.
struct OpenedFile {
  std::unique_ptr<InputFile> file;
  Head head;
  std::string head_bytes;  // with its checksum; the fixed block follows
  SnapshotInfo info;
};

Status Damaged(const std::string& path, std::string_view what) {
  return DataLoss(StrCat("'", path, "': ", what, "; delete the file, its tokens are computed again"));
}

// What a file says, for a message: one line, not too long.
std::string Shown(std::string_view text) {
  std::string out(text.substr(0, 400));
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

Result<OpenedFile> OpenSnapshot(const std::string& path, const KvLayout& layout, const std::string& fingerprint,
                                const ModelInfo& model) {
  OpenedFile out;
  DSV4_ASSIGN_OR_RETURN(out.file, InputFile::Open(path));
  const int64_t size = out.file->size();
  Head& h = out.head;
  if (size < kHeadBytes) return Damaged(path, "too short for a KV snapshot");
  DSV4_RETURN_IF_ERROR(out.file->Read(0, kHeadBytes, &h));
  if (std::string_view(h.magic, sizeof(h.magic)) != kMagic) return Damaged(path, "not a KV snapshot");
  if (h.version != kVersion) {
    return Unsupported(StrCat("'", path, "': a KV snapshot of form ", h.version, ", this program reads form ", kVersion,
                              "; delete the file or use the program that wrote it"));
  }
  const auto within = [size](int64_t n, int64_t most) { return n >= 0 && n <= size && n <= most; };
  if (!within(h.num_tokens, kMaxTokens) || !within(h.fingerprint_bytes, kMaxFingerprint) ||
      !within(h.note_bytes, kMaxNote) || kHeadBytes + h.text_bytes() + 4 > size) {
    return Damaged(path, "cut off, or its head is damaged");
  }
  const int64_t text_end = kHeadBytes + h.text_bytes();
  out.head_bytes.resize(static_cast<size_t>(text_end + 4));
  DSV4_RETURN_IF_ERROR(out.file->Read(0, text_end + 4, out.head_bytes.data()));
  const char* data = out.head_bytes.data();
  uint32_t checksum;
  std::memcpy(&checksum, data + text_end, 4);
  if (checksum != Checksum(data, text_end) || std::memcmp(data, &h, sizeof(h)) != 0) {
    return Damaged(path, "the checksum of its head is wrong");
  }

  const std::string_view made_by(data + kHeadBytes, static_cast<size_t>(h.fingerprint_bytes));
  if (made_by != fingerprint) {
    return Unsupported(StrCat("'", path, "': a KV snapshot of [", Shown(made_by), "], this is [", fingerprint,
                              "]; use another folder for each model and setting"));
  }
  const int64_t pages = layout.page_bytes == 0 ? 0 : CeilDiv(h.num_tokens, layout.page_tokens);
  if (h.num_tokens < 1 || h.num_written < h.num_tokens || h.drafts_from < 0 || h.drafts_from > h.num_tokens ||
      h.token_bytes != sizeof(TokenId) || h.fixed_bytes != layout.fixed_bytes || h.page_bytes != layout.page_bytes ||
      h.num_pages != pages) {
    return Damaged(path, "its sizes do not fit its model");
  }
  const int64_t body = h.fixed_bytes + h.num_pages * h.page_bytes, sums = (1 + h.num_pages) * 4;
  if (size != text_end + 4 + body + sums + 4) {
    return Damaged(path, StrCat("has ", size, " bytes instead of ", text_end + 4 + body + sums + 4));
  }
  const char* at = data + kHeadBytes + h.fingerprint_bytes;
  out.info.tokens.resize(static_cast<size_t>(h.num_tokens));
  std::memcpy(out.info.tokens.data(), at, out.info.tokens.size() * sizeof(TokenId));
  for (const TokenId id : out.info.tokens) {
    if (id < 0 || id >= model.vocab_size)
      return Damaged(path, StrCat("holds token ", id, ", which the model does not have"));
  }
  if (h.num_tokens > model.max_context) {
    return ResourceExhausted(StrCat("'", path, "': ", h.num_tokens, " tokens exceed the context limit of ",
                                    model.max_context, "; raise it (--ctx) up to the model's own"));
  }
  out.info.note.assign(at + out.info.tokens.size() * sizeof(TokenId), static_cast<size_t>(h.note_bytes));
  out.info.file_bytes = size;
  return out;
}

}  // namespace

Result<std::shared_ptr<const KvSnapshot>> SessionImpl::Snapshot() {
  if (tokens_.empty()) return InvalidArgument("a session without tokens has nothing to keep; append some first");
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

Result<std::unique_ptr<Session>> EngineImpl::NewSession(const KvSnapshot& snapshot) {
  const auto* from = dynamic_cast<const SnapshotImpl*>(&snapshot);
  if (from == nullptr || from->memory() != memory_) return InvalidArgument("the snapshot belongs to another engine");
  try {
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<RankCaches> caches, from->caches().Fork(from->num_tokens()));
    return std::unique_ptr<Session>(
        new SessionImpl(*this, memory_, std::move(caches), from->kept_tokens(), from->written(), from->drafts_from()));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a session");
  }
}

Result<std::shared_ptr<const SnapshotImage>> SnapshotImpl::MakeImage(std::string_view note) const {
  if (memory_->fingerprint.empty()) {
    if (memory_->engine == nullptr)
      return InvalidArgument("the snapshot's engine is gone, and nobody has asked for its fingerprint");
    DSV4_RETURN_IF_ERROR(memory_->engine->SnapshotFingerprint().status());
  }
  const KvLayout& layout = memory_->layout();
  Device& device = memory_->device();
  const SequenceCache& cache = caches_->of(0);  // one rank's rows are every rank's
  Head h{.magic = {},
         .version = kVersion,
         .token_bytes = sizeof(TokenId),
         .num_tokens = num_tokens(),
         .fingerprint_bytes = static_cast<int64_t>(memory_->fingerprint.size()),
         .note_bytes = static_cast<int64_t>(note.size()),
         .fixed_bytes = layout.fixed_bytes,
         .page_bytes = layout.page_bytes,
         .num_pages = static_cast<int64_t>(cache.pages().size()),
         .num_written = written_,
         .drafts_from = drafts_from_};
  std::memcpy(h.magic, kMagic.data(), sizeof(h.magic));
  try {
    std::string head(reinterpret_cast<const char*>(&h), sizeof(h));
    std::vector<TokenId> ids = tokens();
    head.append(memory_->fingerprint).append(Bytes(ids)).append(note);
    const uint32_t head_sum = Checksum(head.data(), static_cast<int64_t>(head.size()));
    head.append(reinterpret_cast<const char*>(&head_sum), 4);
    auto image = std::make_shared<ImageImpl>(h, std::move(head),
                                             SnapshotInfo{.tokens = std::move(ids), .note = std::string(note)});
    device.Download(image->body(), cache.fixed(), layout.fixed_bytes);
    for (int64_t i = 0; i < h.num_pages; ++i)
      device.Download(image->page(i), cache.pages()[static_cast<size_t>(i)], layout.page_bytes);
    DSV4_RETURN_IF_ERROR(device.Synchronize());  // of a device that has failed nothing is kept
    return std::shared_ptr<const SnapshotImage>(std::move(image));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a snapshot's file");
  }
}

// What reads uses nothing that Restart takes away: it may run beside it.
Result<SnapshotInfo> EngineImpl::ReadSnapshotInfo(const std::string& path) {
  DSV4_RETURN_IF_ERROR(SnapshotFingerprint().status());
  try {
    DSV4_ASSIGN_OR_RETURN(OpenedFile opened, OpenSnapshot(path, kv_layout_, fingerprint_, info_));
    return std::move(opened.info);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(StrCat("no memory to read '", path, "'"));
  }
}

// Everything is checked before anything is used.
Result<std::shared_ptr<const SnapshotImage>> EngineImpl::ReadSnapshot(const std::string& path) {
  DSV4_RETURN_IF_ERROR(SnapshotFingerprint().status());
  try {
    DSV4_ASSIGN_OR_RETURN(OpenedFile opened, OpenSnapshot(path, kv_layout_, fingerprint_, info_));
    const auto body = static_cast<int64_t>(opened.head_bytes.size());
    auto image = std::make_shared<ImageImpl>(opened.head, std::move(opened.head_bytes), std::move(opened.info));
    DSV4_RETURN_IF_ERROR(opened.file->Read(body, image->body_size(), image->body()));
    const std::vector<uint32_t> sums = ChecksumsOf(image->body(), opened.head);
    std::vector<uint32_t> found(sums.size());
    DSV4_RETURN_IF_ERROR(
        opened.file->Read(body + image->body_size(), static_cast<int64_t>(found.size() * 4), found.data()));
    if (found != sums) return Damaged(path, "a checksum is wrong");
    return std::shared_ptr<const SnapshotImage>(std::move(image));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(StrCat("no memory to read '", path, "'"));
  }
}

Result<std::shared_ptr<const KvSnapshot>> EngineImpl::LoadSnapshot(const SnapshotImage& image) {
  const auto* from = dynamic_cast<const ImageImpl*>(&image);
  DSV4_RETURN_IF_ERROR(health());
  if (from == nullptr || from->fingerprint() != memory_->fingerprint)
    return InvalidArgument("the snapshot belongs to another engine");
  try {
    auto tokens = KeptTokens::Of(nullptr, 0, image.info().tokens);
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<RankCaches> caches, RankCaches::Create(memory_->kv_of_ranks));
    DSV4_RETURN_IF_ERROR(caches->Reserve(static_cast<int64_t>(tokens->size())));
    const KvLayout& layout = memory_->layout();
    for (int r = 0; r < caches->count(); ++r) {
      Device& device = *memory_->devices[static_cast<size_t>(r)];
      const SequenceCache& cache = caches->of(r);
      device.Upload(cache.fixed(), from->body(), layout.fixed_bytes);
      for (int64_t i = 0; i < from->num_pages(); ++i) {
        device.Upload(cache.pages()[static_cast<size_t>(i)], from->page(i), layout.page_bytes);
      }
    }
    return std::shared_ptr<const KvSnapshot>(std::make_shared<SnapshotImpl>(
        memory_, std::move(caches), std::move(tokens), from->num_written(), from->drafts_from()));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a snapshot");
  }
}

Result<std::shared_ptr<const KvSnapshot>> Engine::LoadSnapshot(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const std::shared_ptr<const SnapshotImage> image, ReadSnapshot(path));
  return LoadSnapshot(*image);
}

}  // namespace dsv4
