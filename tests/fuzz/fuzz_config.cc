// The input is a config.json. The parser refuses it with one line, or the products of its sizes do not overflow.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "model/deepseek_v4/config/config.h"

namespace {

// Returns the product of the sizes of a tensor. Crashes on an overflow.
int64_t Product(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) DSV4_CHECK(size > 0 && !__builtin_mul_overflow(product, size, &product));
  return product;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = dsv4::deepseek_v4::ParseConfig(std::string(reinterpret_cast<const char*>(data), size), "FILE");
  if (!config.ok()) {
    DSV4_CHECK(config.status().message().find('\n') == std::string::npos);
    return 0;
  }
  const dsv4::deepseek_v4::Config& c = *config;
  DSV4_CHECK_EQ(static_cast<int64_t>(c.compress_ratios.size()), c.num_layers);
  Product({4, c.vocab_size, c.hidden_size});
  Product({4, c.vocab_size, c.experts_per_token});
  Product({4, c.num_heads, c.head_dim, c.q_lora_rank});
  Product({4, c.o_groups, c.o_lora_rank, c.num_heads, c.head_dim});
  Product({4, c.index_heads, c.index_head_dim, c.q_lora_rank});
  Product({4, c.num_experts, 2, c.moe_intermediate, c.hidden_size});
  Product({4, (2 + c.hc_mult) * c.hc_mult, c.hc_mult, c.hidden_size});
  Product({4, c.num_layers, c.window, c.head_dim});
  Product({4, c.num_layers, c.max_positions, c.head_dim});
  DSV4_CHECK(c.num_heads % c.o_groups == 0 && c.experts_per_token <= c.num_experts && c.rope_dim < c.head_dim);
  for (const dsv4::TokenId id : c.eos_token_ids) DSV4_CHECK(id >= 0 && id < c.vocab_size);
  return 0;
}
