#include "server/schedule/step_times.h"

#include <algorithm>
#include <cmath>

#include "dsv4/engine.h"

namespace dsv4::server {

namespace {

constexpr double kRate = 0.3;                  // part of an error that a correction takes
constexpr int kMostTimes = 8;                  // corrections after which a knot is as firm as it gets
constexpr double kLeastWeight = 0.05;          // of a knot that is corrected
constexpr double kFarOff = 1.15, kLone = 1.5;  // ratios; a single pass beyond kLone corrects nothing
constexpr int kRun = 3;                        // passes in a row that are far off: the machine, or a start, was wrong
constexpr double kFade = 0.998;                // of the largest pass, per pass
constexpr int64_t kUntimed = 256;              // prompt tokens of a step before any prompt was timed
constexpr int64_t kLeastTried = 512;
constexpr size_t kFewRatios = 8;
constexpr double kMostDistance = 1.5;
constexpr double kSequences = 4;    // further sequences that weigh as much as a table's value
constexpr double kLeastPart = 0.1;  // of a step's time that is its prompts', whatever the rows should take
constexpr double kLeastSeconds = 1e-9;

}  // namespace

void StepShape::Add(const StepShape& other) {
  rows += other.rows;
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].tokens += other.prompts[i].tokens;
    prompts[i].sequences += other.prompts[i].sequences;
  }
}

void StepShape::AddPrompt(std::optional<PromptRegime> regime, int64_t tokens) {
  if (!regime) {
    rows += tokens;
    return;
  }
  of(*regime).tokens += tokens;
  of(*regime).sequences += 1;
}

// ---- TimeTable

std::array<TimeTable::Near, 2> TimeTable::Around(int64_t tokens) {
  const auto x = static_cast<double>(std::max<int64_t>(tokens, 1));
  size_t i = 0;
  while (i + 2 < kKnots && TokensAt(i + 1) <= x) ++i;
  const double part = std::min((x - TokensAt(i)) / (TokensAt(i + 1) - TokensAt(i)), 1.0);
  return {Near{i, 1 - part}, Near{i + 1, part}};
}

double TimeTable::At(int64_t tokens) const {
  const auto x = static_cast<double>(std::max<int64_t>(tokens, 1));
  // The last two known knots up to x, and the first one after it.
  size_t before = kKnots, back = kKnots, after = kKnots;
  for (size_t i = 0; i < kKnots; ++i) {
    if (!knots_[i].known) continue;
    if (TokensAt(i) <= x) {
      back = before;
      before = i;
    } else if (after == kKnots) {
      after = i;
    }
  }
  if (before == kKnots) return after == kKnots ? 0 : knots_[after].seconds;
  const double low = knots_[before].seconds, at = TokensAt(before);
  double slope = 0.5 * low / at;
  if (after < kKnots) {
    slope = (knots_[after].seconds - low) / (TokensAt(after) - at);
  } else if (back < kKnots) {
    slope = (low - knots_[back].seconds) / (at - TokensAt(back));
  }
  return low + std::max(slope, 0.0) * (x - at);
}

bool TimeTable::IsFirm(int64_t tokens) const {
  const std::array<Near, 2> near = Around(tokens);
  return std::all_of(near.begin(), near.end(), [this](const Near& n) {
    return n.part <= kLeastWeight || (knots_[n.knot].known && knots_[n.knot].times > 1);
  });
}

// Divides the error among the two knots and the additional unknown by their weights. A knot that was corrected less
// often takes more.
double TimeTable::Correct(int64_t tokens, double error, double weight) {
  const std::array<Near, 2> near = Around(tokens);
  const size_t closer = near[0].part >= near[1].part ? near[0].knot : near[1].knot;
  if (!known()) {
    knots_[closer] = {.seconds = std::max(error, 0.0), .times = 1, .known = true};
    num_known_ = 1;
    return 0;
  }
  double sum = weight * weight / kMostTimes;
  int fewest = kMostTimes;
  std::array<double, 2> shares = {};
  for (size_t i = 0; i < 2; ++i) {
    Knot& knot = knots_[near[i].knot];
    if (near[i].part <= kLeastWeight) continue;
    if (!knot.known) {
      knot.seconds = At(int64_t{1} << near[i].knot);
      knot.known = true;
      ++num_known_;
    }
    shares[i] = near[i].part / (knot.times + 1);
    sum += shares[i] * near[i].part;
    fewest = std::min(fewest, knot.times);
    knot.times = std::min(knot.times + 1, kMostTimes - 1);
  }
  const double step = std::max(kRate, 1.0 / (fewest + 1)) * error / sum;
  for (size_t i = 0; i < 2; ++i) {
    if (shares[i] > 0) knots_[near[i].knot].seconds += step * shares[i];
  }
  knots_[closer].seconds = std::max(knots_[closer].seconds, 0.0);
  Tie(closer);
  return step * weight / kMostTimes;
}

void TimeTable::Scale(double factor) {
  for (Knot& knot : knots_) knot.seconds *= factor;
}

void TimeTable::Tie(size_t moved) {
  const double value = knots_[moved].seconds;
  for (size_t i = 0; i < kKnots; ++i) {
    if (!knots_[i].known || i == moved) continue;
    const double in_proportion = value * TokensAt(i) / TokensAt(moved);
    knots_[i].seconds = std::clamp(knots_[i].seconds, std::min(value, in_proportion), std::max(value, in_proportion));
  }
}

