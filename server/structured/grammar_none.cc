// A build without XGrammar.
#include "server/structured/grammar.h"

namespace dsv4::server {

std::unique_ptr<GrammarCompiler> GrammarCompiler::Create(const Tokenizer&, int64_t, std::vector<TokenId>,
                                                         const GrammarLimits&) {
  return nullptr;
}

}  // namespace dsv4::server
