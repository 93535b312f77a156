#include "io/tensor_source.h"

#include <algorithm>
#include <atomic>
#include <filesystem>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/str.h"
#include "io/json_reader.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int64_t kMaxIndexBytes = int64_t{512} << 20;
constexpr int64_t kReadBlock = int64_t{16} << 20;  // bytes that Preload reads at a time: whole huge pages
constexpr std::string_view kIndexName = "model.safetensors.index.json";

using WeightMap = std::vector<std::pair<std::string_view, std::string_view>>;  // tensor, shard

const int64_t kPage = ::sysconf(_SC_PAGESIZE);

// Gives the kernel a hint about bytes [begin, begin + length) of the file.
bool Advise(const MappedFile& file, int64_t begin, int64_t length, int advice) {
  const int64_t page_begin = begin / kPage * kPage;
  return ::madvise(const_cast<uint8_t*>(file.data()) + page_begin, static_cast<size_t>(begin + length - page_begin),
                   advice) == 0;
}

#if defined(MADV_HUGEPAGE) && defined(MADV_POPULATE_READ)
constexpr int64_t kHugePage = int64_t{2} << 20;

// Removes partly cached huge pages of [begin, begin + length) from the page cache. Reading headers and scales caches
// small pages, which would prevent a huge one.
void DropParts(const MappedFile& file, int fd, int64_t begin, int64_t length) {
  std::vector<unsigned char> resident(static_cast<size_t>(CeilDiv(length, kPage)));
  if (::mincore(const_cast<uint8_t*>(file.data()) + begin, static_cast<size_t>(length), resident.data()) != 0) return;
  const int64_t pages = kHugePage / kPage;
  for (int64_t first = 0; first < static_cast<int64_t>(resident.size()); first += pages) {
    const int64_t last = std::min(first + pages, static_cast<int64_t>(resident.size()));
    const int64_t there = std::count_if(resident.begin() + first, resident.begin() + last,
                                        [](unsigned char page) { return page & 1; });
    if (there == 0 || there == last - first) continue;
    Advise(file, begin + first * kPage, (last - first) * kPage, MADV_DONTNEED);
    ::posix_fadvise(fd, static_cast<off_t>(begin + first * kPage), static_cast<off_t>((last - first) * kPage),
                    POSIX_FADV_DONTNEED);
  }
}
#endif

// Reads bytes [begin, begin + length) of the file into memory and maps them. Uses huge pages if the file system's cache
// supports them (ext4 and XFS of recent kernels): the processor then reads a third faster. Otherwise touches every
// page.
void Bring(const MappedFile& file, int fd, int64_t begin, int64_t length) {
#if defined(MADV_HUGEPAGE) && defined(MADV_POPULATE_READ)
  if (fd >= 0 && begin % kHugePage == 0) DropParts(file, fd, begin, length);
  if (Advise(file, begin, length, MADV_POPULATE_READ)) return;
#else
  static_cast<void>(fd);
#endif
  Advise(file, begin, length, MADV_WILLNEED);
  for (int64_t i = begin; i < begin + length; i += kPage)
    static_cast<void>(*static_cast<const volatile uint8_t*>(file.data() + i));
  static_cast<void>(*static_cast<const volatile uint8_t*>(file.data() + begin + length - 1));
}

// Closes the descriptors that it holds.
struct Descriptors {
  std::vector<int> fds;
  ~Descriptors() {
    for (const int fd : fds) {
      if (fd >= 0) ::close(fd);
    }
  }
};

// {"metadata": ..., "weight_map": {"tensor": "shard", ...}}
Status ReadIndex(std::string_view text, const std::string& path, WeightMap& map, std::deque<std::string>& unescaped) {
  JsonReader reader(text);
  const auto broken = [&] { return DataLoss(StrCat("'", path, "': not a valid index near byte ", reader.offset())); };
  bool found = false;
  if (!reader.Consume('{')) return broken();
  do {
    std::string_view field;
    if (!reader.ReadString(field, unescaped) || !reader.Consume(':')) return broken();
    if (field != "weight_map") {
      if (!reader.SkipValue()) return broken();
      continue;
    }
    if (std::exchange(found, true)) return DataLoss(StrCat("'", path, "': weight_map occurs twice"));
    if (!reader.Consume('{')) return broken();
    if (reader.Consume('}')) continue;
    do {
      std::string_view name, shard;
      if (!reader.ReadString(name, unescaped) || !reader.Consume(':') || !reader.ReadString(shard, unescaped)) {
        return broken();
      }
      map.emplace_back(name, shard);
    } while (reader.Consume(','));
    if (!reader.Consume('}')) return broken();
  } while (reader.Consume(','));
  if (!reader.Consume('}') || !reader.AtEnd()) return broken();
  if (!found || map.empty()) return DataLoss(StrCat("'", path, "': no weight_map, or an empty one"));
  return {};
}