// ---- PassTimes

double PassTimes::Guess(int64_t tokens, int64_t sequences) const {
  return known() ? table_.At(tokens) + each_ * static_cast<double>(std::max<int64_t>(sequences - 1, 0)) : 0;
}

void PassTimes::Add(int64_t tokens, int64_t sequences, double seconds) {
  Tried(tokens);
  const bool first = !known();
  const double ratio = seconds / std::max(Guess(tokens, sequences), kLeastSeconds);
  if (table_.IsFirm(tokens) && ScaleIfChanged(ratio)) return;
  const double weight = first ? 0 : static_cast<double>(sequences - 1) / kSequences;
  const double error = seconds - Guess(tokens, sequences);
  each_ = std::max(each_ + table_.Correct(tokens, error, weight) / kSequences, 0.0);
}

void PassTimes::AddSum(int64_t tokens, double ratio) {
  Tried(tokens);
  ScaleIfChanged(ratio);
}

void PassTimes::Tried(int64_t tokens) { largest_ = std::max(static_cast<double>(tokens), kFade * largest_); }

// A pass that is far off alone teaches nothing. Several in a row scale the whole table.
bool PassTimes::ScaleIfChanged(double ratio) {
  const int direction = ratio > kFarOff ? 1 : ratio < 1 / kFarOff ? -1 : 0;
  run_ = direction == 0 ? 0 : direction == direction_ ? run_ + 1 : 1;
  direction_ = direction;
  if (run_ == 0) return false;
  least_ = run_ == 1 ? ratio : direction > 0 ? std::min(least_, ratio) : std::max(least_, ratio);
  if (run_ < kRun) return ratio > kLone || ratio < 1 / kLone;
  table_.Scale(least_);
  each_ *= least_;
  run_ = direction_ = 0;
  num_ratios_ = 0;
  distance_ = kFirstDistance;
  return true;
}

void PassTimes::Note(double ratio) {
  ratios_[num_ratios_++ % kWindow] = ratio;
  const size_t count = std::min(num_ratios_, kWindow);
  if (count < kFewRatios) return;
  std::array<double, kWindow> sorted = ratios_;
  std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(count));
  const double median = sorted[count / 2], most = sorted[count * 9 / 10];
  distance_ = median > 0 ? std::clamp(most / median, 1.0, kMostDistance) : kMostDistance;
}

int64_t PassTimes::most_tokens() const {
  return largest_ == 0 ? kUntimed : std::max(static_cast<int64_t>(2 * largest_), kLeastTried);
}

// ---- StepTimes

double StepTimes::Prompts(PromptRegime regime, const StepShape::Prompts& prompts) const {
  if (prompts.tokens == 0) return 0;
  const PassTimes& own = of(regime);
  if (own.known()) return own.Guess(prompts.tokens, prompts.sequences);
  const PassTimes& other = of(regime == PromptRegime::kLong ? PromptRegime::kShort : PromptRegime::kLong);
  return other.Guess(prompts.tokens, prompts.sequences);
}

double StepTimes::Guess(const StepShape& step) const {
  double seconds = step.rows > 0 ? rows_.Guess(step.rows, 1) : 0;
  for (const PromptRegime regime : {PromptRegime::kShort, PromptRegime::kLong})
    seconds += Prompts(regime, step.of(regime));
  return seconds;
}

double StepTimes::Distance(const StepShape& step) const {
  double distance = 0;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    if (step.prompts[i].tokens > 0) distance = std::max(distance, prompts_[i].distance());
  }
  return distance > 0 ? distance : rows_.distance();
}

void StepTimes::Add(const StepShape& step, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  const double ratio = seconds / std::max(Guess(step), kLeastSeconds);
  if (step.prompts[0].tokens == 0 && step.prompts[1].tokens == 0) {
    if (rows_.known()) rows_.Note(ratio);
    if (step.rows > 0) rows_.Add(step.rows, 1, seconds);
    return;
  }
  const double rows = step.rows > 0 ? rows_.Guess(step.rows, 1) : 0;
  // Rows alone cannot take longer than the step. Without steps that have only rows, nothing else would show it.
  if (rows > seconds) rows_.AddSum(step.rows, seconds / rows);
  const double rest = std::max(seconds - rows, kLeastPart * seconds);
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const StepShape::Prompts &own = step.prompts[i], &other = step.prompts[1 - i];
    if (own.tokens == 0) continue;
    PassTimes& times = prompts_[i];
    if (times.known()) times.Note(ratio);
    if (other.tokens == 0) {
      times.Add(own.tokens, own.sequences, rest);
    } else if (times.known() && prompts_[1 - i].known()) {
      times.AddSum(own.tokens, ratio);
    } else if (!times.known()) {
      times.Add(own.tokens, own.sequences,
                rest * static_cast<double>(own.tokens) / static_cast<double>(own.tokens + other.tokens));
    }
  }
}

bool StepTimes::MayTry(const StepShape& step) const {
  if (step.rows > std::max(rows_.most_tokens(), kMaxDecodeRows)) return false;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    if (step.prompts[i].tokens > prompts_[i].most_tokens()) return false;
  }
  return true;
}

int64_t StepTimes::Sequences(double bound, int64_t limit) const {
  const auto fits = [&](int64_t n) { return Fits({.rows = n}, bound); };
  if (fits(limit) || !fits(1)) return limit;
  int64_t low = 1, high = limit;  // fits(low), not fits(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace dsv4::server
