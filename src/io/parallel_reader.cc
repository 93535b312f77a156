#include "io/parallel_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/stopwatch.h"
#include "base/str.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int64_t kPieceBytes = int64_t{2} << 20;  // per request

// mincore(2) is correct for users who may write the file; for others it reports every page as present.
bool MayAskForResidency(const std::string& path, int fd) {
  struct stat st;
  if (::fstat(fd, &st) != 0) return false;
  return st.st_uid == ::geteuid() || ::geteuid() == 0 || ::access(path.c_str(), W_OK) == 0;
}

}  // namespace

ParallelReader::ParallelReader(std::vector<std::shared_ptr<const MappedFile>>&& files, Idle) {
  for (std::shared_ptr<const MappedFile>& map : files) {
    File f;
    f.plain = ::open(map->path().c_str(), O_RDONLY | O_CLOEXEC);
    // fails if the file system has no direct reads
    f.direct = ::open(map->path().c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    f.residency_known = f.plain >= 0 && MayAskForResidency(map->path(), f.plain);
    f.map = std::move(map);
    files_.push_back(std::move(f));
  }
}

ParallelReader::ParallelReader(std::vector<std::shared_ptr<const MappedFile>> files, int num_threads)
    : ParallelReader(std::move(files), Idle::kYes) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

void ParallelReader::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    queue_.clear();
  }
  work_.notify_all();
  threads_.clear();  // joins
}

ParallelReader::~ParallelReader() {
  Stop();
  for (const File& f : files_) {
    if (f.plain >= 0) ::close(f.plain);
    if (f.direct >= 0) ::close(f.direct);
  }
}

bool ParallelReader::Locate(const uint8_t* p, FilePart* part) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    const MappedFile& map = *files_[i].map;
    if (p < map.data() || p >= map.data() + map.size()) continue;
    part->file = static_cast<int32_t>(i);
    part->offset = p - map.data();
    return true;
  }
  return false;
}

void ParallelReader::Read(int64_t group, const FilePart& part, uint8_t* slot) {
  DSV4_CHECK(reinterpret_cast<uintptr_t>(slot) % kBlock == 0);
  const int64_t begin = part.offset - PadBytes(part), end = begin + SlotBytes(part);
  for (int64_t at = begin; at < end; at += kPieceBytes) {
    const int64_t piece_end = std::min(at + kPieceBytes, end);
    Add({.group = group,
         .file = part.file,
         .begin = at,
         .end = piece_end,
         .want_begin = std::max(at, part.offset),
         .want_end = std::min(piece_end, part.offset + part.bytes),
         .dst = slot + (at - begin),
         .src = nullptr});
  }
}

void ParallelReader::Copy(int64_t group, uint8_t* dst, const uint8_t* src, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    Add({.group = group,
         .file = -1,
         .begin = at,
         .end = std::min(at + kPieceBytes, bytes),
         .want_begin = 0,
         .want_end = 0,
         .dst = dst + at,
         .src = src + at});
  }
}

void ParallelReader::Add(Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    DSV4_CHECK(unfinished_.empty() || piece.group >= unfinished_.back().first);
    queue_.push_back(piece);
    if (unfinished_.empty() || piece.group > unfinished_.back().first) unfinished_.emplace_back(piece.group, 0);
    ++unfinished_.back().second;
  }
  work_.notify_one();
}

Status ParallelReader::Wait(int64_t group) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] {
    return out_of_memory_ || !error_.empty() || unfinished_.empty() || unfinished_.front().first > group;
  });
  if (out_of_memory_) return ResourceExhausted("no memory to read the model's files");
  return error_.empty() ? Status{} : DataLoss(error_);
}

void ParallelReader::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const Piece piece = queue_.front();
    queue_.pop_front();
    lock.unlock();
    std::string error;
    bool out_of_memory = false;
    try {
      error = Run(piece);
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
    lock.lock();
    out_of_memory_ = out_of_memory_ || out_of_memory;
    if (error_.empty()) error_ = std::move(error);
    for (auto& [group, pieces] : unfinished_) {
      if (group == piece.group) --pieces;
    }
    while (!unfinished_.empty() && unfinished_.front().second == 0) unfinished_.pop_front();
    done_.notify_all();
  }
}

