// Computes masks ahead of the engine's thread. While the model computes a step, a worker adds the last token to the
// sequence's grammar and computes which tokens may follow. If that takes long, only that sequence waits.
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

// The position of one sequence in a grammar. Used by one thread, in addition to the worker.
class MaskAhead {
 public:
  struct Place;  // the state shared with the worker
  explicit MaskAhead(std::shared_ptr<Place> place) : place_(std::move(place)) {}
  ~MaskAhead();  // cancels pending work
  MaskAhead(const MaskAhead&) = delete;
  MaskAhead& operator=(const MaskAhead&) = delete;

  void Accept(TokenId id);

  // Proposes tokens that may come next. Returns how many of them, from the first, the grammar allows, as far as that is
  // known by `until`. A worker then computes the masks after these tokens, so that Accept has them at once.
  size_t Foresee(std::span<const TokenId> tokens, std::chrono::steady_clock::time_point until);

  enum class State : uint8_t {
    kBusy,
    kReady,
    kFree,    // the text does not begin as the grammar requires: the sequence has no grammar
    kFailed,  // status() says why
  };
  State WaitUntil(std::chrono::steady_clock::time_point until);

  // Makes MaskWorkers call on_ready when the sequence is no longer busy. Returns false if it is not busy.
  bool CallWhenReady();

  // Valid in state kReady until the next Accept.
  std::span<const uint32_t> allowed() const;  // empty: all
  bool complete() const;

  Status status() const;

 private:
  const std::shared_ptr<Place> place_;
};

class MaskWorkers {
 public:
  using OnReady = std::function<void()>;  // called on a worker

  MaskWorkers(int num_threads, OnReady on_ready);  // throws std::system_error if the system has no more threads
  ~MaskWorkers();

  // `text`: the part of the grammar's text that has been written already.
  std::unique_ptr<MaskAhead> Begin(const std::shared_ptr<const Grammar>& grammar, const std::string& text = "");

 private:
  friend class MaskAhead;
  struct Queue;
  // Starts no thread. If starting one throws later, the destructor ends the others.
  explicit MaskWorkers(OnReady on_ready);
  void Run();

  const std::shared_ptr<Queue> queue_;
  const OnReady on_ready_;
  std::vector<std::thread> threads_;
};

}  // namespace dsv4::server
