// Experts that a device does not hold: what is decided before a model loads (docs/offload.md).
#pragma once

#include <cstdint>

#include "device/device.h"
#include "dsv4/engine.h"
#include "dsv4/inspect.h"
#include "dsv4/status.h"
#include "engine/setup/options.h"
#include "model/model.h"

namespace dsv4 {

// Bytes of KV that a rank's experts leave free of the `available_bytes` that it has: a page at least.
int64_t KvRoom(const EngineOptions& options, const ModelFacts& facts, int64_t available_bytes);

// Where the host has no room for these either, experts stay in the checkpoint's files; an eighth of what the
// host has for experts is then left to the system, which keeps there what it has read last.
//
// Where the model does not fit with one page of KV (with offload.kv_room, where that was asked for), keeps the
// embedding table and experts in the host's memory, so that it does with KvRoom beside it; and experts in any case that
// offload.expert_slots leaves no place. Plans anew then. Errors: kInvalidArgument, kDataLoss, kNotFound (the file of
// counts). On a CPU only under a limit (offload.gpu_memory, expert_slots). Whether it fits then CheckPlan and CheckHost
// say.
Status PlaceExperts(const EngineOptions& options, ModelSource& source, const Device& device, const RankPlaces& places,
                    MemoryPlan* plan);

// kResourceExhausted: offload.kv_room was named, and is not free on the device beside what cannot leave it.
Status CheckKvRoom(const EngineOptions& options, const ModelFacts& facts, const MemoryPlan& plan, DeviceKind device);

// kResourceExhausted: the host has no room for the experts that are to lie there, with the numbers.
Status CheckHost(const MemoryPlan& plan, DeviceKind device, bool from_files);

}  // namespace dsv4
