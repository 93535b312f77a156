// KV snapshots of recent prompts and replies ("cached prefixes", in code: cuts), in a tree over token ids. A prompt
// continues from the longest cached prefix on its path instead of from token 0. Exact: all tokens of the cached prefix
// equal the first tokens of the prompt.
//
// Each tenant has a tree of its own (one per API key if there are several; "" if all share). So no client sees
// another's tokens, or the time that they save. Memory and disk are shared.
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
  size_t interval = 4096;                         // tokens between two cached prefixes of a long prompt
  std::string disk;                               // folder; "": none
  int64_t disk_bytes = 0;                         // limit for all files in the folder
  int64_t disk_queue_bytes = int64_t{512} << 20;  // memory limit for snapshots that wait to be written
  SpecialTokensInContent in_content = SpecialTokensInContent::kOfficial;  // in prompts
  std::function<void()> on_disk_done = {};                     // called on another thread when Poll has a result
  std::function<void(const std::string&)> on_disk_error = {};  // gets one line; may be empty
  CutWatcher* watcher = nullptr;                               // for the prefixes of all tenants; null: none
};

// Any thread may call EncodePrompt and the gauges. Only the engine's thread may call everything else.
class PrefixCache {
 public:
  PrefixCache(Engine& engine, const Tokenizer& tokenizer, Metrics& metrics, const PrefixCacheOptions& options);

  const PrefixCacheOptions& options() const { return options_; }

  // Knowledge of the cache about a prompt.
  struct Known {
    size_t cut = 0;        // tokens of the longest cached prefix that leaves at least one token to compute; 0: none
    size_t common = 0;     // tokens at the start that a conversation in the tree also has
    bool on_disk = false;  // that prefix is not in memory
  };
  Known Look(const std::string& tenant, std::span<const TokenId> prompt) const;

  // Loads the prefix that Look found from disk into memory. kBegun: a read has begun. kUnderWay: a read is pending;
  // call Look again after the next Poll with a result. kHere: Find returns all that there will be.
  enum class Fetched { kBegun, kUnderWay, kHere };
  Fetched Fetch(const std::string& tenant, std::span<const TokenId> prompt);

  // Handles the results of finished writes and reads. A file that is refused is forgotten.
  void Poll();

  struct Found {
    std::shared_ptr<const KvSnapshot> snapshot;  // null: none
    // Where the snapshot was: memory or disk. If there is none, why: off, empty, unrelated, diverged (a cached
    // conversation has the same beginning but continues differently), no_memory (for a prefix on disk).
    const char* what = "";
  };
  // Returns the longest cached prefix in memory.
  Found Find(const std::string& tenant, std::span<const TokenId> prompt);

  // Returns true if a prefix of exactly these tokens is kept.
  bool Has(const std::string& tenant, std::span<const TokenId> tokens) const;

  // Keeps a snapshot. `ids` are its tokens, followed by tokens that were chosen but not computed yet (a few at most).
  struct Texts {
    // the server encoded the prompt and the model wrote the rest, so `ids` show how the text splits into tokens
    bool of_ids = false;
    // how the encoder writes the same conversation, if that may differ from the model's text (white space around calls,
    // the form of their arguments); "": not set
    RenderedPrompt rendered = {};
  };
  void Put(const std::string& tenant, std::shared_ptr<const KvSnapshot> snapshot, std::span<const TokenId> ids,
           const Texts& texts);

  // Returns the ids of a prompt. If it repeats the text of a kept conversation, with added tokens in the same
  // positions, that part gets the ids of the conversation, however the model split its words; so its cached reply is
  // found again. The part ends before an added token, which cannot merge with the text before it.
  std::vector<TokenId> EncodePrompt(const std::string& tenant, const RenderedPrompt& prompt) const;

  // Removes the least useful cached prefix. First the oldest prefix that later ones of its conversation have
  // replaced and that no prompt ever used. Otherwise the least recently used one; a use counts for all prefixes on the
  // path, so leaves go before the prefixes that they share. With a disk, a prefix of the second kind is queued to be
  // written there. Returns false if there is none.
  bool Evict();

  // Forgets the prefixes in memory without writing them, because the device that holds them has failed. Prefixes on
  // disk stay.
  void DropMemory();

  // Writes the prefixes that Evict would write, most recently used first, until `until` returns true. Then forgets all.
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
    Trees* trees = nullptr;  // set if there is a snapshot or a file
    std::shared_ptr<const KvSnapshot> snapshot;
    std::string file;  // "": none
    int64_t file_bytes = 0;
    std::shared_ptr<const SnapshotImage> image;  // the contents of the file, while it waits to be written
    bool is_read = false;                        // the file is being read
    bool from_disk = false;                      // the snapshot came from disk and has not been used yet
    int64_t hits = 0;
    std::list<Node*>::iterator place,
        disk_place;  // place: in by_use_ if there is a snapshot; disk_place: in files_ if there is a file
    std::vector<TextNode*> texts;
  };
  // A text that stands for the tokens of `cut` followed by `more`.
  struct Text {
    Node* cut = nullptr;
    std::vector<TokenId> more;
  };
  struct Trees {
    std::string tenant;
    Tree cuts;
    TextTree texts;  // by TextKey
  };
  struct Stranger {  // a file in the folder that this server cannot use
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

  mutable std::mutex mutex_;  // guards all members below; only the engine's thread changes them, so it reads without it
  std::map<std::string, Trees> trees_;  // by tenant
  std::list<Node*> by_use_, files_;     // most recently used first
  std::list<Stranger> strangers_;       // oldest last
  int64_t file_bytes_ = 0, stranger_bytes_ = 0;
  std::list<KvFiles::Done> finished_;  // results of disk_ that Poll has not handled yet
  std::unique_ptr<KvFiles> disk_;      // null: none
};

}  // namespace dsv4::server
