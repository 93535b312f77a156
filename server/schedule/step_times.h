// Predicts the time of the model's passes in a step, from passes that were timed. From it follow the prompt tokens of a
// step and the number of sequences that keep within a bound. Pure logic: it reads no clock. Work of the host between
// passes is not part of these times, because a smaller step would not shorten it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace dsv4::server {

// How the engine computes prompt rows (StepItem::prompt_tokens). Rows of short prompts cost more.
enum class PromptRegime : uint8_t { kShort, kLong };

// The tokens of one step. Prompts that the engine computes as decode rows count as rows.
struct StepShape {
  struct Prompts {
    int64_t tokens = 0, sequences = 0;
  };
  int64_t rows = 0;
  std::array<Prompts, 2> prompts = {};  // by regime

  Prompts& of(PromptRegime regime) { return prompts[static_cast<size_t>(regime)]; }
  const Prompts& of(PromptRegime regime) const { return prompts[static_cast<size_t>(regime)]; }
  void Add(const StepShape& other);
  // Adds tokens of one prompt. No regime: the engine computes them as decode rows.
  void AddPrompt(std::optional<PromptRegime> regime, int64_t tokens);
  bool empty() const { return rows == 0 && prompts[0].tokens == 0 && prompts[1].tokens == 0; }
};

// Seconds by number of tokens: straight between powers of two. More tokens never take less, and never more than in
// proportion.
class TimeTable {
 public:
  bool known() const { return num_known_ > 0; }
  // Returns 0 if nothing is known.
  double At(int64_t tokens) const;
  // Whether the values near `tokens` were corrected more than once.
  bool IsFirm(int64_t tokens) const;
  // Corrects the table near `tokens`: it is `error` seconds too low. Returns the part of the error that an
  // additional unknown with this weight should take: its correction is the result times `weight`.
  double Correct(int64_t tokens, double error, double weight);
  void Scale(double factor);

 private:
  static constexpr size_t kKnots = 14;  // 1, 2, 4, ... 8,192
  struct Knot {
    double seconds = 0;
    int times = 0;  // that it was corrected, up to a limit
    bool known = false;
  };
  struct Near {
    size_t knot;
    double part;  // of the value at `tokens`; both parts add up to 1
  };
  static double TokensAt(size_t knot) { return static_cast<double>(int64_t{1} << knot); }
  static std::array<Near, 2> Around(int64_t tokens);
  void Tie(size_t moved);

  std::array<Knot, kKnots> knots_ = {};
  size_t num_known_ = 0;
};

// Passes of one kind: a table for one sequence, and the time of each further sequence.
class PassTimes {
 public:
  bool known() const { return table_.known(); }
  double Guess(int64_t tokens, int64_t sequences) const;
  void Add(int64_t tokens, int64_t sequences, double seconds);
  // The ratio is that of a sum of passes with this one: it corrects the table only if such sums are far off again and
  // again.
  void AddSum(int64_t tokens, double ratio);
  // Notes how a whole step of this kind compares to its guess.
  void Note(double ratio);
  // The factor between a usual step and one that nine of ten do not exceed: 1 to 1.5.
  double distance() const { return distance_; }
  // The most tokens that a step should try, by the passes timed recently.
  int64_t most_tokens() const;

 private:
  void Tried(int64_t tokens);
  bool ScaleIfChanged(double ratio);  // true: the pass says no more

  TimeTable table_;
  double each_ = 0;              // of a further sequence
  double largest_ = 0;           // tokens of the largest pass; fades
  int direction_ = 0, run_ = 0;  // passes in a row that were far off, in one direction
  double least_ = 1;             // of their ratios: the one closest to 1
  static constexpr size_t kWindow = 32;
  static constexpr double kFirstDistance = 1.1;
  std::array<double, kWindow> ratios_ = {};
  size_t num_ratios_ = 0;
  double distance_ = kFirstDistance;
};

class StepTimes {
 public:
  // One pass, or several that ran one after another. A sum of two prompt passes corrects a table only if all others
  // are known, or if such sums are off again and again.
  void Add(const StepShape& step, double seconds);

  // The usual time of such a step. Parts of which nothing is known count as 0.
  double Guess(const StepShape& step) const;
  // The factor for a step of this kind by which a bound must exceed the guess.
  double Distance(const StepShape& step) const;
  // A time that nine of ten such steps keep.
  double Expect(const StepShape& step) const { return Guess(step) * Distance(step); }
  bool Fits(const StepShape& step, double bound) const { return Expect(step) <= bound; }

  // Whether a step of this size may be tried: at most twice the largest recent pass, few tokens if none was timed.
  bool MayTry(const StepShape& step) const;

  // Returns the most sequences whose steps without prompts stay within `bound`, at most `limit`. Also returns `limit`
  // if even one sequence does not, or if no such step was timed.
  int64_t Sequences(double bound, int64_t limit) const;

 private:
  double Prompts(PromptRegime regime, const StepShape::Prompts& prompts) const;
  const PassTimes& of(PromptRegime regime) const { return prompts_[static_cast<size_t>(regime)]; }

  PassTimes rows_;
  std::array<PassTimes, 2> prompts_;  // by regime
};

}  // namespace dsv4::server
