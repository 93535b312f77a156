// What the prefix cache holds, published for routers that send a prompt where its beginning is: vLLM's KV events over
// ZeroMQ (PUB; frames: topic, number of 8 bytes, MessagePack), which llm-d-kv-cache and Dynamo read. Blocks have 256
// tokens; a block is stored while some cut has all of it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "dsv4/status.h"
#include "server/base/json.h"
#include "server/cache/cut_watcher.h"

namespace dsv4::server {

// Cuts to blocks: which are stored anew and which are gone, as vLLM's events.
class KvBlocks : public CutWatcher {
 public:
  using Publish = std::function<void(const Json& events)>;  // an array of them
  explicit KvBlocks(Publish publish) : publish_(std::move(publish)) {}

  void Kept(CutPlace place, std::span<const TokenId> tokens) override;
  void Dropped(CutPlace place, std::span<const TokenId> tokens) override;
  void Cleared() override;

 private:
  using Counts = std::unordered_map<uint64_t, int64_t>;  // of cuts that have the block, by its hash

  const Publish publish_;
  std::array<Counts, 2> counts_;  // by place
};

// The socket. One thread at a time.
class KvPublisher {
 public:
  // Port 0: any free one. Errors: kUnsupported (no libzmq on this machine), kResourceExhausted (the port is taken).
  static Result<std::unique_ptr<KvPublisher>> Bind(const std::string& host, int port);
  virtual ~KvPublisher() = default;

  virtual int port() const = 0;
  // Never waits; who reads too slowly misses some, which the numbers show.
  virtual void Send(const std::string& topic, const Json& events) = 0;
};

}  // namespace dsv4::server
