#include "prefix_cache.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "text_key.h"

namespace dsv4::server {

namespace fs = std::filesystem;

namespace {

constexpr size_t kRelated = 16;  // tokens: BOS and a role are common to all
constexpr size_t kWorthReading = 64;  // tokens that a file must save
const std::string kSuffix = ".dsv4kv";
// What a file's note begins with: the form of its texts, and the promise that they were encoded here.
constexpr std::string_view kNoteMark = "dsv4 tenant, texts 1\n";
constexpr std::chrono::minutes kUnfinished{10};  // what is younger may be another process's

// A name for these tokens of this tenant (FNV-1a, twice 64 bits); what the file holds decides.
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

PrefixCache::PrefixCache(Engine& engine, const Tokenizer& tokenizer, Metrics& metrics,
                         const PrefixCacheOptions& options)
    : engine_(engine), tokenizer_(tokenizer), metrics_(metrics), options_(options) {
  if (!options_.enabled || options_.disk.empty()) return;
  if (const auto fingerprint = engine_.SnapshotFingerprint(); !fingerprint.ok()) {
    Error(fingerprint.status(), "failed");
    return;
  }
  ReadFolder();
  disk_ = std::make_unique<KvFiles>(engine_, options_.disk_queue_bytes,
                                    [this] { if (options_.on_disk_done) options_.on_disk_done(); });
  FitFolder();
}

PrefixCache::Trees& PrefixCache::TreesOf(const std::string& tenant) {
  Trees& trees = trees_[tenant];
  trees.tenant = tenant;
  return trees;
}

const PrefixCache::Trees* PrefixCache::FindTrees(const std::string& tenant) const {
  const auto at = trees_.find(tenant);
  return at == trees_.end() ? nullptr : &at->second;
}

const PrefixCache::Node* PrefixCache::Deepest(const std::string& tenant, std::span<const TokenId> prompt,
                                              size_t* common, bool in_memory_only) const {
  *common = 0;
  const Trees* trees = FindTrees(tenant);
  if (trees == nullptr) return nullptr;
  const Node *deepest = nullptr, *in_memory = nullptr;
  *common = trees->cuts.Walk(prompt, [&](const Node& node) {
    if (!Holds(node.value) || node.depth == prompt.size()) return;
    deepest = &node;
    if (node.value.snapshot != nullptr) in_memory = &node;
  });
  const bool worth_it = deepest != nullptr &&
                        deepest->depth >= (in_memory == nullptr ? 0 : in_memory->depth) + kWorthReading;
  return worth_it && !in_memory_only ? deepest : in_memory;
}

PrefixCache::Known PrefixCache::Look(const std::string& tenant, std::span<const TokenId> prompt) const {
  Known known;
  const Node* node = Deepest(tenant, prompt, &known.common, /*in_memory_only=*/false);
  known.cut = node == nullptr ? 0 : node->depth;
  known.on_disk = node != nullptr && node->value.snapshot == nullptr;
  return known;
}

bool PrefixCache::Has(const std::string& tenant, std::span<const TokenId> tokens) const {
  const Trees* trees = FindTrees(tenant);
  bool has = false;
  if (trees == nullptr) return has;
  trees->cuts.Walk(tokens,
                   [&](const Node& node) { has = node.depth == tokens.size() && node.value.snapshot != nullptr; });
  return has;
}

PrefixCache::Found PrefixCache::Find(const std::string& tenant, std::span<const TokenId> prompt) {
  if (!options_.enabled) return {.snapshot = nullptr, .what = "off"};
  size_t common = 0;
  auto* node = const_cast<Node*>(Deepest(tenant, prompt, &common, /*in_memory_only=*/true));
  if (node == nullptr) {
    const Trees* trees = FindTrees(tenant);
    if (trees == nullptr || trees->cuts.root().children.empty()) return {.snapshot = nullptr, .what = "empty"};
    if (Deepest(tenant, prompt, &common, /*in_memory_only=*/false) != nullptr)
      return {.snapshot = nullptr, .what = "no_memory"};
    return {.snapshot = nullptr, .what = common >= kRelated ? "diverged" : "unrelated"};
  }
  const std::lock_guard lock(mutex_);
  ++node->value.hits;
  Touch(node);
  return {.snapshot = node->value.snapshot, .what = std::exchange(node->value.from_disk, false) ? "disk" : "memory"};
}

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
  while (!finished_.empty()) {  // where memory runs out, those behind it wait for the next time
    const KvFiles::Done done = std::move(finished_.front());
    finished_.pop_front();
    const bool written = done.kind == KvFiles::Done::Kind::kWritten;
    Node* node = NodeOfFile(done.path);
    const bool current = node != nullptr && (written ? node->value.image == done.image : node->value.is_read);
    if (current && !written) node->value.is_read = false;
    if (written && done.status.ok()) metrics_.AddKvDisk("written");
    if (!done.status.ok() && (written || current)) Error(done.status, written ? "failed" : "refused");
    if (!current) continue;  // removed meanwhile
    const bool strange = !written && done.status.ok() && done.image->info().tokens != Tree::Key(*node);
    if (strange) Error(DataLoss("'" + done.path + "': holds other tokens than its name says"), "refused");
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
  AddSnapshot(node, std::move(*loaded));
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

void PrefixCache::Put(const std::string& tenant, std::shared_ptr<const KvSnapshot> snapshot,
                      std::span<const TokenId> ids, const Texts& texts) {
  if (!options_.enabled) return;
  const std::vector<TokenId>& tokens = snapshot->tokens();
  const std::span<const TokenId> more = ids.subspan(tokens.size());
  const std::optional<TextKey> key = texts.of_ids ? KeyOfIds(tokenizer_, ids) : std::nullopt;
  std::optional<TextKey> rendered;
  if (key && !texts.rendered.text.empty()) {
    rendered = KeyOfText(tokenizer_, texts.rendered.text, EncodeOptionsOf(texts.rendered, options_.in_content));
  }
  const std::lock_guard lock(mutex_);
  Trees& trees = TreesOf(tenant);
  Node* node = trees.cuts.Insert(tokens);
  node->value.trees = &trees;
  if (node->value.snapshot == nullptr) AddSnapshot(node, std::move(snapshot));
  Touch(node);
  if (key) AddText(node, key->key, more);
  // Where the encoder sees other special tokens than the model wrote, it would not lead to the same ids.
  if (rendered && rendered->added == key->added && rendered->key != key->key) AddText(node, rendered->key, more);
}

void PrefixCache::AddText(Node* node, std::string_view key, std::span<const TokenId> more) {
  TextNode* at = node->value.trees->texts.Insert({key.data(), key.size()});
  if (at->value.cut != nullptr && at->value.cut != node) std::erase(at->value.cut->value.texts, at);
  if (at->value.cut != node) node->value.texts.push_back(at);
  at->value = {.cut = node, .more = {more.begin(), more.end()}};
}

std::vector<TokenId> PrefixCache::EncodePrompt(const std::string& tenant, const RenderedPrompt& prompt) const {
  const EncodeOptions options = EncodeOptionsOf(prompt, options_.in_content);
  const TextKey key = KeyOfText(tokenizer_, prompt.text, options);
  std::vector<TokenId> ids;
  size_t known = 0;  // bytes of the text
  {
    const std::lock_guard lock(mutex_);
    const TextNode* best = nullptr;
    const auto visit = [&](const TextNode& node) {
      if (node.value.cut == nullptr) return;
      const auto seam = std::lower_bound(key.seams.begin(), key.seams.end(), node.depth,
                                         [](const TextKey::Seam& s, size_t depth) { return s.key < depth; });
      if (seam == key.seams.end() || seam->key != node.depth) return;
      best = &node;
      known = seam->text;
    };
    if (const Trees* trees = FindTrees(tenant)) trees->texts.Walk({key.key.data(), key.key.size()}, visit);
    if (best != nullptr) {
      ids = Tree::Key(*best->value.cut);
      ids.insert(ids.end(), best->value.more.begin(), best->value.more.end());
    }
  }
  std::vector<TextRange> literal;
  for (const TextRange& range : options.literal) {
    if (range.begin >= known) literal.push_back({range.begin - known, range.end - known});
  }
  const std::vector<TokenId> rest = tokenizer_.Encode(std::string_view(prompt.text).substr(known),
                                                      {.literal = literal});
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

void PrefixCache::DropMemory() {
  const std::lock_guard lock(mutex_);
  while (!by_use_.empty()) {
    Node* node = by_use_.back();
    DropSnapshot(node);
    PruneNode(node);
  }
}

void PrefixCache::AddSnapshot(Node* node, std::shared_ptr<const KvSnapshot> snapshot) {
  node->value.snapshot = std::move(snapshot);
  node->value.place = by_use_.insert(by_use_.begin(), node);
  if (options_.watcher != nullptr) options_.watcher->Kept(CutPlace::kMemory, node->value.snapshot->tokens());
}

void PrefixCache::DropSnapshot(Node* node) {
  if (options_.watcher != nullptr) options_.watcher->Dropped(CutPlace::kMemory, node->value.snapshot->tokens());
  by_use_.erase(node->value.place);
  node->value.snapshot.reset();
}

void PrefixCache::DropFile(Node* node, bool remove) {
  if (remove && disk_ != nullptr) disk_->Remove(node->value.file);
  if (options_.watcher != nullptr) options_.watcher->Dropped(CutPlace::kDisk, Tree::Key(*node));
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

// Texts are kept as long as there are cuts at or behind their node.
void PrefixCache::PruneNode(Node* node) {
  for (Node* n = node; n->parent != nullptr && !Holds(n->value) && n->children.size() == (n == node ? 0u : 1u);
       n = n->parent) {
    for (TextNode* text : std::exchange(n->value.texts, {})) {
      text->value = {};
      TextTree::Prune(text, [](const TextNode& t) { return t.value.cut != nullptr; });
    }
  }
  Tree::Prune(node, [](const Node& n) { return Holds(n.value) || (!n.children.empty() && !n.value.texts.empty()); });
}

// The tenant and its texts: what a file needs beyond its tokens.
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
  const std::string name = FileName(node->value.trees->tenant, node->value.snapshot->tokens());
  const std::string path = (fs::path(options_.disk) / name).string();
  auto image = node->value.snapshot->MakeImage(NoteOf(*node));
  if (!image.ok()) {
    Error(image.status(), "failed");
    return false;
  }
  disk_->Write(*image, path);
  const std::lock_guard lock(mutex_);
  std::erase_if(strangers_, [&](const Stranger& s) {  // it is written over
    if (s.path != path) return false;
    stranger_bytes_ -= s.bytes;
    return true;
  });
  node->value.file = path;
  node->value.file_bytes = (*image)->info().file_bytes;
  node->value.image = std::move(*image);
  node->value.disk_place = files_.insert(files_.begin(), node);
  file_bytes_ += node->value.file_bytes;
  if (options_.watcher != nullptr) options_.watcher->Kept(CutPlace::kDisk, node->value.snapshot->tokens());
  FitFolder();
  return true;
}

// Removes files until the folder keeps its limit: first those that are of no use here.
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
    const auto time = entry.last_write_time(error);
    if (entry.path().extension() == kSuffix) files.emplace_back(time, entry.path().string());
    // Left by a program that ended in the middle of a file.
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

// False: it stays in the folder unused.
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
    Error(Unsupported("'" + path + "': of an older server, which did not say whose it is"), "foreign");
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
  if (options_.watcher != nullptr) options_.watcher->Kept(CutPlace::kDisk, info->tokens);
  ReadTexts(node, note);
  return true;
}

void PrefixCache::ReadTexts(Node* node, std::string_view note) {
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

void PrefixCache::SaveAndClear(const std::function<bool()>& until) {
  if (disk_ != nullptr) {
    const std::vector<Node*> latest_first(by_use_.begin(), by_use_.end());
    for (Node* node : latest_first) {
      if (until()) break;
      if (file_bytes_ + node->value.snapshot->memory_bytes() > options_.disk_bytes) break;
      if (!Replaced(*node)) (void)Write(node);
    }
    disk_->Drain(until);
    Poll();
    disk_.reset();
  }
  const std::lock_guard lock(mutex_);
  by_use_.clear();
  files_.clear();
  trees_.clear();
  if (options_.watcher != nullptr) options_.watcher->Cleared();
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
  return file_bytes_ + stranger_bytes_;
}

}  // namespace dsv4::server
