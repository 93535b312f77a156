// Log-probabilities of a given token: what the sampler says of the token that it chooses.
#pragma once

#include <span>

#include "server/schedule/generation.h"

namespace dsv4::server {

// The token's natural logarithm of probability under softmax(logits) and those of the `num_top` most likely tokens,
// most likely first (ties: the lower id first).
OutputToken TokenLogprobs(std::span<const float> logits, TokenId id, int num_top);

}  // namespace dsv4::server
