// Common to all functions of the C API: handles of this process only, no exception, the line of the last error.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "dsv4.h"
#include "dsv4/status.h"

namespace dsv4::capi {

// Ends a call with one of the codes that only the C API has.
struct Failure {
  dsv4_status code;
  std::string line;
};

dsv4_status SetError(dsv4_status code, std::string_view line) noexcept;

// Runs `call`, which returns a Status or throws Failure.
template <typename Call>
dsv4_status Guard(const Call& call) noexcept {
  try {
    const Status status = call();
    return status.ok() ? DSV4_OK : SetError(static_cast<dsv4_status>(status.code()), status.message());
  } catch (const Failure& failure) {
    return SetError(failure.code, failure.line);
  } catch (const std::bad_alloc&) {
    return SetError(DSV4_RESOURCE_EXHAUSTED, "there is no memory for the call");
  } catch (const std::exception& error) {
    return SetError(DSV4_INTERNAL, error.what());
  } catch (...) {
    return SetError(DSV4_INTERNAL, "an unknown exception");
  }
}

[[noreturn]] inline void Refuse(std::string line) { throw Failure{DSV4_INVALID_ARGUMENT, std::move(line)}; }

// The base of all handles.
struct Handle {
  const pid_t process = ::getpid();
  bool is_ours() const { return process == ::getpid(); }
};

// Throws if the handle is NULL or of the parent process.
template <typename T>
T& Use(T* handle, const char* name) {
  if (handle == nullptr) Refuse(std::string(name) + " is NULL");
  if (!handle->is_ours()) {
    throw Failure{DSV4_WRONG_PROCESS, std::string(name) +
                                          " belongs to the parent of this process; load a new one after "
                                          "fork, or start processes in another way"};
  }
  return *handle;
}
template <typename T>
bool IsUsable(const T* handle) {
  return handle != nullptr && handle->is_ours();
}
// A forked child leaves the parent's objects alone: their threads do not exist there.
template <typename T>
void Free(T* handle) noexcept {
  if (IsUsable(handle)) delete handle;
}

template <typename T>
T& Out(T* pointer, const char* name) {
  if (pointer == nullptr) Refuse(std::string(name) + " is NULL");
  return *pointer;
}

template <typename T>
std::span<const T> In(const T* data, size_t n, const char* name) {
  if (data == nullptr && n > 0) Refuse(std::string(name) + " is NULL, and its length is " + std::to_string(n));
  return {data, n};
}
inline std::string_view TextIn(const char* data, size_t n, const char* name) {
  const std::span<const char> text = In(data, n, name);
  return {text.data(), text.size()};
}
inline std::string PathIn(const char* path, const char* name) {
  if (path == nullptr) Refuse(std::string(name) + " is NULL");
  return path;
}

// Throws DSV4_TOO_SMALL if `needed` elements do not fit; sets *n.
void NeedRoom(const void* out, size_t needed, size_t* n);

template <typename T>
void Fill(std::span<const T> from, T* out, size_t* n) {
  NeedRoom(out, from.size(), n);
  std::copy(from.begin(), from.end(), out);
}
inline void FillText(std::string_view text, char* out, size_t* n) { Fill(std::span(text.data(), text.size()), out, n); }

// A struct of the caller, which may be older or newer. Members that it lacks are 0. Throws if its size is none.
template <typename T>
T Read(const T* in, const char* name) {
  if (in == nullptr) Refuse(std::string(name) + " is NULL");
  T out{};
  if (in->size < sizeof(size_t) || in->size > 4096) {
    Refuse(std::string(name) + "->size is " + std::to_string(in->size) + "; set it to sizeof");
  }
  std::memcpy(&out, in, std::min(in->size, sizeof(T)));
  return out;
}
template <typename T>
void Write(const T& from, T* out, const char* name) {
  const size_t size = Read(out, name).size;
  std::memcpy(out, &from, std::min(size, sizeof(T)));
  out->size = size;
}
// Element i of an array of structs of the caller.
template <typename T>
const T* At(const T* items, size_t i) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(items) + i * items->size);
}

}  // namespace dsv4::capi
