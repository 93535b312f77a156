// Device names of users: one device, or one for each of several ranks.
#pragma once

#include <string>
#include <vector>

#include "dsv4/status.h"

namespace dsv4 {

// Returns the names for Device::Open, one per rank:
//
//   "cpu", "cuda", "cuda:1"      one rank
//   "cpu*4"                      four ranks that share the CPU
//   "cuda:0,1", "cuda:0-3"       a GPU each
//   "cuda:0*2"                   two ranks that share a GPU
//
// kInvalidArgument, with the mistake and what to write instead: another form, a GPU named twice, or a number of ranks
// other than 1, 2, 4 or 8. Does not check whether the devices exist: Device::Open does.
Result<std::vector<std::string>> RankDevices(const std::string& name);

// Whether such a name means the CPU, with one rank or several.
bool NamesCpu(const std::string& name);
inline bool NamesOneCpu(const std::string& name) { return name == "cpu"; }

}  // namespace dsv4
