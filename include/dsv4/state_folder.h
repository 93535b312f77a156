// The folder for data that a program keeps from one run to the next.
#pragma once

#include <string>

#include "dsv4/export.h"

namespace dsv4 {

// Returns the folder "dsv4" in $XDG_STATE_HOME, or in ~/.local/state if that is not set. Does not create it. Returns ""
// if neither path is known.
DSV4_API std::string StateFolder();

}  // namespace dsv4
