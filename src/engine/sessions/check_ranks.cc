#include "engine/sessions/check_ranks.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/str.h"

namespace dsv4 {

namespace {

void AppendRows(Device& device, const uint8_t* from, int64_t bytes, std::vector<uint8_t>* to) {
  const size_t at = to->size();
  to->resize(at + static_cast<size_t>(bytes));
  device.Download(to->data() + at, from, bytes);
}

std::vector<uint8_t> RowsOfRank(Device& device, const KvLayout& layout, const SequenceCache& cache) {
  std::vector<uint8_t> bytes;
  AppendRows(device, cache.fixed(), layout.fixed_bytes, &bytes);
  if (!cache.pages().empty()) AppendRows(device, cache.pages().back(), layout.page_bytes, &bytes);
  return bytes;
}

}  // namespace

Status CheckRanks(Ranks& ranks, const SequenceMemory& memory, std::span<RankCaches* const> caches) {
  for (const RankCaches* sequence : caches) {
    const std::vector<uint8_t> want = RowsOfRank(*memory.devices[0], memory.layout(), sequence->of(0));
    for (int r = 1; r < ranks.count(); ++r) {
      const std::vector<uint8_t> got = RowsOfRank(*memory.devices[static_cast<size_t>(r)], memory.layout(),
                                                  sequence->of(r));
      const auto differs = std::mismatch(want.begin(), want.end(), got.begin());
      if (differs.first == want.end()) continue;
      ranks.Fail(r, Internal(StrCat("its KV rows differ from rank 0's from byte ", differs.first - want.begin(),
                                    " on; please report this")));
      return ranks.status();
    }
  }
  return {};
}

}  // namespace dsv4
