// Prompts and parsed messages in short forms, for comparisons.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "dsv4/chat.h"
#include "dsv4/output_parser.h"

namespace dsv4::test {

inline const std::string kEos = "<｜end▁of▁sentence｜>";

// Reasoning|content|name(arguments)name(arguments), with "!" at the end when cut off.
inline std::string Brief(const ParsedMessage& m) {
  std::string out = m.reasoning_content + "|" + m.content + "|";
  for (const ToolCall& call : m.tool_calls) out += call.name + "(" + call.arguments + ")";
  return out + (m.cut_off ? "!" : "");
}

// Writes the abbreviations of a prompt out: {[} BOS, {]} EOS, {U} user, {A} assistant, {T} <think>, {/T} </think>,
// {H} the header without thinking, {R} reminder, {D} the DSML marker.
inline std::string Full(std::string text) {
  const std::pair<std::string_view, std::string_view> names[] = {
      {"{H}", "{A}{/T}"},         {"{[}", "<｜begin▁of▁sentence｜>"}, {"{]}", kEos},      {"{U}", "<｜User｜>"},
      {"{A}", "<｜Assistant｜>"}, {"{R}", "<｜latest_reminder｜>"},   {"{T}", "<think>"}, {"{/T}", "</think>"},
      {"{D}", "｜DSML｜"}};
  for (const auto& [from, to] : names) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  }
  return text;
}

}  // namespace dsv4::test
