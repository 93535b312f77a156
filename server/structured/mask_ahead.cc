#include "server/structured/mask_ahead.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

namespace dsv4::server {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kHeavy{10};  // a sequence whose last mask took longer leaves a worker to the others

// What this thread has computed: that others had the core meanwhile makes no mask heavy.
std::chrono::nanoseconds ThreadTime() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

// Places that have something to do. Of several workers one is always left to those whose masks are quick.
struct MaskWorkers::Queue {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::shared_ptr<MaskAhead::Place>> quick, heavy;
  int num_heavy = 0;  // being worked out
  int most_heavy = 1;
  bool stop = false;

  void Add(const std::shared_ptr<MaskAhead::Place>& place);
  bool CanTake() const { return !quick.empty() || (!heavy.empty() && num_heavy < most_heavy); }
};

struct MaskAhead::Place {
  const std::shared_ptr<MaskWorkers::Queue> queue;
  const std::shared_ptr<const Grammar> grammar;
  const std::string begin;
  const std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);

  // Of the worker that has it.
  Status no_memory = ResourceExhausted("no memory for the grammar of the output");  // made while there was some
  std::unique_ptr<GrammarMatcher> matcher;
  std::atomic<bool> is_heavy = false;

  std::mutex mutex;  // of all below
  std::condition_variable changed;
  std::vector<TokenId> tokens;  // to take in
  bool queued = false;          // or in work
  bool call = false;            // on_ready is asked for
  State state = State::kBusy;
  std::vector<uint32_t> allowed;
  bool complete = false;
  Status status;

  Place(std::shared_ptr<MaskWorkers::Queue> its_queue, std::shared_ptr<const Grammar> its_grammar, std::string text)
      : queue(std::move(its_queue)), grammar(std::move(its_grammar)), begin(std::move(text)) {}
  bool Work();
  State Take(const std::vector<TokenId>& more, std::vector<uint32_t>* mask, Status* error);
};

void MaskWorkers::Queue::Add(const std::shared_ptr<MaskAhead::Place>& place) {
  {
    const std::lock_guard lock(mutex);
    (place->is_heavy ? heavy : quick).push_back(place);
  }
  wake.notify_one();
}

// What the tokens lead to. Without a lock: only one worker has a place at a time.
MaskAhead::State MaskAhead::Place::Take(const std::vector<TokenId>& more, std::vector<uint32_t>* mask,
                                        Status* error) try {
  const auto fail = [&](const Status& why) {
    *error = why;
    return State::kFailed;
  };
  if (matcher == nullptr) {
    matcher = grammar->NewMatcher(cancelled);
    const bool begun = begin.empty() || matcher->AcceptText(begin);
    if (!matcher->status().ok()) return fail(matcher->status());
    if (!begun) return State::kFree;
  }
  for (const TokenId id : more) {
    if (matcher->Accept(id)) continue;
    return fail(matcher->status().ok() ? Internal("the grammar of the output does not allow its next token")
                                       : matcher->status());
  }
  const std::span<const uint32_t> words = matcher->Allowed();
  if (!matcher->status().ok()) return fail(matcher->status());
  mask->assign(words.begin(), words.end());
  return State::kReady;
} catch (const std::bad_alloc&) {
  *error = std::move(no_memory);  // a place fails once
  return State::kFailed;
}

// True: on_ready is asked for.
bool MaskAhead::Place::Work() {
  std::unique_lock lock(mutex);
  while (true) {
    const std::vector<TokenId> more = std::exchange(tokens, {});
    lock.unlock();
    std::vector<uint32_t> mask;
    Status error;
    const auto start = ThreadTime();
    const State reached = *cancelled ? State::kFailed : Take(more, &mask, &error);
    is_heavy = ThreadTime() - start > kHeavy;
    lock.lock();
    if (reached == State::kReady && !tokens.empty()) continue;  // others came meanwhile
    state = reached;
    allowed = std::move(mask);
    complete = reached == State::kReady && matcher->complete();
    status = std::move(error);
    if (reached != State::kReady) matcher.reset();
    queued = false;
    changed.notify_all();
    return std::exchange(call, false);
  }
}

MaskAhead::~MaskAhead() { *place_->cancelled = true; }

void MaskAhead::Accept(TokenId id) {
  {
    const std::lock_guard lock(place_->mutex);
    if (place_->state == State::kFree || place_->state == State::kFailed) return;
    place_->tokens.push_back(id);
    place_->state = State::kBusy;
    if (std::exchange(place_->queued, true)) return;
  }
  place_->queue->Add(place_);
}

MaskAhead::State MaskAhead::WaitUntil(Clock::time_point until) {
  std::unique_lock lock(place_->mutex);
  if (place_->state == State::kBusy)
    place_->changed.wait_until(lock, until, [this] { return place_->state != State::kBusy; });
  return place_->state;
}

bool MaskAhead::CallWhenReady() {
  const std::lock_guard lock(place_->mutex);
  return place_->call = place_->state == State::kBusy;
}

std::span<const uint32_t> MaskAhead::allowed() const {
  const std::lock_guard lock(place_->mutex);
  return place_->allowed;
}

bool MaskAhead::complete() const {
  const std::lock_guard lock(place_->mutex);
  return place_->complete;
}

Status MaskAhead::status() const {
  const std::lock_guard lock(place_->mutex);
  return place_->status;
}

MaskWorkers::MaskWorkers(OnReady on_ready) : queue_(std::make_shared<Queue>()), on_ready_(std::move(on_ready)) {}

MaskWorkers::MaskWorkers(int num_threads, OnReady on_ready) : MaskWorkers(std::move(on_ready)) {
  queue_->most_heavy = std::max(num_threads - 1, 1);
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

MaskWorkers::~MaskWorkers() {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stop = true;
  }
  queue_->wake.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::unique_ptr<MaskAhead> MaskWorkers::Begin(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  auto place = std::make_shared<MaskAhead::Place>(queue_, grammar, text);
  place->queued = true;
  queue_->Add(place);
  return std::make_unique<MaskAhead>(std::move(place));
}

void MaskWorkers::Run() {
  std::unique_lock lock(queue_->mutex);
  while (true) {
    queue_->wake.wait(lock, [this] { return queue_->stop || queue_->CanTake(); });
    if (queue_->stop) return;
    const bool is_heavy = queue_->quick.empty();
    auto& from = is_heavy ? queue_->heavy : queue_->quick;
    std::shared_ptr<MaskAhead::Place> place = std::move(from.front());
    from.pop_front();
    queue_->num_heavy += is_heavy ? 1 : 0;
    lock.unlock();
    if (place->Work()) on_ready_();
    place.reset();  // perhaps with all its states
    lock.lock();
    queue_->num_heavy -= is_heavy ? 1 : 0;
    if (queue_->CanTake()) queue_->wake.notify_one();
  }
}

}  // namespace dsv4::server
