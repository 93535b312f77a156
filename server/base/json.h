// JSON at the edges of the server: parsing with limits, and typed access to the fields of a request.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "dsv4/status.h"

namespace dsv4::server {

using Json = nlohmann::ordered_json;

// A request that cannot be served. The code that reads the request throws it; the router turns it into the error body
// of the route.
struct ApiError : std::runtime_error {
  // A long message, which may quote the client's text, is shortened to its beginning.
  ApiError(int http_status, const std::string& message, std::string its_param = "", std::string its_code = "");
  int status;
  std::string param;  // the field at fault; "" if there is none
  std::string code;
  int retry_after_s = 0;
};

// Throws ApiError 400.
[[noreturn]] void Refuse(const std::string& param, const std::string& message);

// The parsed JSON of a request. Its destructor needs no memory; the destructor of a Json does.
class JsonDocument {
 public:
  explicit JsonDocument(Json root) : root_(std::move(root)) {}
  JsonDocument(const JsonDocument&) = delete;
  ~JsonDocument();

  const Json& root() const { return root_; }

 private:
  Json root_;
};

// Throws ApiError 400 if the text is not JSON, nests too deeply, or has too many values or member names.
JsonDocument ParseJson(std::string_view text);

// On one line. Invalid UTF-8 becomes U+FFFD.
std::string Dump(const Json& json);

// Returns the number of bytes of Dump without building the text. Requires valid UTF-8.
size_t DumpSize(const Json& json);

// Returns the shortest decimal number that reads back as this float.
Json FloatToJson(float value);

// The type of a body's field. kAny: several types, which the field's reader checks. kRefused: a field of other servers
// that this server does not have.
enum class FieldKind : uint8_t { kBool, kInteger, kNumber, kText, kArray, kObject, kAny, kRefused };

struct FieldSpec {
  const char* name;
  FieldKind kind;
  const char* help;          // kRefused: what to do without it
  double low = 0, high = 0;  // for numbers; 1e30 or more: no bound. kRefused: numbers that change nothing, next to 0
  // kRefused: a JSON array of the values that change nothing. Null: false, 0, "" and empty arrays and objects.
  const char* neutral = nullptr;
};

// The fields of a body, as tables that several bodies share. The tables must outlive it.
class BodySpec {
 public:
  constexpr BodySpec(std::initializer_list<std::span<const FieldSpec>> parts) : size_(parts.size()) {
    std::copy(parts.begin(), parts.end(), parts_.begin());
  }
  std::span<const std::span<const FieldSpec>> parts() const { return std::span(parts_).first(size_); }
  const FieldSpec* Find(std::string_view name) const;

 private:
  std::array<std::span<const FieldSpec>, 12> parts_;
  size_t size_;
};

// The members of an object; null counts as missing. Every method throws ApiError 400 that names the field.
class Fields {
 public:
  // `spec`: the body's table. Refuses the fields that are kRefused there, unless their value changes nothing. Reading a
  // field that is not in the table, or reading it as another type, throws std::logic_error (a programming mistake).
  Fields(const Json& object, std::string path, const BodySpec* spec = nullptr);

  const Json* Get(const char* name) const;
  bool Has(const char* name) const { return Get(name) != nullptr; }
  std::string Path(const char* name) const { return path_.empty() ? name : path_ + "." + name; }

  std::optional<bool> Bool(const char* name) const;
  std::optional<int64_t> Integer(const char* name, int64_t low,
                                 int64_t high = std::numeric_limits<int64_t>::max()) const;
  std::optional<double> Number(const char* name, double low, double high) const;
  // With the bounds of the spec.
  std::optional<int64_t> Integer(const char* name) const;
  std::optional<double> Number(const char* name) const;
  std::optional<std::string> Text(const char* name) const;
  const Json* Array(const char* name) const;
  const Json* Object(const char* name) const;

  // Refuses a member that is set, with what to do without it. Null, false, 0, "" and empty arrays and objects change
  // nothing.
  void RefuseUnlessEmpty(const char* name, const std::string& remedy) const;

 private:
  const FieldSpec& SpecOf(const char* name) const;
  const Json* Get(const char* name, FieldKind kind) const;

  const Json& object_;
  std::string path_;
  const BodySpec* spec_;
};

}  // namespace dsv4::server
