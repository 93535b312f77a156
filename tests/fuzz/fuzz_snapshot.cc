// Files of KV snapshots: a valid file with pieces overwritten, removed or repeated. Half of the inputs get a correct
// checksum of the header, so that the fuzzer reaches the code after that check. The engine reads the file or refuses it
// with one line.
//   byte 0: 0xFF: the file itself follows; even: correct the header's checksum
//   then edits of 5 bytes: offset (3), kind and length (1), value (1)
#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/engine.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"
#include "fuzz/require.h"

namespace {

using namespace dsv4;
using dsv4::fuzz::Require;

struct World {
  World() : path("/dev/shm/dsv4-fuzz-" + std::to_string(::getpid()) + ".dsv4kv") {  // in memory, for speed
    engine = std::move(Engine::Load({.synthetic = {.shape = "nano", .num_layers = 2}, .num_threads = 1})).value();
    auto session = std::move(engine->NewSession()).value();
    Require(session->Append(std::vector<TokenId>{5, 6, 7, 8, 9}, LogitRows::kNone, nullptr).ok());
    Require((*session->Snapshot())->Save(path, "a note").ok());
    std::ifstream file(path, std::ios::binary);
    valid.assign(std::istreambuf_iterator<char>(file), {});
  }
  const std::string path;
  std::unique_ptr<Engine> engine;
  std::string valid;
};

// The header has 72 bytes, with the sizes of tokens, fingerprint and note at 16, 24 and 32. Tokens, fingerprint, note
// and the checksum follow.
void FixHead(std::string* file) {
  if (file->size() < 72) return;
  int64_t sizes[3];
  std::memcpy(sizes, file->data() + 16, sizeof(sizes));
  for (const int64_t n : sizes) {
    if (n < 0 || n > static_cast<int64_t>(file->size())) return;
  }
  const int64_t end = 72 + 4 * sizes[0] + sizes[1] + sizes[2];
  if (end + 4 > static_cast<int64_t>(file->size())) return;
  const auto sum = static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(file->data()), static_cast<size_t>(end)));
  std::memcpy(file->data() + end, &sum, 4);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World& world = *new World;
  if (size == 0) return 0;
  std::string file = world.valid;
  if (data[0] == 0xFF) {
    file.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  } else {
    for (size_t i = 1; i + 5 <= size && !file.empty(); i += 5) {
      size_t at = (data[i] | data[i + 1] << 8 | data[i + 2] << 16) % file.size();
      if (data[i + 2] < 0xF0) at %= 512;  // mostly in the header
      const size_t length = std::min<size_t>(1 + data[i + 3] % 16, file.size() - at);
      switch (data[i + 3] / 64) {
        case 0:
          file.replace(at, length, length, static_cast<char>(data[i + 4]));
          break;
        case 1:
          for (size_t k = 0; k < length; ++k) file[at + k] = static_cast<char>(file[at + k] ^ (data[i + 4] >> (k % 8)));
          break;
        case 2:
          file.resize(at);
          break;
        default:
          file.insert(at, file.substr(at, length));
      }
    }
    if (data[0] % 2 == 0) FixHead(&file);
  }
  std::ofstream(world.path, std::ios::binary | std::ios::trunc) << file;
  const auto info = world.engine->ReadSnapshotInfo(world.path);
  const auto image = world.engine->ReadSnapshot(world.path);
  for (const Status& status : {info.status(), image.status()}) {
    Require(status.ok() || (!status.message().empty() && status.message().find('\n') == std::string::npos));
  }
  if (image.ok()) {
    Require(info.ok() && info->tokens == (*image)->info().tokens);
    const auto snapshot = world.engine->LoadSnapshot(**image);
    Require(snapshot.ok() && (*snapshot)->tokens() == info->tokens);
    Require(world.engine->NewSession(**snapshot).ok());
  }
  return 0;
}
