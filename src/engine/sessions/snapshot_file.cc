#include "engine/sessions/snapshot_file.h"

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

constexpr std::string_view kMagic = "dsv4kv\r\n";  // text-mode transfers would change it
constexpr uint32_t kVersion = 3;
constexpr int64_t kMaxFingerprint = 4096, kMaxTokens = int64_t{1} << 28, kMaxNote = int64_t{256} << 20;

constexpr int64_t kHeadBytes = sizeof(SnapshotHead);

uint32_t Checksum(const void* data, int64_t bytes, uint32_t so_far = 0) {
  return static_cast<uint32_t>(crc32_z(so_far, static_cast<const Bytef*>(data), static_cast<size_t>(bytes)));
}

std::string_view Bytes(const auto& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])};
}

std::vector<uint32_t> ChecksumsOf(const uint8_t* body, const SnapshotHead& h) {
  std::vector<uint32_t> sums = {Checksum(body, h.fixed_bytes)};
  for (int64_t i = 0; i < h.num_pages; ++i)
    sums.push_back(Checksum(body + h.fixed_bytes + i * h.page_bytes, h.page_bytes));
  sums.push_back(Checksum(sums.data(), static_cast<int64_t>(sums.size() * 4)));
  return sums;
}

// A file, or its bytes in memory.
class Source {
 public:
  static Result<Source> Open(const std::string& path) {
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, InputFile::Open(path));
    return Source(std::move(file), {});
  }
  explicit Source(std::span<const std::byte> bytes) : Source(nullptr, bytes) {}

  // For messages.
  std::string name() const { return file_ == nullptr ? "the bytes of the snapshot" : StrCat("'", file_->path(), "'"); }
  const char* remedy() const {
    return file_ == nullptr ? "its tokens must be computed again"
                            : "delete the file: its tokens are then computed again";
  }
  int64_t size() const { return file_ == nullptr ? static_cast<int64_t>(bytes_.size()) : file_->size(); }
  Status Read(int64_t begin, int64_t count, void* to) const {
    if (file_ != nullptr) return file_->Read(begin, count, to);
    if (count > 0) std::memcpy(to, bytes_.data() + begin, static_cast<size_t>(count));
    return {};
  }

 private:
  Source(std::unique_ptr<InputFile> file, std::span<const std::byte> bytes) : file_(std::move(file)), bytes_(bytes) {}
  std::unique_ptr<InputFile> file_;  // null: bytes_
  std::span<const std::byte> bytes_;
};

// A source whose header has been checked.
struct OpenedFile {
  SnapshotHead head;
  std::string head_bytes;  // with its checksum; the fixed block follows
  SnapshotInfo info;
};

Status Damaged(const Source& from, std::string_view what) {
  return DataLoss(StrCat(from.name(), ": ", what, "; ", from.remedy()));
}

// Checks the text after the head without holding it, because the head of a planted file can announce gigabytes.
Status CheckText(const Source& file, const SnapshotHead& h, std::string* fingerprint) {
  const int64_t text_end = kHeadBytes + h.text_bytes();
  std::vector<char> piece(size_t{64} << 10);
  uint32_t sum = 0, stored = 0;
  for (int64_t at = 0; at < text_end;) {
    const int64_t n = std::min(static_cast<int64_t>(piece.size()), text_end - at);
    DSV4_RETURN_IF_ERROR(file.Read(at, n, piece.data()));
    sum = Checksum(piece.data(), n, sum);
    at += n;
  }
  DSV4_RETURN_IF_ERROR(file.Read(text_end, sizeof(stored), &stored));
  if (sum != stored) return Damaged(file, "the checksum of its header is wrong");
  fingerprint->resize(static_cast<size_t>(h.fingerprint_bytes));
  return file.Read(kHeadBytes, h.fingerprint_bytes, fingerprint->data());
}

