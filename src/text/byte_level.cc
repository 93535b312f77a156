#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace dsv4 {

namespace {

struct Alphabet {
  std::array<uint32_t, 256> symbol;      // of a byte
  std::array<int16_t, 0x100 + 68> byte;  // of a symbol; -1: none
};

constexpr Alphabet MakeAlphabet() {
  Alphabet a{};
  a.byte.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    a.symbol[b] = printable ? b : next++;
    a.byte[a.symbol[b]] = static_cast<int16_t>(b);
  }
  return a;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::optional<std::string> BytesOfSymbols(std::string_view symbols) {
  std::string bytes;
  while (!symbols.empty()) {
    size_t length;
    const uint32_t code = DecodeValidUtf8(symbols, &length);
    if (code >= kAlphabet.byte.size() || kAlphabet.byte[code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte[code]));
    symbols.remove_prefix(length);
  }
  return bytes;
}

std::string SymbolsOfBytes(std::string_view bytes) {
  std::string symbols;
  for (const char c : bytes) AppendUtf8(kAlphabet.symbol[static_cast<unsigned char>(c)], &symbols);
  return symbols;
}

}  // namespace dsv4
