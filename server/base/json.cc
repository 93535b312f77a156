#include "server/base/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ostream>
#include <streambuf>
#include <utility>

namespace dsv4::server {

namespace {

constexpr int kMaxDepth = 200;
constexpr size_t kMaxJsonValues = 2'000'000;  // twice the values of a prompt of a million token ids
// Measured memory of a value without its text; arrays and objects grow by doubling. A chat of 200,000 messages takes 60
// MB.
constexpr size_t kValueBytes = 24, kContainerBytes = 32, kStringBytes = 48, kMaxJsonBytes = 64'000'000;
constexpr size_t kMaxErrorText = 1000;          // bytes of an error message
constexpr size_t kMaxNameWork = 4'000'000'000;  // about a second: an object of some 16,000 members with short names

std::string Show(const Json& value) {
  std::string text = Dump(value);
  if (text.size() > 60) text = std::string(value.type_name());
  return text;
}

std::string Shortened(const std::string& message) {
  if (message.size() <= kMaxErrorText) return message;
  size_t end = kMaxErrorText;
  while ((static_cast<unsigned char>(message[end]) & 0xC0) == 0x80 && end > kMaxErrorText - 4) --end;
  return message.substr(0, end) + "...";
}

std::string NumberText(double value) {
  std::array<char, 32> buffer;
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr};
}

// The cost, in bytes, of comparing each name with the names before it in its object. Members keep their order, so an
// object has no index of names. A comparison costs 16 bytes plus the bytes of the name.
class NameWork {
 public:
  void Begin(int depth, bool is_object) { levels_[static_cast<size_t>(depth)] = {is_object, is_object, 0, 0}; }
  void Comma(int depth) { At(depth).at_name = At(depth).is_object; }
  void String(int depth, size_t bytes) {
    Level& level = At(depth);
    if (!std::exchange(level.at_name, false)) return;
    work_ += std::min(level.bytes, level.names * bytes) + 16 * level.names;
    ++level.names;
    level.bytes += bytes;
  }
  size_t work() const { return work_; }

 private:
  struct Level {
    bool is_object = false, at_name = false;
    size_t names = 0, bytes = 0;
  };
  Level& At(int depth) { return levels_[static_cast<size_t>(std::clamp(depth, 0, kMaxDepth))]; }

  std::array<Level, kMaxDepth + 1> levels_ = {};
  size_t work_ = 0;
};

// Parsers and printers recurse into nested values, and each value takes many times the memory of its text.
void CheckSize(std::string_view text) {
  int depth = 0;
  size_t values = 1, extra = 0, string_begin = 0;  // extra: bytes of strings and containers
  bool in_string = false;
  NameWork names;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c != '"') continue;
      in_string = false;
      names.String(depth, i - string_begin);
    } else if (c == '"') {
      in_string = true;
      string_begin = i;
      extra += kStringBytes;
    } else if (c == '[' || c == '{') {
      ++values;
      extra += kContainerBytes;
      if (++depth > kMaxDepth) {
        throw ApiError(400, "the JSON nests deeper than " + std::to_string(kMaxDepth) + " levels");
      }
      names.Begin(std::max(depth, 0), c == '{');
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      ++values;
      names.Comma(depth);
    }
    if (names.work() > kMaxNameWork) throw ApiError(400, "the JSON's objects have too many members");
  }
  if (values > kMaxJsonValues) {
    throw ApiError(400, "the JSON has more than " + std::to_string(kMaxJsonValues) + " values");
  }
  if (values * kValueBytes + extra > kMaxJsonBytes) {
    throw ApiError(400, "the JSON's values take more than " + std::to_string(kMaxJsonBytes) + " bytes of memory");
  }
}

// Returns the code unit of the \uXXXX escape at `at`, or -1 if there is none.
int EscapedUnit(std::string_view text, size_t at) {
  int unit = 0;
  if (text.substr(at, 2) != "\\u" || text.size() < at + 6) return -1;
  const char* end = text.data() + at + 6;
  return std::from_chars(end - 4, end, unit, 16).ptr == end ? unit : -1;
}

bool IsIn(int unit, int low, int high) { return unit >= low && unit <= high; }

