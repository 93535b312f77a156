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
constexpr std::chrono::milliseconds kHeavy{10};  // CPU time of a mask; a sequence with a slower last mask is heavy

// The CPU time of this thread, so that a mask is not heavy because other threads used the core.
std::chrono::nanoseconds ThreadTime() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

// Sequences that have work to do. With several workers, one always remains free for sequences with quick masks.
struct MaskWorkers::Queue {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::shared_ptr<MaskAhead::Place>> quick, heavy;
  int num_heavy = 0;  // heavy sequences that workers have now
  int most_heavy = 1;
  bool stop = false;

  void Add(const std::shared_ptr<MaskAhead::Place>& place);
  bool CanTake() const { return !quick.empty() || (!heavy.empty() && num_heavy < most_heavy); }
};

struct MaskAhead::Place {
  // A token that may come, and the tokens that may follow it.
  struct Foreseen {
    TokenId id;
    std::vector<uint32_t> allowed;
    bool complete;
  };

  const std::shared_ptr<MaskWorkers::Queue> queue;
  const std::shared_ptr<const Grammar> grammar;
  const std::string begin;
  const std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);

  // Used only by the worker that has the sequence.
  Status no_memory = ResourceExhausted("no memory for the grammar of the output");  // made while there was memory
  std::unique_ptr<GrammarMatcher> matcher;  // has accepted `taken` and the tokens of `ahead`
  std::atomic<bool> is_heavy = false;

  std::mutex mutex;  // guards all members below
  std::condition_variable changed;
  std::vector<TokenId> tokens;  // not accepted yet
  std::vector<TokenId> taken;   // accepted before `tokens`
  bool queued = false;          // or a worker has it
  bool call = false;            // CallWhenReady was called
  State state = State::kBusy;
  std::vector<uint32_t> allowed;
  bool complete = false;
  Status status;
  std::deque<Foreseen> ahead;
  std::vector<TokenId> guess;  // tokens that may come after `tokens`
  bool guess_checked = true;   // the grammar allows all of it, and `ahead` is its beginning
  int64_t guesses = 0;         // number of guesses so far
  bool may_guess = true;       // false after a guess exceeded a limit of the matcher, which then started again

  Place(std::shared_ptr<MaskWorkers::Queue> its_queue, std::shared_ptr<const Grammar> its_grammar, std::string text)
      : queue(std::move(its_queue)), grammar(std::move(its_grammar)), begin(std::move(text)) {}
  bool Work();

  // Called with the lock held. They release it while they work.
  void TakeTokens(std::unique_lock<std::mutex>& lock);
  bool CheckGuess(std::unique_lock<std::mutex>& lock);
  bool LookAhead(std::unique_lock<std::mutex>& lock);

  bool WorkOnce(std::unique_lock<std::mutex>& lock);
  State Take(const std::vector<TokenId>& more, size_t rewind, std::vector<uint32_t>* mask, Status* error);
  void TakeForeseen();
  void Guess(std::span<const TokenId> next);
  void GiveUpGuesses();
};

void MaskWorkers::Queue::Add(const std::shared_ptr<MaskAhead::Place>& place) {
  {
    const std::lock_guard lock(mutex);
    (place->is_heavy ? heavy : quick).push_back(place);
  }
  wake.notify_one();
}

// Accepts the tokens and computes the mask. Called without the lock: only one worker has a sequence at a time, and only
// that worker uses `taken` during the call.
MaskAhead::State MaskAhead::Place::Take(const std::vector<TokenId>& more, size_t rewind, std::vector<uint32_t>* mask,
                                        Status* error) {
  const auto fail = [&](const Status& why) {
    *error = why;
    return State::kFailed;
  };
  if (matcher == nullptr) {
    matcher = grammar->NewMatcher(cancelled);
    const bool begun = begin.empty() || matcher->AcceptText(begin);
    if (!matcher->status().ok()) return fail(matcher->status());
    if (!begun) return State::kFree;
    for (const TokenId id : taken) (void)matcher->Accept(id);  // it accepted them before
  }
  matcher->Rollback(rewind);
  for (const TokenId id : more) {
    if (matcher->Accept(id)) continue;
    return fail(matcher->status().ok() ? Internal("the grammar of the output does not allow its next token")
                                       : matcher->status());
  }
  const std::span<const uint32_t> words = matcher->Allowed();
  if (!matcher->status().ok()) return fail(matcher->status());
  mask->assign(words.begin(), words.end());
  return State::kReady;
}

// The first token of `ahead` has come.
void MaskAhead::Place::TakeForeseen() {
  taken.push_back(ahead.front().id);
  allowed = std::move(ahead.front().allowed);
  complete = ahead.front().complete;
  ahead.pop_front();
}

void MaskAhead::Place::Guess(std::span<const TokenId> next) {
  guess.assign(next.begin(), next.end());
  guess_checked = next.empty();
  ++guesses;
}

// The work of a guess must not fail the sequence: the matcher starts again with the next token.
void MaskAhead::Place::GiveUpGuesses() {
  may_guess = false;
  matcher.reset();
  ahead.clear();
  Guess({});
}

