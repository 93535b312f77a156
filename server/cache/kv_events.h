// Publishes the contents of the prefix cache for routers that send a prompt to the server with its prefix. The form is
// vLLM's KV events over ZeroMQ (PUB; frames: topic, number of 8 bytes, MessagePack), which llm-d-kv-cache and Dynamo
// read. A block has 256 tokens. It is stored while some cached prefix contains all of it.
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

// Turns cached prefixes into blocks and publishes which blocks were stored or removed, as vLLM's events.
class KvBlocks : public CutWatcher {
 public:
  using Publish = std::function<void(const Json& events)>;  // an array of events
  explicit KvBlocks(Publish publish) : publish_(std::move(publish)) {}

  void Kept(CutPlace place, std::span<const TokenId> tokens) override;
  void Dropped(CutPlace place, std::span<const TokenId> tokens) override;
  void Cleared() override;

 private:
  using Counts = std::unordered_map<uint64_t, int64_t>;  // number of cached prefixes with the block, by its hash

  const Publish publish_;
  std::array<Counts, 2> counts_;  // by place
};

// The socket. Used by one thread at a time.
class KvPublisher {
 public:
  // Port 0: any free one. Errors: kResourceExhausted (the port is in use).
  static Result<std::unique_ptr<KvPublisher>> Bind(const std::string& host, int port);
  virtual ~KvPublisher() = default;

  virtual int port() const = 0;
  // Never blocks. A slow reader misses messages, which their numbers show. Limits for readers are in zmtp.h.
  virtual void Send(const std::string& topic, const Json& events) = 0;
};

}  // namespace dsv4::server
