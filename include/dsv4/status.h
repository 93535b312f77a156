// Errors that a caller can handle: bad files, bad requests, exhausted resources. Programming errors are DSV4_CHECKs
// instead (src/base/check.h).
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace dsv4 {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,    // an argument that can never work
  kNotFound,           // a file, tensor or name does not exist
  kDataLoss,           // a file is damaged or contradicts itself
  kUnsupported,        // valid, but this build or this device cannot do it
  kResourceExhausted,  // not enough memory, context length or disk space
  kCancelled,          // the caller requested to stop
  kInternal,           // a bug
};

// Result of an operation without a value. An error has a message of one line, which names the thing, states what is
// wrong, and what to do. OK has no message.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status DataLoss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status Unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
inline Status ResourceExhausted(std::string m) { return {StatusCode::kResourceExhausted, std::move(m)}; }
inline Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

// Either a value or the error Status.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by design
    if (status_.ok()) status_ = Internal("Result built from an ok Status");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // Requires ok(); otherwise aborts the process.
  T& value() & { return Get(); }
  const T& value() const& { return const_cast<Result*>(this)->Get(); }
  T&& value() && { return std::move(Get()); }
  T& operator*() & { return Get(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &Get(); }
  const T* operator->() const { return &value(); }

 private:
  T& Get() {
    if (!value_.has_value()) std::abort();
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace dsv4

#define DSV4_RETURN_IF_ERROR(expr)               \
  do {                                           \
    ::dsv4::Status dsv4_status_ = (expr);        \
    if (!dsv4_status_.ok()) return dsv4_status_; \
  } while (false)

#define DSV4_CONCAT_INNER_(a, b) a##b
#define DSV4_CONCAT_(a, b) DSV4_CONCAT_INNER_(a, b)
#define DSV4_ASSIGN_OR_RETURN(decl, expr) DSV4_ASSIGN_OR_RETURN_IMPL_(DSV4_CONCAT_(dsv4_result_, __LINE__), decl, expr)
#define DSV4_ASSIGN_OR_RETURN_IMPL_(tmp, decl, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return tmp.status();                \
  decl = std::move(tmp).value()
