#include "engine/memory/host_experts.h"

#include <algorithm>

#include "base/str.h"
#include "dsv4/experts.h"
#include "engine/memory/memory_plan.h"
#include "kv/layout.h"
#include "tensor/quant_tensor.h"

namespace dsv4 {

namespace {

constexpr int64_t kUsualKvRoom = int64_t{2} << 30;
constexpr int64_t kProgramBytes = int64_t{1} << 30;  // host memory that a program needs in addition to pinned memory
constexpr int kMostRounds = 16;                      // moving experts also needs buffers on the device

// Empty: no file was named.
Result<std::vector<uint64_t>> CountsFor(const std::string& path, const ModelFacts& facts) {
  if (path.empty()) return std::vector<uint64_t>();
  DSV4_ASSIGN_OR_RETURN(ExpertCounts counts, ReadExpertCounts(path));
  if (counts.num_layers != facts.num_layers || counts.num_experts != facts.num_experts) {
    return InvalidArgument(StrCat("--expert-counts: ", path, " counts ", counts.num_experts, " experts in ",
                                  counts.num_layers, " layers; the model has ", facts.num_experts, " in ",
                                  facts.num_layers, "; write counts of this model with --count-experts"));
  }
  return std::move(counts.chosen);
}

// Host memory for weights that the device does not hold, with buffers and the program; 0: there are no such weights. On
// a CPU all weights are in the same memory.
int64_t HostNeeded(const MemoryPlan& p, DeviceKind device) {
  const int64_t moved = p.host_expert_bytes + p.host_embedding_bytes;
  if (moved == 0) return 0;
  return moved + p.devices * p.host_staging_bytes + kProgramBytes +
         (device == DeviceKind::kCpu ? p.weight_bytes + p.widened_bytes : 0);
}

// Bytes of experts that must stay on the disk because host memory is too small. If any experts stay there, the page
// cache gets an eighth of the experts' memory.
int64_t HostLacks(const MemoryPlan& p, DeviceKind device) {
  const int64_t needed = HostNeeded(p, device);
  if (p.host_available_bytes == 0 || (p.disk_bytes == 0 && needed <= p.host_available_bytes)) return 0;
  const int64_t room = std::max<int64_t>(p.host_available_bytes - (needed - p.host_expert_bytes), 0);
  return p.host_expert_bytes - (room - room / 8);
}

// KV bytes for all ranks that share the device.
int64_t RoomBeside(const EngineOptions& options, const ModelFacts& facts, const MemoryPlan& p) {
  return p.ranks * KvRoom(options, facts, p.available_bytes / p.ranks);
}

}  // namespace

int64_t KvRoom(const EngineOptions& options, const ModelFacts& facts, int64_t available_bytes) {
  const KvLayout kv = MakeKvLayout(facts.kv);
  if (options.offload.kv_room > 0) return std::max(options.offload.kv_room, kv.page_bytes);
  const int64_t pages = CeilDiv(options.max_context, kv.page_tokens);
  return std::max({kv.page_bytes, pages * kv.page_bytes, std::min(kUsualKvRoom, available_bytes / 16)});
}

Status PlaceExperts(const EngineOptions& options, ModelSource& source, const Device& device, const RankPlaces& places,
                    MemoryPlan* plan) {
  const ModelFacts& facts = source.facts();
  // Reads the file even if it is not needed: a file of another model is a mistake.
  DSV4_ASSIGN_OR_RETURN(const std::vector<uint64_t> counts, CountsFor(options.offload.expert_counts, facts));
  const bool on_host = device.kind() == DeviceKind::kCpu;
  const int64_t slots = options.offload.expert_slots > 0 ? options.offload.expert_slots : facts.num_experts;
  const bool limited = slots < facts.num_experts;
  if (on_host && options.offload.gpu_memory == 0 && !limited) return {};  // all of its memory is host memory
  const int64_t page = plan->ranks * MakeKvLayout(facts.kv).page_bytes;
  const int64_t room = RoomBeside(options, facts, *plan);
  if (Fits(*plan, options.offload.kv_room > 0 ? room : page) && !limited) return {};
  // Ranks that share a GPU move all their slices of an expert together.
  const int64_t shares = on_host ? 1 : plan->ranks;
  // each rank has its slices of an expert in host memory or on the disk
  const int64_t copies = on_host ? 1 : places.count;
  // Whole experts move, so more may have moved than `bytes`. The next round adds to the bytes that moved: otherwise it
  // would move no expert if it lacks less than this rest.
  int64_t bytes = 0, disk_bytes = 0;
  for (int round = 0; round < kMostRounds; ++round) {
    const bool fits = Fits(*plan, room);
    const int64_t lacks = source.CanLeaveOnDisk(device.kind()) ? HostLacks(*plan, device.kind()) : 0;
    if (fits && lacks <= 0 && (round > 0 || !limited)) break;
    if (!fits) {
      const int64_t moved = (plan->host_expert_bytes + plan->host_embedding_bytes + plan->disk_bytes) / copies;
      bytes = std::max(bytes, moved) + CeilDiv(NeededBytes(*plan, room) - plan->available_bytes, shares);
    }
    if (lacks > 0) disk_bytes = std::max(disk_bytes, plan->disk_bytes / copies) + CeilDiv(lacks, copies);
    source.KeepExpertsOnHost(device.kind(), places.count, bytes, slots, counts, disk_bytes);
    *plan = PlanMemory(options, source, device, places);
  }
  return {};
}

Status CheckKvRoom(const EngineOptions& options, const ModelFacts& facts, const MemoryPlan& p, DeviceKind device) {
  if (options.offload.kv_room == 0 || (device == DeviceKind::kCpu && options.offload.gpu_memory == 0)) return {};
  const int64_t room = RoomBeside(options, facts, p), needed = NeededBytes(p, 0);
  if (Fits(p, room)) return {};
  return ResourceExhausted(StrCat(PlaceOf(p), " has no ", room,
                                  " bytes for KV, as --kv-room or serve's --kv-budget requires: ", p.available_bytes,
                                  " are free, and data that cannot move to host memory takes ", needed,
                                  "; request at most ", (p.available_bytes - needed) / p.ranks));
}

Status CheckHost(const MemoryPlan& p, DeviceKind device, bool from_files) {
  const int64_t needed = HostNeeded(p, device);
  if (p.host_available_bytes == 0 || needed <= p.host_available_bytes) return {};
  const bool could_be_on_disk = device != DeviceKind::kCpu && !from_files;
  const char* or_else = could_be_on_disk ? "lower --kv-room, or load a checkpoint, whose experts may stay on the disk"
                                         : "or lower --kv-room";
  return ResourceExhausted(
      StrCat("the weights that do not fit ", PlaceOf(p), " take ", p.host_expert_bytes + p.host_embedding_bytes,
             " bytes of host memory, with buffers and the program ", needed, "; ", p.host_available_bytes,
             " are available; close other programs, raise --host-memory if it is set, use more GPUs, ", or_else));
}

}  // namespace dsv4
