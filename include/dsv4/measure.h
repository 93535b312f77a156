// For measurements: what an engine's processor could do at most, and where the time of its steps goes. The CPU only;
// elsewhere every call ends with kUnsupported, but for Engine::MeasureReadRate, AppendCopies and ReplaceDrafts. Rates
// are of a second, times are in seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "dsv4/status.h"

namespace dsv4 {

// Threads of the engine, and on how many cores this process may run.
struct CpuInfo {
  int num_threads = 0;
  int num_cores = 0;
  int num_nodes = 0;  // of memory that those cores belong to
  bool pinned = false;
  std::string instructions;  // the set that kernels use: "avx2"
};
Result<CpuInfo> DescribeCpu(Engine& engine);

// Fused float32 multiply-adds a second, in registers, of the engine's threads together.
Result<double> MeasureFmaRate(Engine& engine);

struct OpTime {
  std::string op, detail;  // "linear", "NVFP4 4096x8192"
  int64_t calls = 0;
  double seconds = 0;   // without the ops that it calls
  double bytes = 0;     // of weights and cache rows that it reads at least
  double products = 0;  // multiply-adds
};
// The ops that `work` runs on the engine, in order of their first call. Ops that the trace sees as one are one row.
// Errors: those of `work`.
Result<std::vector<OpTime>> TraceOps(Engine& engine, const std::function<Status()>& work);

struct LinearShape {
  int64_t rows = 0, cols = 0, groups = 1;  // as ops/linear has them
};
// Of the engine's model, each once, in order of their first use.
Result<std::vector<LinearShape>> LinearShapes(Engine& engine);

// One linear of random weights in `format` ("NVFP4", "MXFP4", "FP8", "BF16"), as many of them in turn as no cache
// holds, for about `budget` seconds: the median time of a call, with the engine's integer inputs and AMX tiles where
// its options have them. Matrices of more than 256 MiB lose rows. Error: kInvalidArgument (another format).
struct LinearTime {
  int64_t rows = 0;
  double seconds = 0, bytes = 0, products = 0;
};
Result<LinearTime> MeasureLinear(Engine& engine, const std::string& format, const LinearShape& shape,
                                 int64_t num_tokens, double budget);

// Appends tokens without computing them: their cached rows are copies of those of the session's whole pages of 256
// tokens, in turn; there must be one. For measurements at contexts that would take minutes or hours to fill; the text
// that follows means nothing. Errors: kInvalidArgument (no whole page yet, an id outside the vocabulary),
// kResourceExhausted (context limit, memory).
Status AppendCopies(Session& session, std::span<const TokenId> tokens);

// What a session is going to say, as far as is known.
struct KnownText {
  const Session* session = nullptr;
  size_t begin = 0;             // its tokens in front of
  std::vector<TokenId> tokens;  // these
};
struct KnownDrafts {
  std::vector<KnownText> texts;
  // Share of a draft's tokens that are right where those in front of it are. Runs of right ones have the lengths that
  // chance would give them, each as often as is to be expected: luck has no part in what drafts give.
  double right = 1;
  double repeats = 0;  // of a wrong one: that it repeats the token in front of it, else it is any
  int64_t tokens = 0;  // of every draft; 0: what the engine's policy takes
  uint64_t seed = 1;
};
// From now on drafts of `engine` are made as its options say, which takes its time, and then replaced: for figures of
// what drafts would give if they were so good. Without texts drafts are its own again. Sessions outlive that; on any
// device. Errors: kInvalidArgument (an engine that does not draft).
Status ReplaceDrafts(Engine& engine, KnownDrafts known);

}  // namespace dsv4
