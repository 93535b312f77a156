// Where a program keeps what it remembers from one run to the next.
#pragma once

#include <string>

namespace dsv4 {

// dsv4's folder in $XDG_STATE_HOME, else in ~/.local/state; it may not exist yet. Empty where neither is known.
std::string StateFolder();

}  // namespace dsv4
