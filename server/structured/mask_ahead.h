// Masks worked out ahead of the engine's thread: while the model computes a step, a worker takes the last token into
// the sequence's grammar and finds out which may follow. Where that takes long only that sequence waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "server/structured/grammar.h"

namespace dsv4::server {

// One sequence's place in a grammar. One thread, beside the worker.
class MaskAhead {
 public:
  struct Place;  // what it shares with the worker
  explicit MaskAhead(std::shared_ptr<Place> place) : place_(std::move(place)) {}
  ~MaskAhead();  // what is under way is cancelled
  MaskAhead(const MaskAhead&) = delete;
  MaskAhead& operator=(const MaskAhead&) = delete;

  void Accept(TokenId id);

  // Tokens that may come next: how many of them the grammar allows in a row, as far as that is known by `until`. From
  // then on a worker finds out what may follow each of these, for Accept.
  size_t Foresee(std::span<const TokenId> tokens, std::chrono::steady_clock::time_point until);

  enum class State : uint8_t {
    kBusy,
    kReady,
    kFree,    // the text that it began with is not the grammar's: it holds nothing
    kFailed,  // status() says why
  };
  State WaitUntil(std::chrono::steady_clock::time_point until);

  // MaskWorkers' on_ready will be called when it is no longer busy. False: it is not busy.
  bool CallWhenReady();

  // Of kReady, until the next Accept.
  std::span<const uint32_t> allowed() const;  // empty: all
  bool complete() const;

  Status status() const;

 private:
  const std::shared_ptr<Place> place_;
};

class MaskWorkers {
 public:
  using OnReady = std::function<void()>;  // by a worker

  MaskWorkers(int num_threads, OnReady on_ready);  // throws std::system_error where the system has no more threads
  ~MaskWorkers();

  // `text`: what of the grammar has been written already.
  std::unique_ptr<MaskAhead> Begin(const std::shared_ptr<const Grammar>& grammar, const std::string& text = "");

 private:
  friend class MaskAhead;
  struct Queue;
  // Without its threads: where starting one throws, the destructor ends the others.
  explicit MaskWorkers(OnReady on_ready);
  void Run();

  const std::shared_ptr<Queue> queue_;
  const OnReady on_ready_;
  std::vector<std::thread> threads_;
};

}  // namespace dsv4::server
