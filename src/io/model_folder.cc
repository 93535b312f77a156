#include "dsv4/model_folder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/str.h"

namespace dsv4 {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGiveFolder = "give -m the folder that holds config.json and the weights";
constexpr std::string_view
    kReadsSafetensors = "dsv4 reads safetensors: download the model's safetensors repository (docs/checkpoints.md)";
constexpr int kMostEntries = 100'000;  // of a folder

// ---- a path that does not exist ----

// `owner/name` at the beginning of `text`; empty: there is none.
std::string RepositoryIn(std::string_view text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  };
  const auto owner_end = std::find_if_not(text.begin(), text.end(), plain);
  if (owner_end == text.begin() || owner_end == text.end() || *owner_end != '/' || text[0] == '.') return {};
  const auto name_end = std::find_if_not(owner_end + 1, text.end(), plain);
  return name_end == owner_end + 1 ? std::string() : std::string(text.begin(), name_end);
}

Status OfAbsent(const std::string& path) {
  std::string_view rest = path;
  const size_t scheme = path.find("://");
  if (scheme != std::string::npos) rest.remove_prefix(scheme + 3);
  bool hub = path.starts_with("hf://");
  for (const std::string_view host : {"huggingface.co/", "www.huggingface.co/", "hf.co/"}) {
    if (!rest.starts_with(host)) continue;
    rest.remove_prefix(host.size());
    hub = true;
  }
  const std::string repository = RepositoryIn(rest);
  if (scheme != std::string::npos || hub) {
    return NotFound(StrCat("'", path, "' is an address, and -m takes a folder of this machine: download the model ",
                           hub && !repository.empty() ? StrCat("(hf download ", repository, " --local-dir DIR) ") : "",
                           "and give its folder"));
  }
  const std::string_view tail = rest.substr(repository.size());  // a revision
  const bool whole = !repository.empty() && (tail.empty() || tail[0] == '@' || tail[0] == ':');
  return NotFound(StrCat(
      "no such folder: ", path, "; ", kGiveFolder,
      whole ? StrCat(". If this is a model of the hub, download it first: hf download ", repository, " --local-dir DIR")
            : ""));
}

// ---- a file ----

struct Magic {
  size_t at;
  std::string_view bytes;
};
constexpr Magic kArchives[] = {{0, "\x1f\x8b"},
                               {0, "PK\x03\x04"},
                               {0, "\x28\xb5\x2f\xfd"},
                               {0,
                                "\xfd"
                                "7zXZ"},
                               {0, "BZh"},
                               {0, "7z\xbc\xaf\x27"},
                               {0, "Rar!"},
                               {257, "ustar"}};
constexpr std::string_view kTorchEndings[] = {".bin", ".pt", ".pth", ".ckpt"};
constexpr std::string_view kArchiveEndings[] = {".tar", ".tgz", ".gz", ".zip", ".zst", ".xz", ".bz2", ".7z", ".rar"};

template <size_t n>
bool EndsWithOneOf(std::string_view name, const std::string_view (&endings)[n]) {
  return std::any_of(endings, endings + n, [&](std::string_view ending) { return name.ends_with(ending); });
}

std::string FirstBytes(const std::string& path) {
  std::array<char, 512> bytes{};
  std::ifstream in(path, std::ios::binary);
  in.read(bytes.data(), bytes.size());
  return {bytes.data(), static_cast<size_t>(in.gcount())};
}

bool Has(std::string_view bytes, const Magic& magic) {
  return bytes.size() > magic.at && bytes.substr(magic.at).starts_with(magic.bytes);
}

// `regular`: its bytes may be read.
Status OfFile(const std::string& path, bool regular) {
  std::string lower = path;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string first = regular ? FirstBytes(path) : std::string();
  const std::string is_none = StrCat("'", path, "' is not a folder but ");
  if (lower.ends_with(".gguf") || first.starts_with("GGUF"))
    return Unsupported(StrCat(is_none, "a GGUF file, and ", kReadsSafetensors));
  if (lower.ends_with(".safetensors") || lower.ends_with(".json")) {
    std::string folder = fs::path(path).parent_path().string();
    return InvalidArgument(
        StrCat(is_none, "one file of a checkpoint; give -m its folder, ", folder.empty() ? "." : folder));
  }
  if (EndsWithOneOf(lower, kTorchEndings))
    return Unsupported(StrCat(is_none, "a file of PyTorch weights, and ", kReadsSafetensors));
  const bool archive = std::any_of(std::begin(kArchives), std::end(kArchives),
                                   [&](const Magic& magic) { return Has(first, magic); });
  if (archive || EndsWithOneOf(lower, kArchiveEndings))
    return InvalidArgument(StrCat(is_none, "an archive; unpack it, and give -m the folder with config.json"));
  return InvalidArgument(StrCat("'", path, "' is not a folder; ", kGiveFolder));
}

