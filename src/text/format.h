// Literals of the V4 chat format. The model was trained on exactly these bytes.
#pragma once

#include <string_view>

namespace dsv4::format {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kEndThink = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";

// The DSML block of tool calls.
inline constexpr std::string_view kCallsBegin = "<｜DSML｜tool_calls>";
inline constexpr std::string_view kCallsEnd = "</｜DSML｜tool_calls>";
inline constexpr std::string_view kInvokeBegin = "<｜DSML｜invoke name=\"";
inline constexpr std::string_view kInvokeEnd = "</｜DSML｜invoke>";
inline constexpr std::string_view kParameterBegin = "<｜DSML｜parameter name=\"";
inline constexpr std::string_view kParameterEnd = "</｜DSML｜parameter>";

// V4.1 writes a space after the marker and calls the block "calls".
inline constexpr std::string_view kSpacedCallsBegin = "<｜DSML｜ calls>";
inline constexpr std::string_view kSpacedCallsEnd = "</｜DSML｜ calls>";
inline constexpr std::string_view kSpacedInvokeBegin = "<｜DSML｜ invoke name=\"";
inline constexpr std::string_view kSpacedInvokeEnd = "</｜DSML｜ invoke>";
inline constexpr std::string_view kSpacedParameterBegin = "<｜DSML｜ parameter name=\"";

}  // namespace dsv4::format
