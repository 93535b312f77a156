// The tokenizer of the bundled model.
#pragma once

#include <string>
#include <utility>

#include "dsv4/tokenizer.h"

namespace dsv4::server {

inline const Tokenizer& NanoTokenizer() {
  static const auto tokenizer = [] {
    auto loaded = Tokenizer::Load(std::string(DSV4_SOURCE_DIR) + "/models/nano");
    return loaded.ok() ? std::move(*loaded) : nullptr;
  }();
  return *tokenizer;
}

}  // namespace dsv4::server
