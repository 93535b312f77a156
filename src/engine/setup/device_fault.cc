#include "engine/setup/device_fault.h"

#include <charconv>
#include <system_error>

#include "base/str.h"

namespace dsv4 {

namespace {

// Parses the number at the start of `text` and removes it with the colon after it. False: no number.
template <typename T>
bool TakeFaultPart(std::string_view* text, T* value) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *value);
  if (error != std::errc() || *value < 0) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  if (text->empty()) return true;
  if (text->front() != ':') return false;
  text->remove_prefix(1);
  return !text->empty();
}

}  // namespace

Result<DeviceFault> ParseDeviceFault(std::string_view text, int num_ranks) {
  DeviceFault fault;
  if (text.empty()) return fault;
  std::string_view rest = text;
  bool good = TakeFaultPart(&rest, &fault.passes);
  if (good && !rest.empty()) good = TakeFaultPart(&rest, &fault.rank) && fault.rank < num_ranks;
  if (good && !rest.empty()) good = TakeFaultPart(&rest, &fault.late_s);
  if (good && rest.empty()) return fault;
  return InvalidArgument(StrCat("DSV4_FAIL_DEVICE_AFTER is '", text,
                                "'; accepted: PASSES, PASSES:RANK, PASSES:RANK:SECONDS, with ranks from 0 to ",
                                num_ranks - 1));
}

}  // namespace dsv4