// The shards that the map names, without duplicates, sorted.
Result<std::vector<std::string>> ShardsOf(const WeightMap& map, const std::string& index_path) {
  std::vector<std::string_view> names;
  for (const auto& [tensor, shard] : map) {
    if (names.empty() || names.back() != shard) names.push_back(shard);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<std::string> shards;
  for (const std::string_view name : names) {
    const bool plain = !name.empty() && name != "." && name != ".." &&
                       std::all_of(name.begin(), name.end(), [](char c) { return c >= 0x20 && c < 0x7f && c != '/'; });
    if (!plain) return DataLoss(StrCat("'", index_path, "': a shard name that is not a plain file name"));
    shards.emplace_back(name);
  }
  return shards;
}

}  // namespace

Result<std::shared_ptr<const TensorSource>> TensorSource::Open(const std::string& dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) return NotFound(StrCat("no model folder '", dir, "'"));
  const std::shared_ptr<TensorSource> source(new TensorSource(dir));
  DSV4_RETURN_IF_ERROR(source->AddFolder(dir));
  return std::shared_ptr<const TensorSource>(source);
}

Result<std::shared_ptr<const TensorSource>> TensorSource::With(const std::string& dir) const {
  const std::shared_ptr<TensorSource> both(new TensorSource(*this));
  DSV4_RETURN_IF_ERROR(both->AddFolder(dir));
  return std::shared_ptr<const TensorSource>(both);
}

Status TensorSource::AddFolder(const std::string& dir) {
  const std::string index_path = StrCat(dir, "/", kIndexName), single_path = StrCat(dir, "/model.safetensors");
  if (FileExists(index_path)) return AddShards(dir, index_path);
  std::vector<std::string> paths;
  if (FileExists(single_path)) {
    paths.push_back(single_path);
  } else {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
    }
    std::sort(paths.begin(), paths.end());
  }
  if (paths.empty())
    return NotFound(StrCat("no *.safetensors file in '", dir, "'; give the folder that holds a checkpoint's weights"));
  for (const std::string& path : paths) DSV4_RETURN_IF_ERROR(AddFile(path));
  return BuildTable();
}

Status TensorSource::AddShards(const std::string& dir, const std::string& index_path) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(index_path, kMaxIndexBytes));
  WeightMap map;
  std::deque<std::string> unescaped;
  DSV4_RETURN_IF_ERROR(ReadIndex(text, index_path, map, unescaped));
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> shards, ShardsOf(map, index_path));
  for (const std::string& shard : shards) {
    const std::string path = StrCat(dir, "/", shard);
    if (!FileExists(path))
      return NotFound(StrCat("'", index_path, "' names the shard '", shard, "', which is missing"));
    DSV4_RETURN_IF_ERROR(AddFile(path));
  }
  DSV4_RETURN_IF_ERROR(BuildTable());
  return CheckIndex(dir, map);
}

Result<std::shared_ptr<const TensorSource>> TensorSource::OpenFile(const std::string& path) {
  const std::shared_ptr<TensorSource> source(new TensorSource(path));
  DSV4_RETURN_IF_ERROR(source->AddFile(path));
  DSV4_RETURN_IF_ERROR(source->BuildTable());
  return std::shared_ptr<const TensorSource>(source);
}

Status TensorSource::AddFile(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  DSV4_ASSIGN_OR_RETURN(SafetensorsHeader header,
                        ParseSafetensors({file->data(), static_cast<size_t>(file->size())}, path));
  for (FileTensor& tensor : header.tensors) {
    tensor.file = static_cast<int32_t>(files_.size());
    num_bytes_ += tensor.num_bytes;
  }
  tensors_.insert(tensors_.end(), header.tensors.begin(), header.tensors.end());
  unescaped_.push_back(std::make_shared<const std::deque<std::string>>(std::move(header.unescaped)));
  Advise(*file, 0, file->size(), MADV_RANDOM);
  files_.push_back(std::move(file));
  return {};
}

