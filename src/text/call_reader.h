// Reads a block of tool calls that comes in pieces. The rules are in dsv4/output_parser.h.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv4/output_parser.h"
#include "text/call_arguments.h"
#include "text/dsml.h"

namespace dsv4 {

struct CallReaderOptions {
  bool stream = false;    // the text is well-formed: deltas come at once, and the block ends at its last tag
  bool one_call = false;  // the block ends after one call
  bool in_fence = false;  // the block begins inside a code fence
  const std::vector<ToolSignature>* tools = nullptr;
};

class CallReader {
 public:
  enum class State : uint8_t { kReading, kCalls, kText };  // kText: the block is malformed

  // `call`: the byte of the block at which its first call begins; everything before it was pushed.
  CallReader(const CallReaderOptions& options, size_t call) : options_(options), at_(call) {}

  State Push(std::string_view bytes);
  State Finish();

  // The deltas so far, of all calls: with `stream` at any time, otherwise after kCalls. Their index is not set.
  std::vector<OutputDelta> TakeDeltas() { return std::exchange(deltas_, {}); }

  // All bytes that were pushed.
  const std::string& raw() const { return raw_; }
  // With `stream`: a call has begun and has not ended.
  bool call_open() const { return call_open_; }

 private:
  enum class Place : uint8_t {
    kCall,         // at a call's tag
    kBody,         // after it
    kValue,        // inside a parameter
    kAfterValue,   // after a parameter
    kObject,       // inside a JSON object in place of parameters
    kAfterCall,    // after the end of a call
    kAfterBlock,   // after the end of the block
    kAfterOutput,  // text follows the calls
  };

  // Each reads one part. False: more bytes are needed, or the state has changed.
  bool Step();
  bool ReadBetween();
  bool ReadTagOfCall(const DsmlTag& tag);
  bool ReadAfterCall(size_t at);
  bool ReadValue();
  bool ReadObject();
  bool ReadAfterOutput();

  bool BeginCall(const DsmlTag& tag);
  bool BeginValue(const DsmlTag& tag);
  bool EndValue(size_t end);
  bool EndCall();
  void StreamValue(size_t end);
  bool End(State state);
  void Emit(OutputDelta::Kind kind, std::string_view text);
  std::string_view From(size_t at) const { return std::string_view(raw_).substr(at); }

  const CallReaderOptions options_;
  State state_ = State::kReading;
  Place place_ = Place::kCall;
  std::string raw_;
  size_t at_;          // all before it has been read
  size_t search_ = 0;  // in a value or object: no marker begins before it

  const ToolSignature* tool_ = nullptr;
  std::string name_;
  std::string object_;  // the arguments, if the call states them as one JSON object
  std::set<std::string> keys_;
  std::vector<Argument> arguments_;
  bool call_open_ = false;
  bool is_string_ = false;      // the value
  bool streams_value_ = false;  // its pieces are emitted
  uint8_t types_ = kAnyType;
  std::vector<OutputDelta> deltas_;
};

}  // namespace dsv4