bool ParallelReader::InPageCache(const File& file, int64_t begin, int64_t end) const {
  if (!file.residency_known) return false;
  static const int64_t page = ::sysconf(_SC_PAGESIZE);
  end = std::min(end, file.map->size());
  const int64_t first = begin / page, count = (end + page - 1) / page - first;
  std::vector<unsigned char> resident(static_cast<size_t>(count));
  void* address = const_cast<uint8_t*>(file.map->data()) + first * page;
  if (::mincore(address, static_cast<size_t>(end - first * page), resident.data()) != 0) return false;
  return std::all_of(resident.begin(), resident.end(), [](unsigned char r) { return (r & 1) != 0; });
}

std::string ParallelReader::Run(const Piece& piece) {
  if (piece.file < 0) {
    std::memcpy(piece.dst, piece.src, static_cast<size_t>(piece.end - piece.begin));
    return "";
  }
  const File& file = files_[static_cast<size_t>(piece.file)];
  const bool cached = InPageCache(file, piece.begin, piece.end);
  bool direct = !cached && file.direct >= 0 && direct_works_.load();
  int64_t at = direct ? piece.begin : piece.want_begin;
  while (at < piece.want_end) {
    const int64_t end = direct ? piece.end : piece.want_end;
    const ssize_t n = ::pread(direct ? file.direct : file.plain, piece.dst + (at - piece.begin),
                              static_cast<size_t>(end - at), static_cast<off_t>(at));
    if (n > 0 && (!direct || (at + n) % kBlock == 0 || at + n >= piece.want_end)) {
      at += n;
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (direct) {  // refused, or a partial block: the page cache serves the rest
      if (n < 0) direct_works_ = false;
      direct = false;
      at = std::max(at, piece.want_begin);
    } else {
      return StrCat("cannot read '", file.map->path(), "' at byte ", at, ": ",
                    n == 0 ? "the file became shorter" : std::strerror(errno));
    }
  }
  if (direct) direct_ = true;
  const int64_t bytes = piece.want_end - piece.want_begin;
  file_bytes_ += bytes;
  if (cached) cached_bytes_ += bytes;
  return "";
}

double ReadRateOf(const std::vector<std::shared_ptr<const MappedFile>>& files) {
  constexpr int64_t kParts = 64;
  int64_t total = 0, bytes = 0;
  for (const auto& file : files) total += file->size();
  const int64_t step = std::max(total / kParts, kPieceBytes), slot = kPieceBytes + ParallelReader::kBlock;
  std::vector<uint8_t> memory(static_cast<size_t>(kParts * slot + ParallelReader::kBlock));
  const auto odd = reinterpret_cast<uintptr_t>(memory.data()) % ParallelReader::kBlock;
  uint8_t* to = memory.data() + (ParallelReader::kBlock - odd) % ParallelReader::kBlock;
  ParallelReader reader(files);
  const Stopwatch reading;
  int64_t before = 0;  // bytes of the files before this one
  for (size_t i = 0; i < files.size(); before += files[i]->size(), ++i) {
    for (int64_t at = CeilDiv(before, step) * step; at < before + files[i]->size() && bytes < kParts * kPieceBytes;
         at += step) {
      const FilePart part{.file = static_cast<int32_t>(i),
                          .offset = at - before,
                          .bytes = std::min(kPieceBytes, before + files[i]->size() - at)};
      reader.Read(0, part, to);
      bytes += part.bytes;
      to += slot;
    }
  }
  const bool read = reader.Wait(0).ok();
  reader.Stop();
  return read && bytes > 0 ? static_cast<double>(bytes) / reading.Seconds() : 0;
}

}  // namespace dsv4
