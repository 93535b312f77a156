#include "dsv4/state_folder.h"

#include "base/env.h"

namespace dsv4 {

std::string StateFolder() {
  const std::string home = EnvStateHome();
  return home.empty() ? "" : home + "/dsv4";
}

}  // namespace dsv4
