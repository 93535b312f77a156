// What somebody meant who mistyped a name.
#pragma once

#include <string>
#include <vector>

namespace dsv4::cli {

// "; did you mean X?" for the name that llama.cpp, vLLM or SGLang spell so, else for the nearest; "" when none is near.
std::string Suggestion(const std::string& wrong, const std::vector<std::string>& names);

}  // namespace dsv4::cli