// Text of a file for a message: one line of limited length.
std::string Shown(std::string_view text) {
  std::string out(text.substr(0, 400));
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

Result<OpenedFile> OpenSnapshot(const Source& from, const KvLayout& layout, const std::string& fingerprint,
                                const ModelInfo& model) {
  OpenedFile out;
  const int64_t size = from.size();
  SnapshotHead& h = out.head;
  if (size < kHeadBytes) return Damaged(from, "too short for a KV snapshot");
  DSV4_RETURN_IF_ERROR(from.Read(0, kHeadBytes, &h));
  if (std::string_view(h.magic, sizeof(h.magic)) != kMagic) return Damaged(from, "not a KV snapshot");
  if (h.version != kVersion) {
    return Unsupported(StrCat(from.name(), ": a KV snapshot of format ", h.version, ", this program reads format ",
                              kVersion, "; delete the file or use the program that wrote it"));
  }
  const auto within = [size](int64_t n, int64_t most) { return n >= 0 && n <= size && n <= most; };
  if (!within(h.num_tokens, kMaxTokens) || !within(h.fingerprint_bytes, kMaxFingerprint) ||
      !within(h.note_bytes, kMaxNote) || kHeadBytes + h.text_bytes() + 4 > size) {
    return Damaged(from, "truncated, or its header is damaged");
  }
  const int64_t text_end = kHeadBytes + h.text_bytes();
  std::string made_by;
  DSV4_RETURN_IF_ERROR(CheckText(from, h, &made_by));
  if (made_by != fingerprint) {
    return Unsupported(StrCat(from.name(), ": a KV snapshot of another model or setting, [", Shown(made_by), "], not [",
                              fingerprint, "]; use one folder for each model and setting"));
  }
  const int64_t pages = layout.page_bytes == 0 ? 0 : CeilDiv(h.num_tokens, layout.page_tokens);
  if (h.num_tokens < 1 || h.num_written < h.num_tokens || h.drafts_from < 0 || h.drafts_from > h.num_tokens ||
      h.token_bytes != sizeof(TokenId) || h.fixed_bytes != layout.fixed_bytes || h.page_bytes != layout.page_bytes ||
      h.num_pages != pages) {
    return Damaged(from, "its sizes do not match the model");
  }
  const int64_t body = h.fixed_bytes + h.num_pages * h.page_bytes, sums = (1 + h.num_pages) * 4;
  if (size != text_end + 4 + body + sums + 4) {
    return Damaged(from, StrCat("has ", size, " bytes instead of ", text_end + 4 + body + sums + 4));
  }
  if (h.num_tokens > model.max_context) {
    return ResourceExhausted(StrCat(from.name(), ": ", h.num_tokens, " tokens exceed the context limit of ",
                                    model.max_context, "; raise it (--ctx) up to the model's limit"));
  }
  out.head_bytes.resize(static_cast<size_t>(text_end + 4));
  DSV4_RETURN_IF_ERROR(from.Read(0, text_end + 4, out.head_bytes.data()));
  const char* data = out.head_bytes.data();
  if (std::memcmp(data, &h, sizeof(h)) != 0) return Damaged(from, "it changed while it was read");
  const char* at = data + kHeadBytes + h.fingerprint_bytes;
  out.info.tokens.resize(static_cast<size_t>(h.num_tokens));
  std::memcpy(out.info.tokens.data(), at, out.info.tokens.size() * sizeof(TokenId));
  for (const TokenId id : out.info.tokens) {
    if (id < 0 || id >= model.vocab_size)
      return Damaged(from, StrCat("holds token ", id, ", which the model does not have"));
  }
  out.info.note.assign(at + out.info.tokens.size() * sizeof(TokenId), static_cast<size_t>(h.note_bytes));
  out.info.file_bytes = size;
  return out;
}

}  // namespace

Status ImageImpl::Write(const std::string& path) const {
  try {
    const std::vector<uint32_t> sums = ChecksumsOf(body_.get(), head_);
    const std::string_view body(reinterpret_cast<const char*>(body_.get()), static_cast<size_t>(body_size()));
    const std::string_view pieces[] = {head_bytes_, body, Bytes(sums)};
    return WriteFile(path, pieces);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(StrCat("no memory to write '", path, "'"));
  }
}

