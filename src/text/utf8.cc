#include "text/utf8.h"

namespace dsv4 {

Utf8Step NextUtf8(std::string_view text) {
  using Kind = Utf8Step::Kind;
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {Kind::kCharacter, lead, 1};
  // Bounds of the second byte exclude overlong forms, surrogates and code points above U+10FFFF.
  uint32_t low = 0x80, high = 0xBF, code = 0;
  size_t length = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2, code = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3, code = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4, code = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Kind::kBroken, 0, 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Kind::kCut, 0, i};
    if (byte(i) < low || byte(i) > high) return {Kind::kBroken, 0, i};
    code = code << 6 | (byte(i) & 0x3F);
    low = 0x80, high = 0xBF;
  }
  return {Kind::kCharacter, code, length};
}

void AppendUtf8(uint32_t code, std::string* out) {
  const auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = NextUtf8(text.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) break;
    at += step.length;
  }
  return at;
}

void DrainUtf8(std::string* held, std::string* out) {
  std::string_view rest = *held;
  while (!rest.empty()) {
    const size_t valid = ValidUtf8Prefix(rest);
    out->append(rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Step::Kind::kCut) break;
    out->append(kReplacementCharacter);
    rest.remove_prefix(step.length);
  }
  held->erase(0, held->size() - rest.size());
}

std::string RepairUtf8(std::string_view text) {
  std::string held(text), out;
  DrainUtf8(&held, &out);
  if (!held.empty()) out.append(kReplacementCharacter);
  return out;
}

}  // namespace dsv4
