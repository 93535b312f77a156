#include "errors.h"

#include <string>

namespace dsv4::python {

namespace {

const char* ClassOf(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "InvalidArgumentError";
    case StatusCode::kNotFound:
      return "NotFoundError";
    case StatusCode::kDataLoss:
      return "DataLossError";
    case StatusCode::kUnsupported:
      return "UnsupportedError";
    case StatusCode::kResourceExhausted:
      return "ResourceExhaustedError";
    case StatusCode::kCancelled:
      return "CancelledError";
    default:
      return "InternalError";
  }
}

[[noreturn]] void RaiseAs(const char* name, const std::string& message) {
  const nb::object type = nb::module_::import_("dsv4._errors").attr(name);
  PyErr_SetObject(type.ptr(), nb::str(message.data(), message.size()).ptr());
  throw nb::python_error();
}

}  // namespace

void Raise(const Status& status) { RaiseAs(ClassOf(status.code()), status.message()); }

void RaiseForked(const char* what) {
  RaiseAs("ForkError", std::string(what) +
                           " was made in the parent of this process, and a fork has none of its threads: load the "
                           "model in this process, or start processes with multiprocessing's method \"spawn\"");
}

}  // namespace dsv4::python
