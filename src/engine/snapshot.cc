#include "engine/snapshot.h"

#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "base/str.h"
#include "dsv4/version.h"
#include "model/deepseek_v4/visit_weights.h"

namespace dsv4 {

namespace {

constexpr std::string_view kMagic = "dsv4kv\r\n";  // a transfer as text would change it
constexpr uint32_t kVersion = 1;
constexpr int64_t kMaxFingerprint = 4096;
constexpr int64_t kSampleBytes = 256;  // of a tensor, at each of two places

// The head of a file. Behind it: fingerprint, tokens, note, the head's checksum; then the fixed block, the pages, their
// checksums, and the checksum of these.
struct Head {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  int64_t num_tokens, fingerprint_bytes, note_bytes;
  int64_t fixed_bytes, page_bytes, num_pages;

  int64_t text_bytes() const { return fingerprint_bytes + num_tokens * static_cast<int64_t>(sizeof(TokenId)) + note_bytes; }
};
static_assert(sizeof(Head) == 64);
constexpr int64_t kHeadBytes = sizeof(Head);

uint32_t Checksum(const void* data, int64_t bytes, uint32_t so_far = 0) {
  return static_cast<uint32_t>(crc32_z(so_far, static_cast<const Bytef*>(data), static_cast<size_t>(bytes)));
}

std::string_view Bytes(const auto& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])};
}

// Anything's 64-bit digest (FNV-1a).
void Digest(uint64_t& digest, const void* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) digest = (digest ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001B3u;
}

// A file whose head has been checked.
struct OpenedFile {
  std::shared_ptr<const MappedFile> file;
  Head head;
  const uint8_t* fixed = nullptr;      // the pages follow
  const uint8_t* checksums = nullptr;  // of the fixed block and of each page
  SnapshotInfo info;
};

Status Damaged(const std::string& path, std::string_view what) {
  return DataLoss(StrCat("'", path, "': ", what, "; delete the file, its tokens are computed again"));
}

Result<OpenedFile> OpenSnapshot(const std::string& path, const KvLayout& layout, const std::string& fingerprint,
                                const ModelInfo& model) {
  OpenedFile out;
  DSV4_ASSIGN_OR_RETURN(out.file, MappedFile::Open(path));
  const uint8_t* data = out.file->data();
  const int64_t size = out.file->size();
  Head& h = out.head;
  if (size < kHeadBytes) return Damaged(path, "too short for a KV snapshot");
  std::memcpy(&h, data, sizeof(h));
  if (std::string_view(h.magic, sizeof(h.magic)) != kMagic) return Damaged(path, "not a KV snapshot");
  if (h.version != kVersion) {
    return Unsupported(StrCat("'", path, "': a KV snapshot of form ", h.version, ", this program reads form ", kVersion,
                              "; delete the file or use the program that wrote it"));
  }
  const auto within = [size](int64_t n) { return n >= 0 && n <= size; };
  if (!within(h.num_tokens) || !within(h.fingerprint_bytes) || !within(h.note_bytes) || h.fingerprint_bytes > kMaxFingerprint ||
      kHeadBytes + h.text_bytes() + 4 > size) {
    return Damaged(path, "cut off, or its head is damaged");
  }
  const int64_t text_end = kHeadBytes + h.text_bytes();
  uint32_t checksum;
  std::memcpy(&checksum, data + text_end, 4);
  if (checksum != Checksum(data, text_end)) return Damaged(path, "the checksum of its head is wrong");

  const std::string_view made_by(reinterpret_cast<const char*>(data) + kHeadBytes, static_cast<size_t>(h.fingerprint_bytes));
  if (made_by != fingerprint) {
    return Unsupported(StrCat("'", path, "': a KV snapshot of [", made_by, "], this is [", fingerprint,
                              "]; use another folder for each model and setting"));
  }
  const int64_t pages = layout.page_bytes == 0 ? 0 : CeilDiv(h.num_tokens, layout.page_tokens);
  if (h.num_tokens < 1 || h.token_bytes != sizeof(TokenId) || h.fixed_bytes != layout.fixed_bytes ||
      h.page_bytes != layout.page_bytes || h.num_pages != pages) {
    return Damaged(path, "its sizes do not fit its model");
  }
  const int64_t body = h.fixed_bytes + h.num_pages * h.page_bytes, sums = (1 + h.num_pages) * 4;
  if (size != text_end + 4 + body + sums + 4) {
    return Damaged(path, StrCat("has ", size, " bytes instead of ", text_end + 4 + body + sums + 4));
  }
  out.fixed = data + text_end + 4;
  out.checksums = out.fixed + body;
  const uint8_t* at = data + kHeadBytes + h.fingerprint_bytes;
  out.info.tokens.resize(static_cast<size_t>(h.num_tokens));
  std::memcpy(out.info.tokens.data(), at, out.info.tokens.size() * sizeof(TokenId));
  for (const TokenId id : out.info.tokens) {
    if (id < 0 || id >= model.vocab_size) return Damaged(path, StrCat("holds token ", id, ", which the model does not have"));
  }
  if (h.num_tokens > model.max_context) {
    return ResourceExhausted(StrCat("'", path, "': ", h.num_tokens, " tokens exceed the context limit of ", model.max_context,
                                    "; raise it (--ctx) up to the model's own"));
  }
  out.info.note.assign(reinterpret_cast<const char*>(at) + out.info.tokens.size() * sizeof(TokenId), static_cast<size_t>(h.note_bytes));
  out.info.file_bytes = size;
  return out;
}

}  // namespace

