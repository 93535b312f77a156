#include "text/call_reader.h"

#include <algorithm>

#include "text/format.h"
#include "text/json_value.h"

namespace dsv4 {

namespace {

using format::kDsml;

constexpr size_t kMaxAfterOutput = 1024;  // bytes after the calls in which a tag is looked for
constexpr std::string_view kFence = "```";

// The length of `text` without an end that may begin a tag.
size_t WithoutTagBegin(std::string_view text) {
  const size_t begin = text.rfind('<');
  if (begin == text.npos) return text.size();
  std::string_view rest = text.substr(begin + 1);
  if (rest.starts_with('/')) rest.remove_prefix(1);
  return kDsml.starts_with(rest) ? begin : text.size();
}

}  // namespace

CallReader::State CallReader::Push(std::string_view bytes) {
  raw_ += bytes;
  while (state_ == State::kReading && Step()) {
  }
  return state_;
}

CallReader::State CallReader::Finish() {
  if (state_ != State::kReading) return state_;
  const std::string_view rest = From(SkipBlanks(raw_, at_));
  const bool complete = place_ == Place::kAfterOutput || (place_ == Place::kAfterBlock && rest.empty()) ||
                        (place_ == Place::kAfterCall && (rest.empty() || rest.starts_with("</")));
  End(complete ? State::kCalls : State::kText);
  return state_;
}

bool CallReader::Step() {
  switch (place_) {
    case Place::kValue:
      return ReadValue();
    case Place::kObject:
      return ReadObject();
    case Place::kAfterOutput:
      return ReadAfterOutput();
    default:
      return ReadBetween();
  }
}

// White space, and then a tag or something else.
bool CallReader::ReadBetween() {
  const size_t at = SkipBlanks(raw_, at_);
  if (at == raw_.size()) return false;
  if (place_ == Place::kAfterCall || place_ == Place::kAfterBlock) return ReadAfterCall(at);
  if (place_ == Place::kBody && raw_[at] == '{') {
    place_ = Place::kObject;
    at_ = search_ = at;
    return true;
  }
  DsmlTag tag;
  const Match m = ReadDsmlTag(From(at), &tag);
  if (m == Match::kMaybe) return false;
  if (m == Match::kNo) return End(State::kText);
  at_ = at + tag.size;
  return ReadTagOfCall(tag);
}

bool CallReader::ReadTagOfCall(const DsmlTag& tag) {
  if (place_ == Place::kCall) return BeginCall(tag);
  if (!tag.closes && tag.word == "parameter") return BeginValue(tag);
  if (tag.closes && tag.word == "invoke") return EndCall();
  // A call without an end is complete if another tag shows that no parameter follows.
  if (place_ != Place::kAfterValue || tag.word == "parameter") return End(State::kText);
  if (tag.closes) {
    if (!EndCall()) return false;
    place_ = Place::kAfterBlock;
    return !options_.stream || End(State::kCalls);
  }
  if (tag.word != "invoke") return End(State::kText);
  return EndCall() && BeginCall(tag);
}

bool CallReader::ReadAfterCall(size_t at) {
  size_t call = 0;
  DsmlTag tag;
  const Match begins = ReadBlockBegin(From(at), &call);
  const Match m = ReadDsmlTag(From(at), &tag);
  if (begins == Match::kYes && (place_ == Place::kAfterBlock || call == 0)) {
    at_ = at + call;
    place_ = Place::kCall;
    return !options_.one_call || End(State::kCalls);
  }
  if (m == Match::kMaybe || begins == Match::kMaybe) return false;
  if (m == Match::kYes && tag.closes && place_ == Place::kAfterCall && tag.word != "invoke" &&
      tag.word != "parameter") {
    at_ = at + tag.size;
    place_ = Place::kAfterBlock;
    return !options_.stream || End(State::kCalls);
  }
  at_ = at;
  place_ = Place::kAfterOutput;
  return true;
}

// A tag in the text after the calls means that a value contained what looked like their end.
bool CallReader::ReadAfterOutput() {
  const std::string_view rest = From(at_);
  if (options_.in_fence && rest.starts_with(kFence)) return End(State::kText);
  if (rest.substr(0, kMaxAfterOutput + kDsml.size()).find(kDsml) != rest.npos) return End(State::kText);
  return rest.size() >= kMaxAfterOutput + kDsml.size() && End(State::kCalls);
}

bool CallReader::BeginCall(const DsmlTag& tag) {
  if (tag.closes || tag.word != "invoke" || !tag.name || tag.name->empty() || tag.string) return End(State::kText);
  name_ = *tag.name;
  tool_ = FindSignature(options_.tools, name_);
  object_.clear();
  keys_.clear();
  arguments_.clear();
  place_ = Place::kBody;
  if (options_.stream) {
    call_open_ = true;
    Emit(OutputDelta::Kind::kToolCallBegin, name_);
  }
  return true;
}

bool CallReader::BeginValue(const DsmlTag& tag) {
  const bool known = !tag.string || *tag.string == "true" || *tag.string == "false";
  if (!tag.name || !known || !keys_.insert(*tag.name).second || IsMisspelt(tool_, *tag.name)) return End(State::kText);
  is_string_ = tag.string == "true";
  types_ = TypesOf(tool_, *tag.name);
  streams_value_ = options_.stream && is_string_ && (types_ == kAnyType || (types_ & kStringType) != 0);
  arguments_.push_back({.key = *tag.name, .json = ""});
  place_ = Place::kValue;
  search_ = at_;
  if (options_.stream) {
    std::string begin = arguments_.size() == 1 ? "{\"" : ", \"";
    AppendJsonEscaped(*tag.name, &begin);
    Emit(OutputDelta::Kind::kToolCallArguments, begin + "\": " + (streams_value_ ? "\"" : ""));
  }
  return true;
}

// Up to "</｜DSML｜parameter>". Another tag inside the value makes it ambiguous.
bool CallReader::ReadValue() {
  while (true) {
    const size_t found = raw_.find(kDsml, search_);
    if (found == raw_.npos) {
      search_ = std::max(search_, raw_.size() - std::min(raw_.size(), kDsml.size() - 1));
      StreamValue(at_ + WithoutTagBegin(From(at_)));
      return false;
    }
    const bool closes = found >= at_ + 2 && raw_.compare(found - 2, 2, "</") == 0;
    const bool opens = found >= at_ + 1 && raw_[found - 1] == '<';
    if (closes) {
      DsmlTag tag;
      const Match m = ReadDsmlTag(From(found - 2), &tag);
      if (m == Match::kMaybe) return StreamValue(found - 2), false;
      if (m == Match::kNo || tag.word != "parameter") return End(State::kText);
      if (!EndValue(found - 2)) return false;
      at_ = found - 2 + tag.size;
      place_ = Place::kAfterValue;
      return true;
    }
    if (opens) {
      const Match m = BeginsKnownTag(From(found - 1));
      if (m == Match::kMaybe) return StreamValue(found - 1), false;
      if (m == Match::kYes) return End(State::kText);
    }
    search_ = found + kDsml.size();
  }
}

// Emits the value up to byte `end`.
void CallReader::StreamValue(size_t end) {
  if (!streams_value_ || end <= at_) return;
  std::string escaped;
  AppendJsonEscaped(std::string_view(raw_).substr(at_, end - at_), &escaped);
  Emit(OutputDelta::Kind::kToolCallArguments, escaped);
  at_ = end;
}

bool CallReader::EndValue(size_t end) {
  if (streams_value_) {
    StreamValue(end);
    Emit(OutputDelta::Kind::kToolCallArguments, "\"");
    return true;
  }
  const auto json = ValueToJson(std::string_view(raw_).substr(at_, end - at_), is_string_, types_);
  if (!json) return End(State::kText);
  if (options_.stream) Emit(OutputDelta::Kind::kToolCallArguments, *json);
  arguments_.back().json = *json;
  return true;
}

// Up to "</｜DSML｜invoke>".
bool CallReader::ReadObject() {
  const size_t found = raw_.find(kDsml, search_);
  if (found == raw_.npos) {
    search_ = std::max(search_, raw_.size() - std::min(raw_.size(), kDsml.size() - 1));
    return false;
  }
  DsmlTag tag;
  const bool closes = raw_.compare(found - 2, 2, "</") == 0;  // the object begins with "{", so two bytes are there
  const Match m = closes ? ReadDsmlTag(From(found - 2), &tag) : Match::kNo;
  if (m == Match::kMaybe) return false;
  if (m == Match::kNo || tag.word != "invoke") return End(State::kText);
  std::string_view text = std::string_view(raw_).substr(at_, found - 2 - at_);
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  const auto object = options_.stream ? std::nullopt : ObjectToJson(tool_, text);
  if (!object) return End(State::kText);
  object_ = *object;
  at_ = found - 2 + tag.size;
  return EndCall();
}

bool CallReader::EndCall() {
  place_ = Place::kAfterCall;
  if (options_.stream) {
    Emit(OutputDelta::Kind::kToolCallArguments, arguments_.empty() ? "{}" : "}");
  } else {
    std::optional<std::string> arguments = object_.empty() ? ArgumentsToJson(tool_, arguments_) : object_;
    if (!arguments) return End(State::kText);
    Emit(OutputDelta::Kind::kToolCallBegin, name_);
    Emit(OutputDelta::Kind::kToolCallArguments, *arguments);
  }
  Emit(OutputDelta::Kind::kToolCallEnd, "");
  call_open_ = false;
  return true;
}

bool CallReader::End(State state) {
  state_ = state;
  return false;
}

void CallReader::Emit(OutputDelta::Kind kind, std::string_view text) {
  deltas_.push_back({.kind = kind, .index = -1, .text = std::string(text)});
}

}  // namespace dsv4
