#include "prefix_cache.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

namespace dsv4::server {

namespace fs = std::filesystem;

namespace {

constexpr size_t kRelated = 16;  // tokens: BOS and a role are common to all
constexpr size_t kWorthReading = 64;  // tokens that a file must save
const std::string kSuffix = ".dsv4kv";
constexpr std::chrono::minutes kUnfinished{10};  // what is younger may be another process's

// Whether `text` starts with the spelling of an added token: text before one is encoded apart from it.
bool StartsWithAddedToken(const Tokenizer& tokenizer, std::string_view text) {
  if (text.empty() || text.front() != '<') return false;
  const size_t end = text.find('>');
  if (end == std::string_view::npos || end > 64) return false;
  const std::optional<TokenId> id = tokenizer.FindToken(text.substr(0, end + 1));
  return id.has_value() && tokenizer.IsAdded(*id);
}

// A name for these tokens (FNV-1a, twice 64 bits); the tokens in the file decide.
std::string FileName(std::span<const TokenId> tokens) {
  std::string name;
  for (uint64_t digest : {uint64_t{0xCBF29CE484222325u}, uint64_t{0x9E3779B97F4A7C15u}}) {
    for (const TokenId id : tokens) {
      for (int shift = 0; shift < 32; shift += 8) digest = (digest ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3u;
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

bool TakeNumber(std::string_view* in, size_t* n) {
  uint32_t value;
  if (in->size() < sizeof(value)) return false;
  std::memcpy(&value, in->data(), sizeof(value));
  in->remove_prefix(sizeof(value));
  *n = value;
  return true;
}

}  // namespace

PrefixCache::PrefixCache(Engine& engine, const Tokenizer& tokenizer, Metrics& metrics, const PrefixCacheOptions& options)
    : engine_(engine), tokenizer_(tokenizer), metrics_(metrics), options_(options) {
  if (!options_.enabled || options_.disk.empty()) return;
  if (const auto fingerprint = engine_.SnapshotFingerprint(); !fingerprint.ok()) {
    Error(fingerprint.status(), "failed");
    return;
  }
  ReadFolder();
  disk_ = std::make_unique<KvFiles>(engine_, options_.disk_queue_bytes,
                                    [this] { if (options_.on_disk_done) options_.on_disk_done(); });
}

const PrefixCache::Node* PrefixCache::Deepest(std::span<const TokenId> prompt, size_t* common, bool in_memory_only) const {
  const Node *deepest = nullptr, *in_memory = nullptr;
  *common = cuts_.Walk(prompt, [&](const Node& node) {
    if (!Holds(node.value) || node.depth == prompt.size()) return;
    deepest = &node;
    if (node.value.snapshot != nullptr) in_memory = &node;
  });
  const bool worth_it = deepest != nullptr && deepest->depth >= (in_memory == nullptr ? 0 : in_memory->depth) + kWorthReading;
  return worth_it && !in_memory_only ? deepest : in_memory;
}

PrefixCache::Known PrefixCache::Look(std::span<const TokenId> prompt) const {
  Known known;
  const Node* node = Deepest(prompt, &known.common, /*in_memory_only=*/false);
  known.cut = node == nullptr ? 0 : node->depth;
  known.on_disk = node != nullptr && node->value.snapshot == nullptr;
  return known;
}

bool PrefixCache::Has(std::span<const TokenId> tokens) const {
  bool has = false;
  cuts_.Walk(tokens, [&](const Node& node) { has = node.depth == tokens.size() && node.value.snapshot != nullptr; });
  return has;
}

PrefixCache::Found PrefixCache::Find(std::span<const TokenId> prompt) {
  if (!options_.enabled) return {.snapshot = nullptr, .what = "off"};
  size_t common = 0;
  auto* node = const_cast<Node*>(Deepest(prompt, &common, /*in_memory_only=*/true));
  if (node == nullptr) {
    if (cuts_.root().children.empty()) return {.snapshot = nullptr, .what = "empty"};
    if (Deepest(prompt, &common, /*in_memory_only=*/false) != nullptr) return {.snapshot = nullptr, .what = "no_memory"};
    return {.snapshot = nullptr, .what = common >= kRelated ? "diverged" : "unrelated"};
  }
  const std::lock_guard lock(mutex_);
  ++node->value.hits;
  Touch(node);
  return {.snapshot = node->value.snapshot, .what = std::exchange(node->value.from_disk, false) ? "disk" : "memory"};
}

PrefixCache::Fetched PrefixCache::Fetch(std::span<const TokenId> prompt) {
  size_t common = 0;
  auto* node = const_cast<Node*>(Deepest(prompt, &common, /*in_memory_only=*/false));
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
  for (const KvFiles::Done& done : disk_->TakeDone()) {
    const bool written = done.kind == KvFiles::Done::Kind::kWritten;
    if (written && done.status.ok()) metrics_.AddKvDisk("written");
    Node* node = NodeOfFile(done.path);
    const bool current = node != nullptr && (written ? node->value.image == done.image : node->value.is_read);
    if (!done.status.ok() && (written || current)) Error(done.status, written ? "failed" : "refused");
    if (!current) continue;  // removed meanwhile
    if (!done.status.ok()) {
      const std::lock_guard lock(mutex_);
      DropFile(node, /*remove=*/false);
      PruneNode(node);
    } else if (written) {
      node->value.image.reset();
    } else {
      node->value.is_read = false;
      if (done.image->info().tokens != Tree::Key(*node)) {
        Error(DataLoss("'" + done.path + "': holds other tokens than its name says"), "refused");
        const std::lock_guard lock(mutex_);
        DropFile(node, /*remove=*/false);
        PruneNode(node);
      } else if (node->value.snapshot == nullptr) {
        (void)Restore(node, *done.image);
      }
    }
  }
}

PrefixCache::Node* PrefixCache::NodeOfFile(const std::string& path) {
  const auto at = std::find_if(files_.begin(), files_.end(), [&](const Node* n) { return n->value.file == path; });
  return at == files_.end() ? nullptr : *at;
}

// False: there is no memory for it.
bool PrefixCache::Restore(Node* node, const SnapshotImage& image) {
  const std::string path = node->value.file;
  auto loaded = engine_.LoadSnapshot(image);
  while (!loaded.ok() && loaded.status().code() == StatusCode::kResourceExhausted && Evict()) {
    if (NodeOfFile(path) != node) return false;  // what was evicted took its place on the disk
    loaded = engine_.LoadSnapshot(image);
  }
  if (!loaded.ok()) return false;
  const std::lock_guard lock(mutex_);
  node->value.snapshot = std::move(*loaded);
  node->value.place = by_use_.insert(by_use_.begin(), node);
  node->value.from_disk = true;
  Touch(node);
  metrics_.AddKvDisk("restored");
  return true;
}

// Everything on the way to `node` was used now.
void PrefixCache::Touch(Node* node) {
  for (Node* n = node; n != nullptr; n = n->parent) {
    if (n->value.snapshot != nullptr) by_use_.splice(by_use_.begin(), by_use_, n->value.place);
    if (!n->value.file.empty()) files_.splice(files_.begin(), files_, n->value.disk_place);
  }
}

void PrefixCache::Put(std::shared_ptr<const KvSnapshot> snapshot, std::span<const TokenId> ids, const std::string& rendered) {
  if (!options_.enabled) return;
  const std::vector<TokenId>& tokens = snapshot->tokens();
  std::string text;
  for (const TokenId id : ids) text += tokenizer_.TokenBytes(id);
  const std::span<const TokenId> more = ids.subspan(tokens.size());
  const std::lock_guard lock(mutex_);
  Node* node = cuts_.Insert(tokens);
  if (node->value.snapshot == nullptr) {
    node->value.snapshot = std::move(snapshot);
    node->value.place = by_use_.insert(by_use_.begin(), node);
  }
  Touch(node);
  AddText(node, text, more);
  if (!rendered.empty() && rendered != text) AddText(node, rendered, more);
}

void PrefixCache::AddText(Node* node, std::string_view text, std::span<const TokenId> more) {
  TextNode* at = texts_.Insert({text.data(), text.size()});
  if (at->value.cut != nullptr && at->value.cut != node) std::erase(at->value.cut->value.texts, at);
  if (at->value.cut != node) node->value.texts.push_back(at);
  at->value = {.cut = node, .more = {more.begin(), more.end()}};
}

std::vector<TokenId> PrefixCache::EncodePrompt(std::string_view text) const {
  std::vector<TokenId> ids;
  size_t known = 0;
  {
    const std::lock_guard lock(mutex_);
    const TextNode* best = nullptr;
    texts_.Walk({text.data(), text.size()}, [&](const TextNode& node) {
      if (node.value.cut != nullptr && StartsWithAddedToken(tokenizer_, text.substr(node.depth))) best = &node;
    });
    if (best != nullptr) {
      known = best->depth;
      ids = Tree::Key(*best->value.cut);
      ids.insert(ids.end(), best->value.more.begin(), best->value.more.end());
    }
  }
  const std::vector<TokenId> rest = tokenizer_.Encode(text.substr(known));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

// Two later cuts on the only way that goes on from here, and nobody ever came back.
bool PrefixCache::Replaced(const Node& node) {
  if (node.value.hits > 0) return false;
  int later = 0;
  for (const Node* n = &node; n->children.size() == 1;) {
    n = n->children.begin()->second.get();
    if (Holds(n->value) && ++later == 2) return true;
  }
  return false;
}

bool PrefixCache::Evict() {
  if (by_use_.empty()) return false;
  const auto replaced = std::find_if(by_use_.rbegin(), by_use_.rend(), [](const Node* n) { return Replaced(*n); });
  Node* node = replaced != by_use_.rend() ? *replaced : by_use_.back();
  if (replaced == by_use_.rend()) (void)Write(node);
  metrics_.AddEviction();
  std::shared_ptr<const KvSnapshot> freed = node->value.snapshot;  // outside of the lock
  const std::lock_guard lock(mutex_);
  DropSnapshot(node);
  PruneNode(node);
  return true;
}

void PrefixCache::DropSnapshot(Node* node) {
  by_use_.erase(node->value.place);
  node->value.snapshot.reset();
}

void PrefixCache::DropFile(Node* node, bool remove) {
  if (remove && disk_ != nullptr) disk_->Remove(node->value.file);
  files_.erase(node->value.disk_place);
  disk_bytes_ -= std::exchange(node->value.file_bytes, 0);
  node->value.file.clear();
  node->value.image.reset();
  node->value.is_read = false;
}

// Texts are kept as long as there are cuts at or behind their node.
void PrefixCache::PruneNode(Node* node) {
  for (Node* n = node; n->parent != nullptr && !Holds(n->value) && n->children.size() == (n == node ? 0u : 1u); n = n->parent) {
    for (TextNode* text : std::exchange(n->value.texts, {})) {
      text->value = {};
      texts_.Prune(text, [](const TextNode& t) { return t.value.cut != nullptr; });
    }
  }
  cuts_.Prune(node, [](const Node& n) { return Holds(n.value) || (!n.children.empty() && !n.value.texts.empty()); });
}

bool PrefixCache::Write(Node* node) {
  if (disk_ == nullptr || !node->value.file.empty()) return false;
  std::string note;
  for (const TextNode* at : node->value.texts) {
    const std::vector<char> text = TextTree::Key(*at);
    AppendNumber(&note, text.size());
    AppendNumber(&note, at->value.more.size());
    note.append(text.data(), text.size());
    note.append(reinterpret_cast<const char*>(at->value.more.data()), at->value.more.size() * sizeof(TokenId));
  }
  const std::string path = (fs::path(options_.disk) / FileName(node->value.snapshot->tokens())).string();
  auto image = node->value.snapshot->MakeImage(note);
  if (!image.ok()) {
    Error(image.status(), "failed");
    return false;
  }
  disk_->Write(*image, path);
  const std::lock_guard lock(mutex_);
  node->value.file = path;
  node->value.file_bytes = (*image)->info().file_bytes;
  node->value.image = std::move(*image);
  node->value.disk_place = files_.insert(files_.begin(), node);
  disk_bytes_ += node->value.file_bytes;
  while (disk_bytes_ > options_.disk_bytes && files_.size() > 1) {
    Node* oldest = files_.back();
    DropFile(oldest, /*remove=*/true);
    metrics_.AddKvDisk("removed");
    PruneNode(oldest);
  }
  return true;
}

void PrefixCache::ReadFolder() {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, std::string>> files;
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.disk, error)) {
    const auto time = entry.last_write_time(error);
    if (entry.path().extension() == kSuffix) files.emplace_back(time, entry.path().string());
    // Left by a program that ended in the middle of a file.
    const bool unfinished = entry.path().filename().string().find(kSuffix + ".tmp.") != std::string::npos;
    if (unfinished && now - time > kUnfinished) fs::remove(entry.path(), error);
  }
  std::sort(files.begin(), files.end());
  for (const auto& [time, path] : files) {
    Result<SnapshotInfo> info = engine_.ReadSnapshotInfo(path);
    if (!info.ok()) {
      Error(info.status(), info.status().code() == StatusCode::kDataLoss ? "refused" : "foreign");
      continue;
    }
    Node* node = cuts_.Insert(info->tokens);
    if (!node->value.file.empty()) continue;
    node->value.file = path;
    node->value.file_bytes = info->file_bytes;
    node->value.disk_place = files_.insert(files_.begin(), node);
    disk_bytes_ += info->file_bytes;
    for (std::string_view note = info->note; !note.empty();) {
      size_t length = 0, count = 0;
      if (!TakeNumber(&note, &length) || !TakeNumber(&note, &count) || note.size() < length + count * sizeof(TokenId)) break;
      std::vector<TokenId> more(count);
      if (count > 0) std::memcpy(more.data(), note.data() + length, count * sizeof(TokenId));
      if (std::all_of(more.begin(), more.end(), [&](TokenId id) { return tokenizer_.IsValid(id); })) {
        AddText(node, note.substr(0, length), more);
      }
      note.remove_prefix(length + count * sizeof(TokenId));
    }
  }
}

void PrefixCache::SaveAndClear(const std::function<bool()>& until) {
  if (disk_ != nullptr) {
    const std::vector<Node*> latest_first(by_use_.begin(), by_use_.end());
    for (Node* node : latest_first) {
      if (until()) break;
      if (disk_bytes_ + node->value.snapshot->memory_bytes() > options_.disk_bytes) break;
      if (!Replaced(*node)) (void)Write(node);
    }
    disk_->Drain(until);
    Poll();
    disk_.reset();
  }
  const std::lock_guard lock(mutex_);
  by_use_.clear();
  files_.clear();
  cuts_.root().children.clear();
  texts_.root().children.clear();
}

void PrefixCache::Error(const Status& status, const char* event) {
  metrics_.AddKvDisk(event);
  if (options_.on_disk_error) options_.on_disk_error(status.message());
}

int64_t PrefixCache::num_in_memory() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(by_use_.size());
}

int64_t PrefixCache::num_on_disk() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(files_.size());
}

int64_t PrefixCache::disk_bytes() const {
  const std::lock_guard lock(mutex_);
  return disk_bytes_;
}

}  // namespace dsv4::server