void EngineImpl::EnsureFingerprint() const {
  if (!memory_->fingerprint.empty()) return;
  uint64_t digest = 0xCBF29CE484222325u;
  const auto sample = [&](const void* data, int64_t bytes) {
    uint8_t buffer[kSampleBytes];
    const int64_t n = std::min(bytes, kSampleBytes);
    Digest(digest, &bytes, sizeof(bytes));
    for (const int64_t at : {(bytes - n) / 3, bytes - n}) {
      device_->Download(buffer, static_cast<const uint8_t*>(data) + at, n);
      Digest(digest, buffer, n);
    }
  };
  Weights some = model_.weights;  // one expert stands for all
  for (LayerWeights& layer : some.layers) layer.moe.experts.resize(std::min<size_t>(layer.moe.experts.size(), 1));
  VisitWeights(
      some,
      [&](const QuantTensor& m, bool) {
        if (!m) return;
        sample(m.codes, m.rows * m.row_bytes());
        Digest(digest, &m.global_scale, sizeof(m.global_scale));
      },
      [&](const Tensor& t) {
        if (t) sample(t.data, t.num_bytes());
      });
  const Config& c = model_.config;
  std::string ratios;
  for (const int64_t r : c.compress_ratios) ratios += StrCat(ratios.empty() ? "" : ",", r);
  const BuildInfo build = GetBuildInfo();
  memory_->fingerprint =
      StrCat("dsv4 ", build.version, " ", build.commit, "; ", device_->kind() == DeviceKind::kCpu ? build.cpu_features : device_->name(),
             "; ", c.num_layers, " layers (", ratios, "), hidden ", c.hidden_size, ", vocabulary ", c.vocab_size, ", weights ", digest,
             "; ", modes_);
}

Result<std::shared_ptr<const KvSnapshot>> SessionImpl::Snapshot() {
  if (tokens_.empty()) return InvalidArgument("a session without tokens has nothing to keep; append some first");
  try {
    engine_->EnsureFingerprint();
    std::vector<TokenId> tokens = tokens_;
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> copy, cache_->Fork(static_cast<int64_t>(tokens.size())));
    return std::shared_ptr<const KvSnapshot>(std::make_shared<SnapshotImpl>(memory_, std::move(copy), std::move(tokens)));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a snapshot");
  }
}

Result<std::unique_ptr<Session>> EngineImpl::NewSession(const KvSnapshot& snapshot) {
  const auto* from = dynamic_cast<const SnapshotImpl*>(&snapshot);
  if (from == nullptr || from->memory() != memory_) return InvalidArgument("the snapshot belongs to another engine");
  try {
    std::vector<TokenId> tokens = from->tokens();
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> cache, from->cache().Fork(static_cast<int64_t>(tokens.size())));
    return std::unique_ptr<Session>(new SessionImpl(*this, memory_, std::move(cache), std::move(tokens)));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a session");
  }
}

