// Experts of a pass that the CPU computes beside a device (docs/offload.md): which of them, and what they make of the
// rows. All of it in plain memory; what the device reads and writes is brought by who calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "dsv4/types.h"
#include "ops/experts/experts.h"
#include "tensor/tensor.h"

namespace dsv4 {

// Seconds that one expert of the host's memory takes.
struct ExpertTimes {
  double link = 0;  // the device reads it over the link, for any rows of a decode step
  double cpu = 0;   // the CPU computes it for one row
  double row = 0;   // and for each row more
};

// An expert of the host's memory that `rows` of a pass's rows have chosen.
struct ChosenExpert {
  int32_t expert = 0;
  int64_t rows = 0;
};

// Returns how many experts of `chosen` the CPU computes so that the slower of CPU and PCIe link finishes earliest; 0 if
// the link alone is fastest. Sorts `chosen`: the CPU's experts first, with the fewest rows, because rows cost the CPU
// time and the link none.
int64_t ShareOfCpu(std::span<ChosenExpert> chosen, const ExpertTimes& times);

// What rows have chosen, in the order of the choice.
struct Choices {
  int64_t rows = 0, slots = 0;   // T; as many as the row with most has
  std::vector<int32_t> experts;  // [T, slots]; kNoExpert behind a row's last
  std::vector<float> weights;    // [T, slots]
};

// Pairs whose expert is `taken` [E] go to `cpu`, others to `device`: also experts of higher numbers (the shared one).
// Those without an expert go nowhere. experts, weights: [rows, slots].
void SplitChoices(std::span<const int32_t> experts, std::span<const float> weights, int64_t rows,
                  std::span<const uint8_t> taken, Choices* cpu, Choices* device);

// The CPU's part of a layer. Keeps its memory from call to call, and takes what is
// missing.
class ExpertSums {
 public:
  // Room for calls of so many rows with `slots` experts each, of shape [F, D]. Throws std::bad_alloc.
  void Reserve(int64_t rows, int64_t slots, int64_t d, int64_t f);
  // y[t] = sum of the outputs of row t's experts for x[t], as the op experts makes them; y, x: f32 [T, D]. `matrices`
  // [E], in rows or in tiles, of which those that are chosen are read. choices.slots is 1 at least.
  void Compute(ThreadPool* pool, const Tensor& x, Choices& choices, std::span<const ExpertMatrices> matrices,
               float limit, ActivationDtype activation, const Tensor& y);

 private:
  std::vector<float> hidden_, outputs_, rounded_;
};

}  // namespace dsv4