// Replaces each unpaired surrogate escape with U+FFFD. Programs that cut texts by UTF-16 units send them, and a chat
// with one in its history would always be refused. Returns false if there was none.
bool MendSurrogates(std::string* text) {
  bool found = false;
  for (size_t i = text->find('\\'); i != text->npos; i = text->find('\\', i)) {
    const int unit = EscapedUnit(*text, i);
    if (!IsIn(unit, 0xD800, 0xDFFF)) {
      i += 2;
    } else if (unit < 0xDC00 && IsIn(EscapedUnit(*text, i + 6), 0xDC00, 0xDFFF)) {
      i += 12;
    } else {
      text->replace(i + 2, 4, "FFFD");
      found = true;
      i += 6;
    }
  }
  return found;
}

bool IsEmpty(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

// For a field that is refused.
bool ChangesNothing(const FieldSpec& field, const Json& value) {
  if (field.neutral != nullptr) {
    const Json values = Json::parse(field.neutral);
    return std::find(values.begin(), values.end(), value) != values.end();
  }
  const double number = value.is_number() ? value.get<double>() : 0;
  return IsEmpty(value) || (value.is_number() && number >= field.low && number <= field.high);
}

// Clears containers from the leaves up, because freeing an empty container needs no memory.
void Dismantle(Json& json) {
  if (json.is_array()) {
    auto& items = json.get_ref<Json::array_t&>();
    for (Json& item : items) Dismantle(item);
    items.clear();
  } else if (json.is_object()) {
    auto& members = json.get_ref<Json::object_t&>();
    for (auto& [name, value] : members) Dismantle(value);
    members.clear();
  }
}

}  // namespace

ApiError::ApiError(int http_status, const std::string& message, std::string its_param, std::string its_code)
    : std::runtime_error(Shortened(message)),
      status(http_status),
      param(std::move(its_param)),
      code(std::move(its_code)) {}

void Refuse(const std::string& param, const std::string& message) { throw ApiError(400, message, param); }

JsonDocument::~JsonDocument() { Dismantle(root_); }

