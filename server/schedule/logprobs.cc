#include "server/schedule/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dsv4::server {

OutputToken TokenLogprobs(std::span<const float> logits, TokenId id, int num_top) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - static_cast<double>(largest));
  const double log_sum = std::log(sum);
  const auto logprob = [&](TokenId token) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(token)]) - static_cast<double>(largest) -
                              log_sum);
  };
  OutputToken out{.id = id, .logprob = logprob(id)};
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = std::min<size_t>(static_cast<size_t>(std::max(num_top, 0)), ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count), ids.end(), [&](TokenId a, TokenId b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  for (size_t i = 0; i < count; ++i) out.top.push_back({ids[i], logprob(ids[i])});
  return out;
}

}  // namespace dsv4::server
