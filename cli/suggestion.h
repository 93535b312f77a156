// Suggestions for unknown names.
#pragma once

#include <string>
#include <vector>

namespace dsv4::cli {

// Returns "; did you mean X?", where X is our name for a flag of llama.cpp, vLLM or SGLang, otherwise the most similar
// name. Returns "" if no name is similar.
std::string Suggestion(const std::string& wrong, const std::vector<std::string>& names);

}  // namespace dsv4::cli
