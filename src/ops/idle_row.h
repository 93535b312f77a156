// Rows of a step that belong to no sequence: they fill it up to a size that is recorded (engine/ranks/idle_rows.h).
#pragma once

#include <cstdint>

namespace dsv4 {

// The token of an idle row, which differs from the codes of sample.h. Embed makes zeros of it, the router gives it no
// experts, and advance leaves it where it is.
inline constexpr int32_t kIdleToken = -4;

// In the place of an expert's number: there is none. Nothing is read or multiplied for it.
inline constexpr int32_t kNoExpert = -1;

}  // namespace dsv4
