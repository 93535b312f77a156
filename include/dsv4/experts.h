// How often routed experts are chosen: what decides which of them a GPU keeps (docs/offload.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv4/status.h"

namespace dsv4 {

struct ExpertCounts {
  int64_t num_layers = 0, num_experts = 0;  // L, E
  std::vector<uint64_t> chosen;             // [L, E]: tokens that had the expert
};

// A file of them, JSON. Reading errors name the file, --expert-counts and the remedy: kNotFound, kDataLoss,
// kInvalidArgument (it cannot be read, or is no file of this size).
Result<ExpertCounts> ReadExpertCounts(const std::string& path);
// Replaces the file as a whole. Errors name the file: kNotFound (no such folder), kResourceExhausted (no room on
// the disk), kInvalidArgument (it cannot be written).
Status WriteExpertCounts(const std::string& path, const ExpertCounts& counts);

// A file that gets what an engine counts from some time on, as Engine::expert_use has it.
class ExpertCountsFile {
 public:
  // `kept`: what the file holds, to which is added; nothing: it is replaced. `before`: what was counted by then.
  ExpertCountsFile(std::string path, ExpertCounts kept, ExpertCounts before);

  // What the engine has counted by now: whether something came since the file was written, or since `before`. An engine
  // that was opened anew counts from zero: what it had counted stays.
  bool Take(const ExpertCounts& now);
  // What was taken, where something came. Errors as of WriteExpertCounts; it may be called again then.
  Status Write();

 private:
  const std::string path_;
  ExpertCounts kept_, before_, last_;
  bool gained_ = false;  // since it was written
};

// Since an engine was loaded; of several ranks, as rank 0 has counted.
struct ExpertUse {
  int64_t experts = 0, on_host = 0, on_disk = 0;  // of all layers
  int64_t host_bytes = 0;                         // that those on the host take, of all devices together
  bool counted = false;  // the following are known (EngineOptions::count_experts, or some are on the host)
  ExpertCounts counts;
  uint64_t chosen = 0, chosen_resident = 0;  // sums over tokens and layers; the second: on the device
  // Of all devices: every expert on the host that a pass needed, once a pass, and those that were copied for prompts.
  double fetched_bytes = 0;
  int64_t swaps = 0;        // pairs of experts that changed places between host and devices, as they were chosen lately
  double moved_bytes = 0;   // that were copied over the links for that, both ways; of all devices
  int64_t disk_reads = 0;   // experts of the disk that were brought to a place of the device, as passes needed them
  double disk_bytes = 0;    // of the files, that this took; of all devices
  double disk_seconds = 0;  // that passes waited for it; of one device
  int64_t cpu_experts = 0;  // of the host that the CPU computed (OffloadOptions::expert_compute), each once a pass ...
  double cpu_seconds = 0;   // ... and the time that this took
  double cpu_rate = 0, link_rate = 0;  // bytes of experts a second, of one row, as measured at load (kAuto); else 0
  double wait_seconds = 0;  // that prompts waited for experts on their way (decode never does); of one device
};

}  // namespace dsv4
