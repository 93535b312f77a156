#include "server/cache/prefix_cache.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "server/base/memory_reserve.h"
#include "server/base/text_key.h"

namespace dsv4::server {

namespace {

constexpr size_t kRelated = 16;       // tokens; BOS and a role are common to all prompts
constexpr size_t kWorthReading = 64;  // a file must save at least this many tokens
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
  disk_ = std::make_unique<KvFiles>(engine_, options_.disk_queue_bytes, [this] {
    if (options_.on_disk_done) options_.on_disk_done();
  });
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

// Marks every cached prefix on the path to `node` as used now.
void PrefixCache::Touch(Node* node) {
  for (Node* n = node; n != nullptr; n = n->parent) {
    if (n->value.snapshot != nullptr) by_use_.splice(by_use_.begin(), by_use_, n->value.place);
    if (!n->value.file.empty()) files_.splice(files_.begin(), files_, n->value.disk_place);
  }
}

void PrefixCache::Put(const std::string& tenant, std::shared_ptr<const KvSnapshot> snapshot,
                      std::span<const TokenId> ids, const Texts& texts) {
  if (!options_.enabled) return;
  const auto num_read = static_cast<size_t>(snapshot->num_tokens());
  const std::span<const TokenId> tokens = ids.first(num_read), more = ids.subspan(num_read);
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
  // If the encoder sees other special tokens than the model wrote, the text would not lead to the same ids.
  if (rendered && rendered->added == key->added && rendered->key != key->key) AddText(node, rendered->key, more);
}

void PrefixCache::AddText(Node* node, std::string_view key, std::span<const TokenId> more) {
  std::vector<TokenId> ids(more.begin(), more.end());
  node->value.texts.reserve(node->value.texts.size() + 1);
  TextNode* at = node->value.trees->texts.Insert({key.data(), key.size()});
  // Nothing below needs memory: either a text and its cached prefix refer to each other, or neither does.
  if (at->value.cut != nullptr && at->value.cut != node) std::erase(at->value.cut->value.texts, at);
  if (at->value.cut != node) node->value.texts.push_back(at);
  at->value = {.cut = node, .more = std::move(ids)};
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

// Returns true if the only path from `node` has two later cached prefixes and no prompt ever used this one.
bool PrefixCache::Replaced(const Node& node) {
  if (node.value.hits > 0) return false;
  int later = 0;
  for (const Node* n = &node; n->children.size() == 1;) {
    n = n->children.front().get();
    if (Holds(n->value) && ++later == 2) return true;
  }
  return false;
}

bool PrefixCache::Evict() {
  if (by_use_.empty()) return false;
  const auto replaced = std::find_if(by_use_.rbegin(), by_use_.rend(), [](const Node* n) { return Replaced(*n); });
  Node* node = replaced != by_use_.rend() ? *replaced : by_use_.back();
  // Writing may fail for lack of memory; the eviction then gives some back.
  if (replaced == by_use_.rend()) HasMemoryFor([&] { (void)Write(node); });
  metrics_.AddEviction();
  std::shared_ptr<const KvSnapshot> freed = node->value.snapshot;  // freed outside the lock
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
  node->value.place = by_use_.insert(by_use_.begin(), node);
  node->value.snapshot = std::move(snapshot);
  Tell(&CutWatcher::Kept, CutPlace::kMemory, *node);
}

void PrefixCache::DropSnapshot(Node* node) {
  Tell(&CutWatcher::Dropped, CutPlace::kMemory, *node);
  by_use_.erase(node->value.place);
  node->value.snapshot.reset();
}

// If there is no memory for the call, the watcher misses it and the cache continues.
void PrefixCache::Tell(Word word, CutPlace place, const Node& node) const {
  if (options_.watcher != nullptr) HasMemoryFor([&] { (options_.watcher->*word)(place, Tree::Key(node)); });
}

// A text is kept while its node, or a node below it, holds a cached prefix.
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
