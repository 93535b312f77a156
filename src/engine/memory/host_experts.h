// Offloaded experts, which a device does not hold: decisions before a model loads (docs/offload.md).
#pragma once

#include <cstdint>

#include "device/device.h"
#include "dsv4/engine.h"
#include "dsv4/inspect.h"
#include "dsv4/status.h"
#include "engine/setup/options.h"
#include "model/model.h"

namespace dsv4 {

// Bytes of KV that a rank's experts must leave free of its `available_bytes`: at least one page.
int64_t KvRoom(const EngineOptions& options, const ModelFacts& facts, int64_t available_bytes);

// Decides which weights stay in host memory and in the checkpoint's files, and computes the plan again. The embedding
// table and then experts move to host memory if the model does not fit with one page of KV (with offload.kv_room, if it
// is set). Then KvRoom bytes are free for KV. Experts also move if offload.expert_slots leaves no slot for them. If
// host memory is too small, experts stay in the checkpoint's files. An eighth of the host memory for experts is then
// left to the system, whose page cache keeps the experts that it has read last.
//
// On a CPU this happens only under a limit (offload.gpu_memory, expert_slots). CheckPlan and CheckHost report whether
// the result fits. Errors: kInvalidArgument, kDataLoss, kNotFound (the file of counts).
Status PlaceExperts(const EngineOptions& options, ModelSource& source, const Device& device, const RankPlaces& places,
                    MemoryPlan* plan);

// kResourceExhausted: offload.kv_room is set, and weights that cannot move leave less than that on the device.
Status CheckKvRoom(const EngineOptions& options, const ModelFacts& facts, const MemoryPlan& plan, DeviceKind device);

// kResourceExhausted: host memory is too small for the experts that must be there; the message has the numbers.
Status CheckHost(const MemoryPlan& plan, DeviceKind device, bool from_files);

}  // namespace dsv4
