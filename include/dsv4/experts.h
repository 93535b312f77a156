// Counts of how often routed experts are chosen. They decide which experts stay in GPU memory (docs/offload.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv4/export.h"
#include "dsv4/status.h"

namespace dsv4 {

struct ExpertCounts {
  int64_t num_layers = 0, num_experts = 0;  // L, E
  std::vector<uint64_t> chosen;             // [L, E]: number of tokens that chose the expert
};

// Reads a JSON file of WriteExpertCounts. Errors name the file, --expert-counts and the remedy: kNotFound, kDataLoss,
// kInvalidArgument (the file cannot be read, or it is too large).
DSV4_API Result<ExpertCounts> ReadExpertCounts(const std::string& path);
// Replaces the file atomically. Errors name the file: kNotFound (the folder does not exist), kResourceExhausted (the
// disk is full), kInvalidArgument (the file cannot be written).
DSV4_API Status WriteExpertCounts(const std::string& path, const ExpertCounts& counts);

// A file of the counts that an engine adds after some point in time (Engine::expert_use().counts).
class DSV4_API ExpertCountsFile {
 public:
  // `kept`: counts to add to, usually the contents of the file; empty: replaces the file. `before`: counts of the
  // engine at the start, which are not written.
  ExpertCountsFile(std::string path, ExpertCounts kept, ExpertCounts before);

  // Stores the engine's current counts. Returns true if they have grown since the file was written (since `before` if
  // it was not written yet). After Engine::Restart the engine counts from zero; the counts from before are kept.
  bool Update(const ExpertCounts& now);
  // Writes the file if the counts have grown. Same errors as WriteExpertCounts; after an error Write may be called
  // again.
  Status Write();

 private:
  const std::string path_;
  ExpertCounts kept_, before_, last_;
  bool gained_ = false;  // the counts have grown since the file was written
};

// Use of experts since an engine was loaded. With several ranks, rank 0 counts.
struct ExpertUse {
  int64_t experts = 0, on_host = 0, on_disk = 0;  // number of experts in all layers, in host memory, on the disk
  int64_t host_bytes = 0;                         // host memory of the experts there, for all devices together
  // The fields below are valid. Requires EngineOptions::count_experts, or experts in host memory.
  bool counted = false;
  ExpertCounts counts;
  uint64_t chosen = 0, chosen_resident = 0;  // choices, summed over tokens and layers; those in device memory
  // Bytes read from host memory, for all devices: each expert that a pass needed, once per pass, and experts that were
  // copied for prompts.
  double fetched_bytes = 0;
  int64_t swaps = 0;        // pairs of experts that were exchanged between host and device memory, by recent use
  double moved_bytes = 0;   // bytes copied over the links for swaps, in both directions, for all devices
  int64_t disk_reads = 0;   // experts read from the disk into device memory because passes needed them
  double disk_bytes = 0;    // bytes of the files read for disk_reads, for all devices
  double disk_seconds = 0;  // time that passes waited for disk_reads, for one device
  int64_t cpu_experts = 0;  // experts that the CPU computed, once per pass (OffloadOptions::expert_compute)
  double cpu_seconds = 0;   // time of these computations
  double cpu_rate = 0, link_rate = 0;  // kAuto: expert bytes per second for one row, measured at load; else 0
  double wait_seconds = 0;  // time that prompts waited for experts in flight, for one device; decode never waits
};

}  // namespace dsv4
