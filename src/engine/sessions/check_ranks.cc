#include "engine/sessions/check_ranks.h"

#include <algorithm>
#include <vector>

#include "base/str.h"

namespace dsv4 {

namespace {

constexpr int64_t kStagedBytes = int64_t{32} << 20;  // per rank; or a sequence's fixed rows if they are larger

// The data of one comparison: a sequence's fixed rows, or one of its pages.
struct Piece {
  const RankCaches* caches;
  int64_t page;  // -1: the fixed rows

  const uint8_t* Of(int r) const {
    const SequenceCache& cache = caches->of(r);
    return page < 0 ? cache.fixed() : cache.pages()[static_cast<size_t>(page)];
  }
  int64_t Bytes(const KvLayout& layout) const { return page < 0 ? layout.fixed_bytes : layout.page_bytes; }
};

std::vector<Piece> PiecesOf(const KvLayout& layout, std::span<const WrittenRows> written) {
  std::vector<Piece> pieces;
  for (const WrittenRows& rows : written) {
    pieces.push_back({rows.caches, -1});
    if (layout.page_bytes == 0) continue;
    const int64_t end = std::min((rows.end + layout.page_tokens - 1) / layout.page_tokens,
                                 std::ssize(rows.caches->of(0).pages()));
    for (int64_t page = rows.begin / layout.page_tokens; page < end; ++page) pieces.push_back({rows.caches, page});
  }
  return pieces;
}

int64_t StagedBytes(const KvLayout& layout) { return std::max({kStagedBytes, layout.fixed_bytes, layout.page_bytes}); }

Status Reserve(SequenceMemory& memory) {
  memory.staged.resize(memory.devices.size());
  for (size_t r = 0; r < memory.staged.size(); ++r) {
    if (!memory.staged[r].AllocateOnce(*memory.devices[r], StagedBytes(memory.layout())))
      return ResourceExhausted("no memory to compare ranks; remove --check-ranks");
  }
  return {};
}

// The first byte at which rank r's copy of the piece differs from the leader's; -1: none.
int64_t DifferenceOf(const SequenceMemory& memory, int64_t at, int64_t bytes, int r) {
  const uint8_t* const want = memory.staged[0].data() + at;
  const uint8_t* const got = memory.staged[static_cast<size_t>(r)].data() + at;
  const auto differs = std::mismatch(want, want + bytes, got);
  return differs.first == want + bytes ? -1 : differs.first - want;
}

Status CompareSome(Ranks& ranks, const SequenceMemory& memory, std::span<const Piece> pieces) {
  const KvLayout& layout = memory.layout();
  for (int r = 0; r < ranks.count(); ++r) {
    const auto rank = static_cast<size_t>(r);
    uint8_t* to = memory.staged[rank].data();
    for (const Piece& piece : pieces) {
      memory.devices[rank]->DownloadLater(to, piece.Of(r), piece.Bytes(layout));
      to += piece.Bytes(layout);
    }
  }
  for (const auto& device : memory.devices) DSV4_RETURN_IF_ERROR(device->Synchronize());
  for (int r = 1; r < ranks.count(); ++r) {
    int64_t at = 0;
    for (const Piece& piece : pieces) {
      const int64_t differs = DifferenceOf(memory, at, piece.Bytes(layout), r);
      at += piece.Bytes(layout);
      if (differs < 0) continue;
      const std::string where = piece.page < 0 ? "" : StrCat(" of page ", piece.page);
      ranks.Fail(r, Internal(StrCat("its KV rows differ from rank 0's, first at byte ", differs, where,
                                    "; please report this")));
      return ranks.status();
    }
  }
  return {};
}

}  // namespace

Status CheckRanks(Ranks& ranks, SequenceMemory& memory, std::span<const WrittenRows> written) {
  if (ranks.count() == 1) return {};
  DSV4_RETURN_IF_ERROR(Reserve(memory));
  const KvLayout& layout = memory.layout();
  const std::vector<Piece> pieces = PiecesOf(layout, written);
  for (auto first = pieces.begin(); first != pieces.end();) {
    auto end = first;
    for (int64_t bytes = 0; end != pieces.end(); ++end) {
      bytes += end->Bytes(layout);
      if (bytes > StagedBytes(layout)) break;
    }
    DSV4_RETURN_IF_ERROR(CompareSome(ranks, memory, {first, end}));
    first = end;
  }
  return {};
}

}  // namespace dsv4
