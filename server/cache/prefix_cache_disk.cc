// The files of the prefix cache: writing, reading, finding them at the start, removing.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "server/cache/prefix_cache.h"

namespace dsv4::server {

namespace fs = std::filesystem;

namespace {

const std::string kSuffix = ".dsv4kv";
// The beginning of a file's note. It names the form of the texts and states that this server encoded them.
constexpr std::string_view kNoteMark = "dsv4 tenant, texts 1\n";
constexpr size_t kTextsOfFile = 64 << 10, kTextsOfToken = 256;  // bytes of texts that are read
constexpr std::chrono::minutes kUnfinished{10};                 // a younger file may belong to another process

// Returns a file name for these tokens of this tenant (FNV-1a, two digests of 64 bits). The contents of the file decide
// whether it is theirs.
std::string FileName(std::string_view tenant, std::span<const TokenId> tokens) {
  std::string name;
  for (uint64_t digest : {uint64_t{0xCBF29CE484222325u}, uint64_t{0x9E3779B97F4A7C15u}}) {
    const auto add = [&](uint32_t byte) { digest = (digest ^ (byte & 0xFF)) * 0x100000001B3u; };
    for (const char c : tenant) add(static_cast<unsigned char>(c));
    for (const TokenId id : tokens) {
      for (int shift = 0; shift < 32; shift += 8) add(static_cast<uint32_t>(id) >> shift);
    }
    constexpr std::string_view kDigits = "0123456789abcdef";
    for (int shift = 60; shift >= 0; shift -= 4) name += kDigits[digest >> shift & 15];
  }
  return name.append(kSuffix);
}

void AppendNumber(std::string* out, size_t n) {
  const auto value = static_cast<uint32_t>(n);
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::optional<std::string_view> TakeBytes(std::string_view* in, size_t n) {
  if (in->size() < n) return std::nullopt;
  const std::string_view bytes = in->substr(0, n);
  in->remove_prefix(n);
  return bytes;
}

bool TakeNumber(std::string_view* in, size_t* n) {
  uint32_t value;
  if (in->size() < sizeof(value)) return false;
  std::memcpy(&value, in->data(), sizeof(value));
  in->remove_prefix(sizeof(value));
  *n = value;
  return true;
}

}  // namespace

PrefixCache::Fetched PrefixCache::Fetch(const std::string& tenant, std::span<const TokenId> prompt) {
  size_t common = 0;
  auto* node = const_cast<Node*>(Deepest(tenant, prompt, &common, /*in_memory_only=*/false));
  if (disk_ == nullptr || node == nullptr || node->value.snapshot != nullptr) return Fetched::kHere;
  if (const auto image = node->value.image; image != nullptr) {
    (void)Restore(node, *image);
    return Fetched::kHere;
  }
  if (node->value.is_read || !disk_->Read(node->value.file)) return Fetched::kUnderWay;
  node->value.is_read = true;
  return Fetched::kBegun;
}

void PrefixCache::Poll() {
  if (disk_ == nullptr) return;
  finished_.splice(finished_.end(), disk_->TakeDone());
  while (!finished_.empty()) {  // if memory runs out, the next call handles the rest
    const KvFiles::Done done = std::move(finished_.front());
    finished_.pop_front();
    const bool written = done.kind == KvFiles::Done::Kind::kWritten;
    Node* node = NodeOfFile(done.path);
    const bool current = node != nullptr && (written ? node->value.image == done.image : node->value.is_read);
    if (current && !written) node->value.is_read = false;
    if (written && done.status.ok()) metrics_.AddKvDisk("written");
    if (!done.status.ok() && (written || current)) Error(done.status, written ? "failed" : "refused");
    if (!current) continue;  // it was removed in the meantime
    const bool strange = !written && done.status.ok() && done.image->info().tokens != Tree::Key(*node);
    if (strange) Error(DataLoss("'" + done.path + "' contains other tokens than its name says"), "refused");
    if (strange || !done.status.ok()) {
      ForgetFile(node);
    } else if (written) {
      node->value.image.reset();
    } else if (node->value.snapshot == nullptr) {
      (void)Restore(node, *done.image);
    }
  }
}

PrefixCache::Node* PrefixCache::NodeOfFile(const std::string& path) {
  const auto at = std::find_if(files_.begin(), files_.end(), [&](const Node* n) { return n->value.file == path; });
  return at == files_.end() ? nullptr : *at;
}

// Returns false if there is no memory for the snapshot.
bool PrefixCache::Restore(Node* node, const SnapshotImage& image) {
  const std::string path = node->value.file;
  auto loaded = engine_.LoadSnapshot(image);
  while (!loaded.ok() && loaded.status().code() == StatusCode::kResourceExhausted && Evict()) {
    if (NodeOfFile(path) != node) return false;  // what was evicted replaced it on the disk
    loaded = engine_.LoadSnapshot(image);
  }
  if (!loaded.ok()) return false;
  const std::lock_guard lock(mutex_);
  AddSnapshot(node, std::move(*loaded));
  node->value.from_disk = true;
  Touch(node);
  metrics_.AddKvDisk("restored");
  return true;
}

void PrefixCache::DropFile(Node* node, bool remove) {
  if (remove && disk_ != nullptr) disk_->Remove(node->value.file);
  Tell(&CutWatcher::Dropped, CutPlace::kDisk, *node);
  files_.erase(node->value.disk_place);
  file_bytes_ -= std::exchange(node->value.file_bytes, 0);
  node->value.file.clear();
  node->value.image.reset();
  node->value.is_read = false;
}

void PrefixCache::ForgetFile(Node* node) {
  const std::lock_guard lock(mutex_);
  DropFile(node, /*remove=*/false);
  PruneNode(node);
}

// Returns the tenant and its texts, which a file stores in addition to its tokens.
std::string PrefixCache::NoteOf(const Node& node) const {
  std::string note(kNoteMark);
  const std::string& tenant = node.value.trees->tenant;
  AppendNumber(&note, tenant.size());
  note += tenant;
  for (const TextNode* at : node.value.texts) {
    const std::vector<char> key = TextTree::Key(*at);
    AppendNumber(&note, key.size());
    AppendNumber(&note, at->value.more.size());
    note.append(key.data(), key.size());
    note.append(reinterpret_cast<const char*>(at->value.more.data()), at->value.more.size() * sizeof(TokenId));
  }
  return note;
}

bool PrefixCache::Write(Node* node) {
  if (disk_ == nullptr || !node->value.file.empty()) return false;
  const std::string name = FileName(node->value.trees->tenant, Tree::Key(*node));
  std::string path = (fs::path(options_.disk) / name).string();
  auto image = node->value.snapshot->MakeImage(NoteOf(*node));
  if (!image.ok()) {
    Error(image.status(), "failed");
    return false;
  }
  std::list<Node*> place{node};
  disk_->Write(*image, path);
  // Nothing below needs memory until the file is known.
  const std::lock_guard lock(mutex_);
  std::erase_if(strangers_, [&](const Stranger& s) {  // the write replaces it
    if (s.path != path) return false;
    stranger_bytes_ -= s.bytes;
    return true;
  });
  node->value.file = std::move(path);
  node->value.file_bytes = (*image)->info().file_bytes;
  node->value.image = std::move(*image);
  node->value.disk_place = place.begin();
  files_.splice(files_.begin(), place);
  file_bytes_ += node->value.file_bytes;
  Tell(&CutWatcher::Kept, CutPlace::kDisk, *node);
  FitFolder();
  return true;
}

// Removes files until the folder keeps its limit, beginning with files that this server cannot use.
void PrefixCache::FitFolder() {
  for (; file_bytes_ + stranger_bytes_ > options_.disk_bytes && !strangers_.empty(); strangers_.pop_back()) {
    disk_->Remove(strangers_.back().path);
    stranger_bytes_ -= strangers_.back().bytes;
    metrics_.AddKvDisk("removed");
  }
  while (file_bytes_ > options_.disk_bytes && files_.size() > 1) {
    Node* oldest = files_.back();
    DropFile(oldest, /*remove=*/true);
    metrics_.AddKvDisk("removed");
    PruneNode(oldest);
  }
}

void PrefixCache::ReadFolder() {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, std::string>> files;
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.disk, error)) {
    // A link, a pipe or a folder is not one of the cache's files. It stays, and does not count.
    if (entry.symlink_status(error).type() != fs::file_type::regular) continue;
    const auto time = entry.last_write_time(error);
    if (entry.path().extension() == kSuffix) files.emplace_back(time, entry.path().string());
    // Left by a process that ended while it wrote a file.
    const bool unfinished = entry.path().filename().string().find(kSuffix + ".tmp.") != std::string::npos;
    if (unfinished && now - time > kUnfinished) fs::remove(entry.path(), error);
  }
  std::sort(files.begin(), files.end());
  for (const auto& [time, path] : files) {
    if (AddFile(path)) continue;
    const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
    if (error) continue;
    strangers_.push_front({path, bytes});
    stranger_bytes_ += bytes;
  }
}

