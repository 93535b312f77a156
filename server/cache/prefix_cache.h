// KV snapshots of what was read and written lately ("cuts"), in a tree over token ids: a prompt goes on from the
// deepest cut on its way instead of from token 0. Exact: a cut has the very tokens that the prompt begins with.
//
// Each tenant (of several API keys one each; "" where all share) has a tree of its own: nobody's tokens, and no time
// that they save, reach another. Memory and disk are common.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/chat.h"
#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"
#include "dsv4/tokenizer.h"
#include "server/cache/cut_watcher.h"
#include "server/cache/kv_files.h"
#include "server/cache/radix_tree.h"
#include "server/metrics/metrics.h"

namespace dsv4::server {

struct PrefixCacheOptions {
  bool enabled = true;
  size_t interval = 4096;                         // tokens between two cuts of a long prompt
  std::string disk;                               // folder; "": none
  int64_t disk_bytes = 0;                         // files there, together
  int64_t disk_queue_bytes = int64_t{512} << 20;  // of memory, at most, for what waits to be written
  SpecialTokensInContent in_content = SpecialTokensInContent::kOfficial;  // of prompts
  std::function<void()> on_disk_done = {};                     // Poll has something to take; called by another thread
  std::function<void(const std::string&)> on_disk_error = {};  // one line; may be empty
  CutWatcher* watcher = nullptr;                               // of all tenants' cuts; null: none
};

// EncodePrompt and the gauges may be called by any thread, everything else by the engine's.
class PrefixCache {
 public:
  PrefixCache(Engine& engine, const Tokenizer& tokenizer, Metrics& metrics, const PrefixCacheOptions& options);

  const PrefixCacheOptions& options() const { return options_; }

  // What is known of a prompt.
  struct Known {
    size_t cut = 0;        // tokens of the deepest cut that leaves one to read; 0: none
    size_t common = 0;     // tokens that begin some conversation in the tree as well
    bool on_disk = false;  // that cut is not in memory
  };
  Known Look(const std::string& tenant, std::span<const TokenId> prompt) const;

  // Brings the cut that Look names from disk into memory: a read was begun, or one is under way (Look again after the
  // next Poll that takes something), or Find has all that there will be.
  enum class Fetched { kBegun, kUnderWay, kHere };
  Fetched Fetch(const std::string& tenant, std::span<const TokenId> prompt);

  // Takes what was written and read meanwhile. A file that is refused is forgotten.
  void Poll();

  struct Found {
    std::shared_ptr<const KvSnapshot> snapshot;  // null: none
    // memory, disk (where it came from); or why there is none: off, empty, unrelated, diverged (a kept conversation
    // goes another way), no_memory (for what is on disk)
    const char* what = "";
  };
  // The deepest cut in memory.
  Found Find(const std::string& tenant, std::span<const TokenId> prompt);

  // Whether a cut of exactly these tokens is kept.
  bool Has(const std::string& tenant, std::span<const TokenId> tokens) const;

  // Keeps a snapshot. `ids` are its tokens and those that were chosen but not read yet (at most a few).
  struct Texts {
    // the server encoded the prompt and the model wrote the rest: they say how it is split
    bool of_ids = false;
    // how the encoder writes the same conversation, where that may differ from what the model wrote (white space
    // around calls, the form of their arguments); "": none
    RenderedPrompt rendered = {};
  };
  void Put(const std::string& tenant, std::shared_ptr<const KvSnapshot> snapshot, std::span<const TokenId> ids,
           const Texts& texts);

  // The ids of a prompt. Where it repeats a kept conversation's text, added tokens in the same places, up to one (which
  // cannot be merged with text before it), these are that conversation's ids, whatever way the model split its words;
  // so its reply is found again.
  std::vector<TokenId> EncodePrompt(const std::string& tenant, const RenderedPrompt& prompt) const;

  // Frees the cut that is worth least: the oldest of those that later cuts of their conversation have replaced and that
  // nobody ever came back to, else the one that was not used for the longest time (a use counts for all cuts on the
  // way, so leaves go before what they share). With a disk, the latter are queued to be written there. False: there is
  // none.
  bool Evict();

  // Forgets what is in memory without writing it: the device that holds it has failed. What is on disk stays.
  void DropMemory();

  // Writes what Evict would write, the latest first, until `until` has passed; then forgets all.
  void SaveAndClear(const std::function<bool()>& until);

  int64_t num_in_memory() const;
  int64_t num_on_disk() const;
  int64_t disk_bytes() const;

 private:
  struct Cut;
  struct Text;
  using Node = RadixNode<TokenId, Cut>;
  using TextNode = RadixNode<char, Text>;
  using Tree = RadixTree<TokenId, Cut>;
  using TextTree = RadixTree<char, Text>;

  struct Trees;
  struct Cut {
    Trees* trees = nullptr;  // where there is a snapshot or a file
    std::shared_ptr<const KvSnapshot> snapshot;
    std::string file;  // "": none
    int64_t file_bytes = 0;
    std::shared_ptr<const SnapshotImage> image;  // what the file will hold, while it waits to be written
    bool is_read = false;                        // the file is being read
    bool from_disk = false;                      // the snapshot came from there, and nobody has used it
    int64_t hits = 0;
    std::list<Node*>::iterator place, disk_place;  // in by_use_ where there is a snapshot, in files_ where a file
    std::vector<TextNode*> texts;
  };
  // A text that stands for the tokens of `cut` and `more`.
  struct Text {
    Node* cut = nullptr;
    std::vector<TokenId> more;
  };
  struct Trees {
    std::string tenant;
    Tree cuts;
    TextTree texts;  // by TextKey
  };
  struct Stranger {  // a file in the folder that is of no use to this server
    std::string path;
    int64_t bytes = 0;
  };

  static bool Holds(const Cut& cut) { return cut.snapshot != nullptr || !cut.file.empty(); }
  static bool Replaced(const Node& node);
  Trees& TreesOf(const std::string& tenant);
  const Trees* FindTrees(const std::string& tenant) const;
  const Node* Deepest(const std::string& tenant, std::span<const TokenId> prompt, size_t* common,
                      bool in_memory_only) const;
  Node* NodeOfFile(const std::string& path);
  bool Restore(Node* node, const SnapshotImage& image);
  void Touch(Node* node);
  void AddText(Node* node, std::string_view key, std::span<const TokenId> more);
  void AddSnapshot(Node* node, std::shared_ptr<const KvSnapshot> snapshot);
  void DropSnapshot(Node* node);
  using Word = void (CutWatcher::*)(CutPlace, std::span<const TokenId>);
  void Tell(Word word, CutPlace place, const Node& node) const;
  void DropFile(Node* node, bool remove);
  void ForgetFile(Node* node);
  void PruneNode(Node* node);
  bool Write(Node* node);
  std::string NoteOf(const Node& node) const;
  void FitFolder();
  void ReadFolder();
  bool AddFile(const std::string& path);
  void ReadTexts(Node* node, std::string_view note);
  void Error(const Status& status, const char* event);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  Metrics& metrics_;
  const PrefixCacheOptions options_;

  mutable std::mutex mutex_;            // of all below; the engine's thread, which alone changes them, reads without it
  std::map<std::string, Trees> trees_;  // by tenant
  std::list<Node*> by_use_, files_;     // the one used last first
  std::list<Stranger> strangers_;       // the oldest last
  int64_t file_bytes_ = 0, stranger_bytes_ = 0;
  std::list<KvFiles::Done> finished_;  // what disk_ has done, to look at
  std::unique_ptr<KvFiles> disk_;      // null: none
};

}  // namespace dsv4::server