JsonDocument ParseJson(std::string_view text) {
  CheckSize(text);
  if (text.find_first_not_of(" \t\r\n") == text.npos) throw ApiError(400, "the body is empty; expected a JSON object");
  if (const size_t nul = text.find('\0'); nul != text.npos) {  // the parser would read it as the end of the text
    throw ApiError(400, "the body is not valid JSON: byte " + std::to_string(nul + 1) + " is 0");
  }
  try {
    return JsonDocument(Json::parse(text));
  } catch (const Json::exception& error) {
    std::string mended(text);
    if (MendSurrogates(&mended)) return ParseJson(mended);  // error positions stay the same
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    std::string_view what = error.what();
    const size_t bracket = what.find("] ");
    if (bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
    throw ApiError(400, "the body is not valid JSON: " + std::string(what));
  }
}

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

size_t DumpSize(const Json& json) {
  class Counter : public std::streambuf {
   public:
    size_t bytes = 0;

   protected:
    int_type overflow(int_type c) override {
      ++bytes;
      return traits_type::not_eof(c);
    }
    std::streamsize xsputn(const char*, std::streamsize count) override {
      bytes += static_cast<size_t>(count);
      return count;
    }
  } counter;
  std::ostream out(&counter);
  out << json;
  return counter.bytes;
}

Json FloatToJson(float value) {
  if (!std::isfinite(value)) return value > 0 ? 9999.0 : -9999.0;
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  double shortest = 0;
  std::from_chars(buffer.data(), end, shortest);
  return shortest;
}

const FieldSpec* BodySpec::Find(std::string_view name) const {
  for (const auto& fields : parts()) {
    for (const FieldSpec& field : fields) {
      if (field.name == name) return &field;
    }
  }
  return nullptr;
}

Fields::Fields(const Json& object, std::string path, const BodySpec* spec)
    : object_(object), path_(std::move(path)), spec_(spec) {
  if (!object.is_object()) {
    Refuse(path_, (path_.empty() ? "the body" : path_) + " is " + Show(object) + "; expected an object");
  }
  if (spec == nullptr) return;
  for (const auto& fields : spec->parts()) {
    for (const FieldSpec& field : fields) {
      if (field.kind != FieldKind::kRefused) continue;
      const Json* value = Get(field.name);
      if (value != nullptr && !ChangesNothing(field, *value))
        Refuse(Path(field.name), Path(field.name) + " is not supported: " + field.help);
    }
  }
}

const FieldSpec& Fields::SpecOf(const char* name) const {
  const FieldSpec* field = spec_ == nullptr ? nullptr : spec_->Find(name);
  if (field == nullptr) throw std::logic_error("the field " + std::string(name) + " is not in the body's table");
  return *field;
}

const Json* Fields::Get(const char* name, FieldKind kind) const {
  if (spec_ != nullptr && SpecOf(name).kind != kind && SpecOf(name).kind != FieldKind::kAny)
    throw std::logic_error("the field " + std::string(name) + " has another type in the body's table");
  return Get(name);
}

const Json* Fields::Get(const char* name) const {
  if (spec_ != nullptr) (void)SpecOf(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<bool> Fields::Bool(const char* name) const {
  const Json* value = Get(name, FieldKind::kBool);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Refuse(Path(name), Path(name) + " is " + Show(*value) + "; expected true or false");
  return value->get<bool>();
}

std::optional<int64_t> Fields::Integer(const char* name, int64_t low, int64_t high) const {
  const Json* value = Get(name, FieldKind::kInteger);
  if (value == nullptr) return std::nullopt;
  using Limits = std::numeric_limits<int64_t>;
  std::string range = "a whole number";
  if (low > Limits::min()) range += " from " + std::to_string(low);
  if (high < Limits::max()) range += " to " + std::to_string(high);
  const auto wrong = [&] { Refuse(Path(name), Path(name) + " is " + Show(*value) + "; expected " + range); };
  int64_t n = 0;
  if (value->is_number_unsigned()) {
    const auto big = value->get<uint64_t>();
    if (big > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) wrong();
    n = static_cast<int64_t>(big);
  } else if (value->is_number_integer()) {
    n = value->get<int64_t>();
  } else if (value->is_number_float() && std::abs(value->get<double>()) < 9e15 &&
             std::floor(value->get<double>()) == value->get<double>()) {
    n = static_cast<int64_t>(value->get<double>());  // 16.0, as some languages write it
  } else {
    wrong();
  }
  if (n < low || n > high) wrong();
  return n;
}

std::optional<double> Fields::Number(const char* name, double low, double high) const {
  const Json* value = Get(name, FieldKind::kNumber);
  if (value == nullptr) return std::nullopt;
  const double x = value->is_number() ? value->get<double>() : std::nan("");
  if (!(x >= low && x <= high)) {
    Refuse(Path(name), Path(name) + " is " + Show(*value) + "; expected a number from " + NumberText(low) + " to " +
                           NumberText(high));
  }
  return x;
}

std::optional<std::string> Fields::Text(const char* name) const {
  const Json* value = Get(name, FieldKind::kText);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Refuse(Path(name), Path(name) + " is " + Show(*value) + "; expected a string");
  return value->get<std::string>();
}

const Json* Fields::Array(const char* name) const {
  const Json* value = Get(name, FieldKind::kArray);
  if (value != nullptr && !value->is_array()) {
    Refuse(Path(name), Path(name) + " is " + Show(*value) + "; expected an array");
  }
  return value;
}

const Json* Fields::Object(const char* name) const {
  const Json* value = Get(name, FieldKind::kObject);
  if (value != nullptr && !value->is_object()) {
    Refuse(Path(name), Path(name) + " is " + Show(*value) + "; expected an object");
  }
  return value;
}

std::optional<int64_t> Fields::Integer(const char* name) const {
  constexpr double kMost = 1e18;  // a larger bound means no bound
  const FieldSpec& field = SpecOf(name);
  using Limits = std::numeric_limits<int64_t>;
  return Integer(name, field.low < -kMost ? Limits::min() : static_cast<int64_t>(field.low),
                 field.high > kMost ? Limits::max() : static_cast<int64_t>(field.high));
}

std::optional<double> Fields::Number(const char* name) const {
  return Number(name, SpecOf(name).low, SpecOf(name).high);
}

void Fields::RefuseUnlessEmpty(const char* name, const std::string& remedy) const {
  const Json* value = Get(name);
  if (value != nullptr && !IsEmpty(*value)) Refuse(Path(name), Path(name) + " is not supported: " + remedy);
}

}  // namespace dsv4::server