void MaskAhead::Place::TakeTokens(std::unique_lock<std::mutex>& lock) {
  std::vector<TokenId> more = std::exchange(tokens, {});
  size_t foreseen = 0;
  for (; foreseen < more.size() && !ahead.empty() && ahead.front().id == more[foreseen]; ++foreseen) TakeForeseen();
  more.erase(more.begin(), more.begin() + static_cast<ptrdiff_t>(foreseen));
  if (foreseen > 0 && more.empty()) {
    state = State::kReady;
    changed.notify_all();
    return;
  }
  const size_t rewind = matcher == nullptr ? 0 : ahead.size();
  ahead.clear();
  lock.unlock();
  std::vector<uint32_t> mask;
  Status error;
  const auto start = ThreadTime();
  const State reached = *cancelled ? State::kFailed : Take(more, rewind, &mask, &error);
  is_heavy = ThreadTime() - start > kHeavy;
  lock.lock();
  taken.insert(taken.end(), more.begin(), more.end());
  if (reached == State::kReady && !tokens.empty()) return;  // more tokens came during the work
  state = reached;
  allowed = std::move(mask);
  complete = reached == State::kReady && matcher->complete();
  status = std::move(error);
  if (reached != State::kReady) matcher.reset();
  changed.notify_all();
}

// Finds out how much of the guess the grammar allows. Returns false if there was nothing to do.
bool MaskAhead::Place::CheckGuess(std::unique_lock<std::mutex>& lock) {
  if (guess_checked || matcher == nullptr) return false;
  size_t same = 0;
  while (same < ahead.size() && same < guess.size() && ahead[same].id == guess[same]) ++same;
  const size_t rewind = ahead.size() - same, size_before = guess.size();
  ahead.resize(same);
  const std::vector<TokenId> rest(guess.begin() + static_cast<ptrdiff_t>(same), guess.end());
  const int64_t guess_before = guesses;
  lock.unlock();
  size_t right = 0;
  matcher->Rollback(rewind);
  while (right < rest.size() && matcher->Accept(rest[right])) ++right;
  matcher->Rollback(right);
  lock.lock();
  if (!matcher->status().ok()) {
    GiveUpGuesses();
  } else if (guesses == guess_before) {
    const size_t come = size_before - guess.size();  // tokens that came during the check
    guess.resize(std::max(same + right, come) - come);
    guess_checked = true;
  }
  changed.notify_all();
  return true;
}

// Accepts the next token of the guess. Returns false if there was nothing to do.
bool MaskAhead::Place::LookAhead(std::unique_lock<std::mutex>& lock) {
  if (guess.size() <= ahead.size() || matcher == nullptr || is_heavy) return false;
  Foreseen next{.id = guess[ahead.size()], .allowed = {}, .complete = false};
  lock.unlock();
  const auto start = ThreadTime();
  const bool accepted = matcher->Accept(next.id);
  const std::span<const uint32_t> words = accepted ? matcher->Allowed() : std::span<const uint32_t>();
  next.allowed.assign(words.begin(), words.end());
  next.complete = matcher->complete();
  is_heavy = is_heavy || ThreadTime() - start > kHeavy;
  lock.lock();
  if (accepted && matcher->status().ok()) {
    ahead.push_back(std::move(next));
  } else {
    GiveUpGuesses();
  }
  return true;
}

// Does one piece of work. Returns false if there was nothing to do.
bool MaskAhead::Place::WorkOnce(std::unique_lock<std::mutex>& lock) {
  const bool takes = state == State::kBusy;
  try {
    if (takes) return TakeTokens(lock), true;
    return state == State::kReady && !call && !*cancelled && (CheckGuess(lock) || LookAhead(lock));
  } catch (const std::bad_alloc&) {
    if (!lock.owns_lock()) lock.lock();
    matcher.reset();
    if (takes) {
      state = State::kFailed;
      status = std::move(no_memory);  // moved: a sequence fails only once
    } else {
      GiveUpGuesses();
    }
    changed.notify_all();
    return true;
  }
}

// Returns true if on_ready must be called.
bool MaskAhead::Place::Work() {
  std::unique_lock lock(mutex);
  while (WorkOnce(lock)) {
  }
  queued = false;
  changed.notify_all();
  return std::exchange(call, false);
}

MaskAhead::~MaskAhead() { *place_->cancelled = true; }

void MaskAhead::Accept(TokenId id) {
  Place& p = *place_;
  {
    const std::lock_guard lock(p.mutex);
    if (p.state == State::kFree || p.state == State::kFailed) return;
    if (!p.guess.empty() && p.guess.front() == id) {
      p.guess.erase(p.guess.begin());
    } else {
      p.Guess({});
    }
    if (p.state == State::kReady && !p.ahead.empty() && p.ahead.front().id == id) return p.TakeForeseen();
    p.tokens.push_back(id);
    p.state = State::kBusy;
    if (std::exchange(p.queued, true)) return;
  }
  p.queue->Add(place_);
}

size_t MaskAhead::Foresee(std::span<const TokenId> tokens, Clock::time_point until) {
  Place& p = *place_;
  std::unique_lock lock(p.mutex);
  if (p.state == State::kFree) return tokens.size();
  if (p.state != State::kReady || !p.may_guess || p.is_heavy || tokens.empty()) return 0;
  p.Guess(tokens);
  if (!std::exchange(p.queued, true)) {
    lock.unlock();
    p.queue->Add(place_);
    lock.lock();
  }
  const int64_t guess = p.guesses;
  p.changed.wait_until(lock, until, [&] { return p.guess_checked || p.guesses != guess; });
  return p.guess_checked && p.guesses == guess ? p.guess.size() : 0;
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
    place.reset();  // may free all its states
    lock.lock();
    queue_->num_heavy -= is_heavy ? 1 : 0;
    if (queue_->CanTake()) queue_->wake.notify_one();
  }
}

}  // namespace dsv4::server