Status ImageImpl::CopyTo(std::span<std::byte> out) const {
  if (static_cast<int64_t>(out.size()) != info_.file_bytes) {
    return InvalidArgument(StrCat("there is room for ", out.size(), " bytes, and the snapshot has ", info_.file_bytes,
                                  "; give exactly that many"));
  }
  try {
    const std::vector<uint32_t> sums = ChecksumsOf(body_.get(), head_);
    std::byte* at = out.data();
    const auto add = [&at](const void* data, size_t size) {
      std::memcpy(at, data, size);
      at += size;
    };
    add(head_bytes_.data(), head_bytes_.size());
    add(body_.get(), static_cast<size_t>(body_size()));
    add(sums.data(), sums.size() * 4);
    return {};
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory to write a snapshot");
  }
}

std::shared_ptr<ImageImpl> NewImage(SnapshotHead head, std::string_view fingerprint, std::vector<TokenId> tokens,
                                    std::string_view note) {
  std::memcpy(head.magic, kMagic.data(), sizeof(head.magic));
  head.version = kVersion;
  head.token_bytes = sizeof(TokenId);
  head.num_tokens = static_cast<int64_t>(tokens.size());
  head.fingerprint_bytes = static_cast<int64_t>(fingerprint.size());
  head.note_bytes = static_cast<int64_t>(note.size());
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes.append(fingerprint).append(Bytes(tokens)).append(note);
  const uint32_t sum = Checksum(bytes.data(), static_cast<int64_t>(bytes.size()));
  bytes.append(reinterpret_cast<const char*>(&sum), 4);
  return std::make_shared<ImageImpl>(head, std::move(bytes),
                                     SnapshotInfo{.tokens = std::move(tokens), .note = std::string(note)});
}

Result<SnapshotInfo> ReadImageInfo(const std::string& path, const KvLayout& layout, const std::string& fingerprint,
                                   const ModelInfo& model) {
  try {
    DSV4_ASSIGN_OR_RETURN(const Source from, Source::Open(path));
    DSV4_ASSIGN_OR_RETURN(OpenedFile opened, OpenSnapshot(from, layout, fingerprint, model));
    return std::move(opened.info);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(StrCat("no memory to read '", path, "'"));
  }
}

namespace {

Result<std::shared_ptr<const SnapshotImage>> ReadFrom(const Source& from, const KvLayout& layout,
                                                      const std::string& fingerprint, const ModelInfo& model) {
  try {
    DSV4_ASSIGN_OR_RETURN(OpenedFile opened, OpenSnapshot(from, layout, fingerprint, model));
    const auto body = static_cast<int64_t>(opened.head_bytes.size());
    auto image = std::make_shared<ImageImpl>(opened.head, std::move(opened.head_bytes), std::move(opened.info));
    DSV4_RETURN_IF_ERROR(from.Read(body, image->body_size(), image->body()));
    const std::vector<uint32_t> sums = ChecksumsOf(image->body(), opened.head);
    std::vector<uint32_t> found(sums.size());
    DSV4_RETURN_IF_ERROR(from.Read(body + image->body_size(), static_cast<int64_t>(found.size() * 4), found.data()));
    if (found != sums) return Damaged(from, "a checksum is wrong");
    return std::shared_ptr<const SnapshotImage>(std::move(image));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(StrCat("no memory to read ", from.name()));
  }
}

}  // namespace

Result<std::shared_ptr<const SnapshotImage>> ReadImage(const std::string& path, const KvLayout& layout,
                                                       const std::string& fingerprint, const ModelInfo& model) {
  DSV4_ASSIGN_OR_RETURN(const Source from, Source::Open(path));
  return ReadFrom(from, layout, fingerprint, model);
}

Result<std::shared_ptr<const SnapshotImage>> ReadImage(std::span<const std::byte> bytes, const KvLayout& layout,
                                                       const std::string& fingerprint, const ModelInfo& model) {
  return ReadFrom(Source(bytes), layout, fingerprint, model);
}

}  // namespace dsv4