// Returns false if the file stays in the folder unused.
bool PrefixCache::AddFile(const std::string& path) {
  Result<SnapshotInfo> info = engine_.ReadSnapshotInfo(path);
  if (!info.ok()) {
    Error(info.status(), info.status().code() == StatusCode::kDataLoss ? "refused" : "foreign");
    return false;
  }
  std::string_view note = info->note;
  size_t length = 0;
  std::optional<std::string_view> tenant;
  if (note.starts_with(kNoteMark)) {
    note.remove_prefix(kNoteMark.size());
    if (TakeNumber(&note, &length)) tenant = TakeBytes(&note, length);
  }
  if (!tenant) {
    Error(Unsupported("'" + path + "' was written by an older server, which did not store its tenant"), "foreign");
    return false;
  }
  Trees& trees = TreesOf(std::string(*tenant));
  Node* node = trees.cuts.Insert(info->tokens);
  if (!node->value.file.empty()) return false;
  node->value.trees = &trees;
  node->value.file = path;
  node->value.file_bytes = info->file_bytes;
  node->value.disk_place = files_.insert(files_.begin(), node);
  file_bytes_ += info->file_bytes;
  Tell(&CutWatcher::Kept, CutPlace::kDisk, *node);
  ReadTexts(node, note);
  return true;
}

// Reads texts up to a limit per token. A file with more is not from this server.
void PrefixCache::ReadTexts(Node* node, std::string_view note) {
  note = note.substr(0, kTextsOfFile + kTextsOfToken * node->depth);
  while (!note.empty()) {
    size_t length = 0, count = 0;
    if (!TakeNumber(&note, &length) || !TakeNumber(&note, &count)) return;
    const auto key = TakeBytes(&note, length);
    const auto bytes = TakeBytes(&note, count * sizeof(TokenId));
    if (!key || !bytes) return;
    std::vector<TokenId> more(count);
    if (count > 0) std::memcpy(more.data(), bytes->data(), bytes->size());
    const bool valid = std::all_of(more.begin(), more.end(), [&](TokenId id) { return tokenizer_.IsValid(id); });
    if (valid) AddText(node, *key, more);
  }
}

void PrefixCache::Error(const Status& status, const char* event) {
  metrics_.AddKvDisk(event);
  if (options_.on_disk_error) options_.on_disk_error(status.message());
}

}  // namespace dsv4::server
