// What a user calls a device: one, or one for each of several ranks.
#pragma once

#include <string>
#include <vector>

#include "dsv4/status.h"

namespace dsv4 {

// Names that Device::Open takes, one a rank:
//
//   "cpu", "cuda", "cuda:1"      one rank
//   "cpu*4"                      four ranks that share the CPU
//   "cuda:0,1", "cuda:0-3"       a GPU each
//   "cuda:0*2"                   two ranks that share a GPU
//
// kInvalidArgument, with what is wrong and what to write instead: another form, a GPU named twice, a number of ranks
// that is not 1, 2, 4 or 8. Whether the devices exist, Device::Open says.
Result<std::vector<std::string>> RankDevices(const std::string& name);

// Whether such a name means the CPU, be it one rank or several.
bool NamesCpu(const std::string& name);
inline bool NamesOneCpu(const std::string& name) { return name == "cpu"; }

}  // namespace dsv4
