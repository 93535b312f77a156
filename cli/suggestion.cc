#include "suggestion.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace dsv4::cli {

namespace {

// Edit distance with swaps of adjacent letters.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// Flags of llama.cpp, vLLM and SGLang, and our names for them.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"--max-model-len", "--ctx"},
    {"--context-length", "--ctx"},
    {"--ctx-size", "--ctx"},
    {"-c", "--ctx"},
    {"--tensor-parallel-size", "--device"},
    {"--tp-size", "--device"},
    {"--tp", "--device"},
    {"--gpu-layers", "--device"},
    {"--n-gpu-layers", "--device"},
    {"--model-path", "--model"},
    {"--alias", "--served-model-name"},
    {"--predict", "--max-tokens"},
    {"--n-predict", "--max-tokens"},
    {"--max-new-tokens", "--max-tokens"},
    {"--repetition-penalty", "--repeat-penalty"},
    {"--file", "--prompt-file"},
    {"-f", "--prompt-file"},
    {"-t", "--threads"},
    {"--system-prompt", "--system"},
    {"--parallel", "--max-concurrent"},
    {"--max-num-seqs", "--max-concurrent"},
    {"--max-running-requests", "--max-concurrent"},
    {"--max-queued-requests", "--max-queue"},
    {"--batch-size", "--prefill-chunk"},
    {"--ubatch-size", "--prefill-chunk"},
    {"--chunked-prefill-size", "--prefill-chunk"},
    {"--max-num-batched-tokens", "--prefill-chunk"},
    {"--gpu-memory-utilization", "--gpu-memory"},
    {"--mem-fraction-static", "--gpu-memory"},
    {"--kv-cache-dtype", "--kv-dtype"},
    {"--cache-type-k", "--kv-dtype"},
    {"--enable-prefix-caching", "--prefix-cache"},
    {"--no-enable-prefix-caching", "--prefix-cache"},
    {"--disable-radix-cache", "--prefix-cache"},
    {"--ssl-certfile", "--tls-cert"},
    {"--ssl-cert-file", "--tls-cert"},
    {"--ssl-keyfile", "--tls-key"},
    {"--ssl-key-file", "--tls-key"},
    {"--allowed-origins", "--cors-origin"},
    {"--speculative-config", "--speculate"},
    {"--speculative-algorithm", "--speculate"},
    {"--draft-max", "--draft-tokens"},
    {"--speculative-num-draft-tokens", "--draft-tokens"},
};

// Returns the one of `names` that other engines call `wrong`, or "".
std::string KnownElsewhere(std::string_view wrong, const std::vector<std::string>& names) {
  const auto known = std::find_if(std::begin(kElsewhere), std::end(kElsewhere),
                                  [&](const auto& entry) { return entry.first == wrong; });
  if (known == std::end(kElsewhere)) return "";
  const auto ours = std::find(names.begin(), names.end(), known->second);
  return ours == names.end() ? "" : *ours;
}

std::string Nearest(const std::string& wrong, const std::vector<std::string>& names) {
  std::string best;
  const size_t letters = wrong.size() - std::min(wrong.find_first_not_of("-/"), wrong.size());
  size_t best_distance = letters / 3 + 1;  // one letter of three may be wrong
  for (const std::string& name : names) {
    const size_t distance = name.starts_with(wrong) ? 0 : Distance(wrong, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

std::string Suggestion(const std::string& wrong, const std::vector<std::string>& names) {
  const std::string known = KnownElsewhere(wrong, names);
  const std::string meant = known.empty() ? Nearest(wrong, names) : known;
  return meant.empty() ? "" : "; did you mean " + meant + "?";
}

}  // namespace dsv4::cli
