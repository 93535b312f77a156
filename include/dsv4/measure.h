// Measurements: peak rates of an engine's processor, times of ops in a step, and helpers for benchmarks. Functions
// return kUnsupported on other devices than the CPU, except AppendCopies and ReplaceDrafts. Rates are per second, times
// in seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/export.h"
#include "dsv4/session.h"
#include "dsv4/status.h"

namespace dsv4 {

struct CpuInfo {
  int num_threads = 0;       // threads of the engine
  int num_cores = 0;         // cores that this process may use
  int num_nodes = 0;         // memory nodes of these cores
  bool pinned = false;       // each thread stays on one core
  std::string instructions;  // instruction set of the kernels: "avx2"
};
DSV4_API Result<CpuInfo> DescribeCpu(Engine& engine);

// Returns the peak rate of fused float32 multiply-adds in registers, for all threads of the engine together.
DSV4_API Result<double> MeasureFmaRate(Engine& engine);

struct OpTime {
  std::string op, detail;  // "linear", "NVFP4 4096x8192"
  int64_t calls = 0;
  double seconds = 0;   // without the time of nested ops
  double bytes = 0;     // minimum reads of weights and cache rows
  double products = 0;  // multiply-adds
};
// Runs `work` and returns the ops that it ran on the engine, in order of their first call. Calls with the same op and
// detail are added up. Returns the error of `work` if it fails.
DSV4_API Result<std::vector<OpTime>> TraceOps(Engine& engine, const std::function<Status()>& work);

struct LinearShape {
  int64_t rows = 0, cols = 0, groups = 1;  // outputs, inputs, and groups (block-diagonal matrices) of a linear
};
// Returns the different shapes of the engine's model, in order of their first use.
DSV4_API Result<std::vector<LinearShape>> LinearShapes(Engine& engine);

struct LinearTime {
  int64_t rows = 0;                             // rows that were measured
  double seconds = 0, bytes = 0, products = 0;  // per call: median time, bytes read, multiply-adds
};
// Measures one linear with random weights in `format` ("NVFP4", "MXFP4", "FP8" or "BF16") for about `budget` seconds.
// The calls cycle through copies of the matrix that together exceed the caches. Uses the engine's integer inputs and
// AMX tiles if its options enable them. Matrices of more than 256 MiB are shortened to fewer rows. Error:
// kInvalidArgument (another format).
DSV4_API Result<LinearTime> MeasureLinear(Engine& engine, const std::string& format, const LinearShape& shape,
                                          int64_t num_tokens, double budget);

// Appends tokens without computing them. Their cached rows are copies of the session's complete pages (256 tokens), in
// turn. Requires at least one complete page. For measurements at contexts that would take minutes or hours to fill; the
// generated text has no meaning. Errors: kInvalidArgument (no complete page, an id outside the vocabulary),
// kResourceExhausted (context limit, memory).
DSV4_API Status AppendCopies(Session& session, std::span<const TokenId> tokens);

// Tokens that a session is known to emit.
struct KnownText {
  const Session* session = nullptr;
  size_t begin = 0;             // position of the first token of `tokens`
  std::vector<TokenId> tokens;  // tokens of the session from `begin`
};
struct KnownDrafts {
  std::vector<KnownText> texts;
  // Acceptance rate: probability that a draft token is right if all tokens of the draft before it are. The lengths of
  // runs of accepted tokens follow the geometric distribution exactly, so that two measurements give the same figure.
  double acceptance = 1;
  double repeats = 0;  // probability that a wrong token repeats the token before it; otherwise it is random
  int64_t tokens = 0;  // length of every draft; 0: the engine's policy decides
  uint64_t seed = 1;
};
// Replaces the drafts of `engine` by drafts with a given acceptance rate, to measure the effect of drafts of that
// quality. The engine still makes its own drafts, so their cost is included. Empty `known.texts` restores the engine's
// own drafts. The sessions of `known` must exist until then. On any device. Error: kInvalidArgument (the engine has no
// drafter).
DSV4_API Status ReplaceDrafts(Engine& engine, KnownDrafts known);

}  // namespace dsv4
