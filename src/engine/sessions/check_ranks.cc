#include "engine/sessions/check_ranks.h"

#include <algorithm>
#include <cstdint>

#include "base/str.h"

namespace dsv4 {

namespace {

constexpr int64_t kStagedBytes = int64_t{32} << 20;  // of a rank, or one sequence's rows where those are more

int64_t BytesOfASequence(const KvLayout& layout) { return layout.fixed_bytes + layout.page_bytes; }

Status Reserve(SequenceMemory& memory) {
  memory.staged.resize(memory.devices.size());
  const int64_t bytes = std::max(kStagedBytes, BytesOfASequence(memory.layout()));
  for (size_t r = 0; r < memory.staged.size(); ++r) {
    if (!memory.staged[r].AllocateOnce(*memory.devices[r], bytes))
      return ResourceExhausted("no memory to compare ranks; leave --check-ranks out");
  }
  return {};
}

// Rank r's rows of the sequences, one behind the other, to its staging memory.
void QueueRows(const SequenceMemory& memory, std::span<RankCaches* const> caches, int r) {
  const auto rank = static_cast<size_t>(r);
  const KvLayout& layout = memory.layout();
  uint8_t* to = memory.staged[rank].data();
  for (const RankCaches* sequence : caches) {
    const SequenceCache& cache = sequence->of(r);
    memory.devices[rank]->DownloadLater(to, cache.fixed(), layout.fixed_bytes);
    if (!cache.pages().empty())
      memory.devices[rank]->DownloadLater(to + layout.fixed_bytes, cache.pages().back(), layout.page_bytes);
    to += BytesOfASequence(layout);
  }
}

// The first byte of a sequence's rows in which rank r differs from the leader; -1: none.
int64_t DifferenceOf(const SequenceMemory& memory, const RankCaches& sequence, int64_t at, int r) {
  const KvLayout& layout = memory.layout();
  const bool has_page = !sequence.of(0).pages().empty();
  const int64_t bytes = layout.fixed_bytes + (has_page ? layout.page_bytes : 0);
  const uint8_t* const want = memory.staged[0].data() + at * BytesOfASequence(layout);
  const uint8_t* const got = memory.staged[static_cast<size_t>(r)].data() + at * BytesOfASequence(layout);
  const auto differs = std::mismatch(want, want + bytes, got);
  return differs.first == want + bytes ? -1 : differs.first - want;
}

Status CompareSome(Ranks& ranks, const SequenceMemory& memory, std::span<RankCaches* const> caches) {
  for (int r = 0; r < ranks.count(); ++r) QueueRows(memory, caches, r);
  for (const auto& device : memory.devices) DSV4_RETURN_IF_ERROR(device->Synchronize());
  for (int r = 1; r < ranks.count(); ++r) {
    for (size_t i = 0; i < caches.size(); ++i) {
      const int64_t differs = DifferenceOf(memory, *caches[i], static_cast<int64_t>(i), r);
      if (differs < 0) continue;
      ranks.Fail(r,
                 Internal(StrCat("its KV rows differ from rank 0's from byte ", differs, " on; please report this")));
      return ranks.status();
    }
  }
  return {};
}

}  // namespace

Status CheckRanks(Ranks& ranks, SequenceMemory& memory, std::span<RankCaches* const> caches) {
  if (ranks.count() == 1) return {};
  DSV4_RETURN_IF_ERROR(Reserve(memory));
  const auto at_once = static_cast<size_t>(std::max<int64_t>(1, kStagedBytes / BytesOfASequence(memory.layout())));
  for (size_t first = 0; first < caches.size(); first += at_once)
    DSV4_RETURN_IF_ERROR(CompareSome(ranks, memory, caches.subspan(first, std::min(at_once, caches.size() - first))));
  return {};
}

}  // namespace dsv4
