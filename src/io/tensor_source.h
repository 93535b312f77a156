// TensorSource: all tensors of a checkpoint folder by name, mapped, nothing copied.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/thread_pool.h"
#include "dsv4/status.h"
#include "io/name_table.h"
#include "io/safetensors.h"

namespace dsv4 {

class TensorSource {
 public:
  // Opens the checkpoint in `dir`: the shards that model.safetensors.index.json names; if there is no index,
  // model.safetensors; otherwise every *.safetensors. Checks each header, that no name is in two shards, and that the
  // index is correct.
  static Result<std::shared_ptr<const TensorSource>> Open(const std::string& dir);

  // Returns these tensors together with the tensors of the checkpoint in `dir`. A name may not be in both. where() is
  // unchanged.
  Result<std::shared_ptr<const TensorSource>> With(const std::string& dir) const;

  // Opens one file.
  static Result<std::shared_ptr<const TensorSource>> OpenFile(const std::string& path);

  std::span<const FileTensor> tensors() const { return tensors_; }
  const FileTensor* Find(std::string_view name) const;  // null: absent
  const std::string& FileOf(const FileTensor& tensor) const;
  std::vector<std::string> files() const;
  const std::vector<std::shared_ptr<const MappedFile>>& maps() const { return files_; }
  const std::string& where() const { return where_; }  // the folder or file that was opened
  int64_t num_bytes() const { return num_bytes_; }     // of all tensors

  // Sets how the files will be read. Scattered: small parts at many places, without read-ahead, which would fetch
  // megabytes around each (the default of a new source). Otherwise: as the kernel does by default.
  void ExpectScattered(bool scattered) const;
  // Starts reading all bytes of `tensor`; useful before reading a whole tensor of a scattered source.
  void WillRead(const FileTensor& tensor) const;

  // Reads the files into memory (page cache) and maps them into this process, with the threads of `pool` (may be null).
  // If the threads are spread over several memory nodes, each thread reads the rows that it will compute with: an equal
  // share of every tensor, in order. `progress(done, total)` is in bytes, on the calling thread. If it returns false,
  // this function stops and returns false.
  bool Preload(ThreadPool* pool, const std::function<bool(int64_t, int64_t)>& progress) const;

 private:
  explicit TensorSource(std::string where) : where_(std::move(where)), table_(0) {}
  TensorSource(const TensorSource&) = default;
  Status AddFolder(const std::string& dir);
  Status AddShards(const std::string& dir, const std::string& index_path);
  Status AddFile(const std::string& path);
  Status BuildTable();
  Status CheckIndex(const std::string& dir,
                    std::span<const std::pair<std::string_view, std::string_view>> weight_map) const;

  std::string where_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<FileTensor> tensors_;
  std::vector<std::shared_ptr<const std::deque<std::string>>> unescaped_;  // names that the files write with escapes
  NameTable table_;
  int64_t num_bytes_ = 0;
};

}  // namespace dsv4