// ---- a folder ----

struct Contents {
  bool has_config = false, has_tokenizer = false, has_safetensors = false;
  std::string gguf, torch, archive, other;  // the first of the kind
  std::vector<fs::path> folders;
};

Contents ContentsOf(const fs::path& folder) {
  Contents all;
  std::error_code error;
  const auto keep = [](std::string& first, const std::string& name) {
    if (first.empty() || name < first) first = name;
  };
  int seen = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end && seen++ < kMostEntries;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (it->is_directory(ignored)) {
      all.folders.push_back(it->path());
    } else if (name.ends_with(".safetensors") || name == "model.safetensors.index.json") {
      all.has_safetensors = true;
    } else if (name == "config.json") {
      all.has_config = true;
    } else if (name == "tokenizer.json") {
      all.has_tokenizer = true;
    } else if (name.ends_with(".gguf")) {
      keep(all.gguf, name);
    } else if (EndsWithOneOf(name, kTorchEndings)) {
      keep(all.torch, name);
    } else if (EndsWithOneOf(name, kArchiveEndings)) {
      keep(all.archive, name);
    } else if (name.ends_with(".onnx") || name.ends_with(".npz") || name.ends_with(".msgpack") ||
               name.ends_with(".h5")) {
      keep(all.other, name);
    }
  }
  std::sort(all.folders.begin(), all.folders.end());
  return all;
}

// The folder of one model that a folder without a model was probably meant by; empty: there is none.
fs::path ModelBelow(const Contents& outer) {
  std::error_code ignored;
  for (const fs::path& folder : outer.folders) {
    if (fs::exists(folder / "config.json", ignored)) return folder;
  }
  for (const fs::path& folder : outer.folders) {  // the hub's cache has models--OWNER--NAME/snapshots/REVISION
    const bool snapshots = folder.filename() == "snapshots";
    const bool model = folder.filename().string().starts_with("models--");
    if (!snapshots && !model) continue;
    const Contents inner = ContentsOf(model ? folder / "snapshots" : folder);
    if (!inner.folders.empty()) return inner.folders.front();
  }
  return {};
}

Status OfFolder(const std::string& path) {
  const Contents has = ContentsOf(path);
  if (has.has_safetensors) return {};
  const auto holds = [&](std::string_view kind, const std::string& first) {
    return Unsupported(
        StrCat("'", path, "' holds ", kind, " ('", first, "') and no safetensors file; ", kReadsSafetensors));
  };
  if (!has.gguf.empty()) return holds("GGUF files", has.gguf);
  if (!has.torch.empty()) return holds("PyTorch weights", has.torch);
  if (!has.other.empty()) return holds("weights of another kind", has.other);
  if (has.has_config || has.has_tokenizer) return {};
  if (!has.archive.empty()) {
    return InvalidArgument(StrCat("'", path, "' holds an archive ('", has.archive,
                                  "') and no model; unpack it, and give -m the folder with config.json"));
  }
  for (size_t i = 0; i < std::min<size_t>(has.folders.size(), 64); ++i) {  // a repository with one folder per format
    const std::string gguf = ContentsOf(has.folders[i]).gguf;
    if (!gguf.empty()) return holds("GGUF files", (has.folders[i].filename() / gguf).string());
  }
  const fs::path below = ModelBelow(has);
  if (below.empty() || fs::exists(fs::path(path) / "inference" / "config.json")) return {};
  const bool cache = below.parent_path().filename() == "snapshots";
  return InvalidArgument(StrCat(
      "'", path, "' is ", cache ? "an outer folder of the hub's cache" : "not the folder of a model",
      "; give -m the folder ", cache ? "of one revision below snapshots: " : "with config.json: ", below.string()));
}

}  // namespace

Status CheckModelFolder(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return OfAbsent(path);
  return fs::is_directory(status) ? OfFolder(path) : OfFile(path, fs::is_regular_file(status));
}

}  // namespace dsv4
