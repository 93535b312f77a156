// Rows of a step that belong to no sequence: they fill it up to a size that is recorded (engine/idle_rows.h).
#pragma once

#include <cstdint>

namespace dsv4 {

// The token of an idle row, which differs from the codes of sample.h. Embed makes zeros of it. The router gives it the
// experts of the step's first row, which is never idle: no expert is read for it, and none is counted. Advance leaves
// it where it is.
inline constexpr int32_t kIdleToken = -4;

}  // namespace dsv4