Status TensorSource::BuildTable() {
  table_ = NameTable(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const int32_t other = table_.Insert(tensors_[i].name, static_cast<int32_t>(i));
    if (other >= 0) {
      return DataLoss(StrCat("tensor '", tensors_[i].name, "' is in both '",
                             FileOf(tensors_[static_cast<size_t>(other)]), "' and '", FileOf(tensors_[i]), "'"));
    }
  }
  return {};
}

Status TensorSource::CheckIndex(const std::string& dir,
                                std::span<const std::pair<std::string_view, std::string_view>> weight_map) const {
  std::vector<bool> seen(tensors_.size());
  for (const auto& [name, shard] : weight_map) {
    const int32_t id = table_.Find(name);
    if (id < 0) {
      return DataLoss(StrCat("'", dir, "/", kIndexName, "' places tensor '", name.substr(0, 200), "' in '", shard,
                             "', which lacks it"));
    }
    const auto i = static_cast<size_t>(id);
    if (FileOf(tensors_[i]) != StrCat(dir, "/", shard)) {
      return DataLoss(StrCat("'", dir, "/", kIndexName, "' places tensor '", name, "' in '", shard, "', but it is in '",
                             FileOf(tensors_[i]), "'"));
    }
    if (seen[i]) return DataLoss(StrCat("'", dir, "/", kIndexName, "' lists tensor '", name, "' twice"));
    seen[i] = true;
  }
  return {};
}

const FileTensor* TensorSource::Find(std::string_view name) const {
  const int32_t id = table_.Find(name);
  return id < 0 ? nullptr : &tensors_[static_cast<size_t>(id)];
}

const std::string& TensorSource::FileOf(const FileTensor& tensor) const {
  return files_[static_cast<size_t>(tensor.file)]->path();
}

std::vector<std::string> TensorSource::files() const {
  std::vector<std::string> paths;
  for (const auto& file : files_) paths.push_back(file->path());
  return paths;
}

void TensorSource::ExpectScattered(bool scattered) const {
  for (const auto& file : files_) {
    Advise(*file, 0, file->size(), scattered ? MADV_RANDOM : MADV_NORMAL);
  }
}

void TensorSource::WillRead(const FileTensor& tensor) const {
  const MappedFile& file = *files_[static_cast<size_t>(tensor.file)];
  Advise(file, tensor.data - file.data(), tensor.num_bytes, MADV_WILLNEED);
}

bool TensorSource::Preload(ThreadPool* pool, const std::function<bool(int64_t, int64_t)>& progress) const {
  const int64_t threads = pool == nullptr ? 1 : pool->num_threads();
  const bool by_rows = pool != nullptr && pool->num_nodes() > 1;
  int64_t total = by_rows ? num_bytes_ : 0, reported = 0;
  Descriptors open;
  for (const auto& file : files_) {
    total += by_rows ? 0 : file->size();
    open.fds.push_back(::open(file->path().c_str(), O_RDONLY | O_CLOEXEC));
#ifdef MADV_HUGEPAGE
    Advise(*file, 0, file->size(), MADV_HUGEPAGE);
#endif
  }
  std::atomic<int64_t> done{0};
  std::atomic<bool> stop{false};
  ParallelFor(pool, threads, /*grain=*/1, [&](int64_t begin, int64_t end, int thread) {
    const auto bring = [&](size_t file, int64_t at, int64_t length) {
      Bring(*files_[file], open.fds[file], at, length);
      const int64_t now = done.fetch_add(length, std::memory_order_relaxed) + length;
      if (thread == 0 && !progress(reported = now, total)) stop.store(true);
      return !stop.load(std::memory_order_relaxed);
    };
    for (int64_t part = begin; part < end; ++part) {
      if (by_rows) {
        for (const FileTensor& tensor : tensors_) {
          const auto file = static_cast<size_t>(tensor.file);
          const int64_t first = tensor.num_bytes * part / threads, last = tensor.num_bytes * (part + 1) / threads;
          if (first < last && !bring(file, tensor.data - files_[file]->data() + first, last - first)) return;
        }
        continue;
      }
      for (size_t file = 0; file < files_.size(); ++file) {
        const int64_t size = files_[file]->size(), blocks = CeilDiv(size, kReadBlock),
                      last = blocks * (part + 1) / threads;
        for (int64_t block = blocks * part / threads; block < last; ++block) {
          const int64_t at = block * kReadBlock;
          if (!bring(file, at, std::min(kReadBlock, size - at))) return;
        }
      }
    }
  });
  return !stop.load() && (reported == total || progress(total, total));
}

}  // namespace dsv4