Status SnapshotImpl::Save(const std::string& path, std::string_view note) const {
  const KvLayout& layout = memory_->kv.layout;
  Device& device = *memory_->device;
  Head h{.version = kVersion, .token_bytes = sizeof(TokenId), .num_tokens = static_cast<int64_t>(tokens_.size()),
         .fingerprint_bytes = static_cast<int64_t>(memory_->fingerprint.size()), .note_bytes = static_cast<int64_t>(note.size()),
         .fixed_bytes = layout.fixed_bytes, .page_bytes = layout.page_bytes,
         .num_pages = static_cast<int64_t>(cache_->pages().size())};
  std::memcpy(h.magic, kMagic.data(), sizeof(h.magic));
  try {
    std::string head(reinterpret_cast<const char*>(&h), sizeof(h));
    head.append(memory_->fingerprint).append(Bytes(tokens_)).append(note);
    const uint32_t head_sum = Checksum(head.data(), static_cast<int64_t>(head.size()));
    head.append(reinterpret_cast<const char*>(&head_sum), 4);
    std::vector<std::string_view> pieces = {head};
    std::vector<uint32_t> sums;
    std::string copies;  // of what the host cannot read
    int64_t copied = 0;
    if (device.kind() != DeviceKind::kCpu) copies.resize(static_cast<size_t>(layout.fixed_bytes + h.num_pages * layout.page_bytes));
    const auto add = [&](const uint8_t* block, int64_t bytes) {
      const char* data = reinterpret_cast<const char*>(block);
      if (device.kind() != DeviceKind::kCpu) {
        device.Download(copies.data() + copied, block, bytes);
        data = copies.data() + copied;
        copied += bytes;
      }
      pieces.emplace_back(data, static_cast<size_t>(bytes));
      sums.push_back(Checksum(data, bytes));
    };
    add(cache_->fixed(), layout.fixed_bytes);
    for (const uint8_t* page : cache_->pages()) add(page, layout.page_bytes);
    sums.push_back(Checksum(sums.data(), static_cast<int64_t>(sums.size() * 4)));
    pieces.push_back(Bytes(sums));
    return WriteFile(path, pieces);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(StrCat("no memory to write '", path, "'"));
  }
}

Result<SnapshotInfo> EngineImpl::ReadSnapshotInfo(const std::string& path) const {
  EnsureFingerprint();
  DSV4_ASSIGN_OR_RETURN(OpenedFile opened, OpenSnapshot(path, memory_->kv.layout, memory_->fingerprint, info_));
  return std::move(opened.info);
}

Result<std::shared_ptr<const KvSnapshot>> EngineImpl::LoadSnapshot(const std::string& path) {
  EnsureFingerprint();
  const KvLayout& layout = memory_->kv.layout;
  try {
    DSV4_ASSIGN_OR_RETURN(OpenedFile opened, OpenSnapshot(path, layout, memory_->fingerprint, info_));
    // Everything is checked before anything is used.
    const int64_t blocks = 1 + opened.head.num_pages;
    std::vector<uint32_t> sums(static_cast<size_t>(blocks) + 1);
    std::memcpy(sums.data(), opened.checksums, sums.size() * 4);
    const auto block = [&](int64_t i) { return opened.fixed + (i == 0 ? 0 : layout.fixed_bytes + (i - 1) * layout.page_bytes); };
    std::atomic<bool> good = sums.back() == Checksum(sums.data(), blocks * 4);
    pool_->ParallelFor(blocks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t sum = Checksum(block(i), i == 0 ? layout.fixed_bytes : layout.page_bytes);
        if (sum != sums[static_cast<size_t>(i)]) good = false;
      }
    });
    if (!good) return Damaged(path, "a checksum is wrong");

    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> cache, SequenceCache::Create(memory_->kv));
    DSV4_RETURN_IF_ERROR(cache->Reserve(opened.head.num_tokens));
    device_->Upload(cache->fixed(), block(0), layout.fixed_bytes);
    for (int64_t i = 0; i < opened.head.num_pages; ++i) {
      device_->Upload(cache->pages()[static_cast<size_t>(i)], block(1 + i), layout.page_bytes);
    }
    DSV4_RETURN_IF_ERROR(device_->Synchronize());  // before the file is unmapped
    return std::shared_ptr<const KvSnapshot>(std::make_shared<SnapshotImpl>(memory_, std::move(cache), std::move(opened.info.tokens)));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(StrCat("no memory to read '", path, "'"));
  }
}

}  // namespace dsv4
