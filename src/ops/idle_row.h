// Padding rows ("idle rows" in code): rows of a step that belong to no sequence. They fill the step to a recorded size
// (engine/ranks/idle_rows.h).
#pragma once

#include <cstdint>

namespace dsv4 {

// The token of a padding row; different from the codes of sample.h. Embed makes it zeros, the router gives it no
// experts, and advance does not change it.
inline constexpr int32_t kIdleToken = -4;

// Instead of an expert's number: no expert. Nothing is read or multiplied for it.
inline constexpr int32_t kNoExpert = -1;

}  // namespace dsv4
