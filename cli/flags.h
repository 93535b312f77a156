// Flags of several commands, on CLI11: values that are checked while they are read (UsageError names the flag, the text
// and what is accepted), and the groups of flags that commands share.
#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/App.hpp>

#include "errors.h"
#include "format.h"
#include "options.h"

namespace dsv4::cli {

inline constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

// `text` as a whole is one number of T; a leading + is allowed.
template <typename T>
bool ParseWhole(std::string_view text, T* value) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// What --help writes behind a flag whose value is a file, a folder, or one of the names that AddChoice was given.
inline constexpr const char* kFileType = "F";
inline constexpr const char* kFolderType = "DIR";
inline constexpr const char* kChoiceType = "CHOICE";

// The names that a flag of AddChoice accepts; empty for other flags.
std::vector<std::string> ChoicesOf(const CLI::Option& option);

// Flags that are added while it lives stand under this title in --help.
class FlagGroup {
 public:
  FlagGroup(CLI::App* app, const std::string& title) : app_(app), before_(app->option_defaults()->get_group()) {
    app_->option_defaults()->group(title);
  }
  ~FlagGroup() { app_->option_defaults()->group(before_); }
  FlagGroup(const FlagGroup&) = delete;
  FlagGroup& operator=(const FlagGroup&) = delete;

 private:
  CLI::App* app_;
  std::string before_;
};

// A flag with one value, handed to `store`; given twice, the last one holds. `type` stands for the value in --help.
CLI::Option* AddText(CLI::App* app, const std::string& flags, const std::string& type, const std::string& help,
                     std::function<void(const std::string&)> store);

// A flag that may be repeated: `store` gets each value, in order.
void AddTexts(CLI::App* app, const std::string& flags, const std::string& type, const std::string& help,
              std::function<void(const std::string&)> store);

// Visible ASCII, as a header can carry it.
bool IsUsableKey(std::string_view key);

// "--model" of "-m,--model".
std::string LongName(const std::string& flags);

// Of a flag's value; throws UsageError that names the flag.
int64_t ReadInteger(const std::string& flag, const std::string& text, int64_t low, int64_t high);

template <typename T>
void AddInteger(CLI::App* app, const std::string& flags, T* value, int64_t low, int64_t high, const std::string& help) {
  AddText(app, flags, "N", help,
          [=](const std::string& text) { *value = static_cast<T>(ReadInteger(LongName(flags), text, low, high)); });
}

template <typename T>
void AddChoice(CLI::App* app, const std::string& flags, T* value, std::vector<std::pair<std::string, T>> choices,
               const std::string& help) {
  std::vector<std::string> choice_names;
  for (const auto& [name, choice] : choices) choice_names.push_back(name);
  const std::string names = FormatList(choice_names);
  AddText(app, flags, kChoiceType, help + ": " + names, [=](const std::string& text) {
    for (const auto& [name, choice] : choices) {
      if (text != name) continue;
      *value = choice;
      return;
    }
    throw UsageError(LongName(flags) + " is '" + text + "'; accepted: " + names);
  });
}

void AddNumber(CLI::App* app, const std::string& flags, float* value, const std::string& help);
void AddPath(CLI::App* app, const std::string& flags, std::string* value, const std::string& help);

// 512MiB, 2g, 1000000
void AddBytes(CLI::App* app, const std::string& flags, int64_t* value, const std::string& help);

// "512,8192"; an empty list leaves that part out.
void AddCounts(CLI::App* app, const std::string& names, std::optional<std::vector<int64_t>>* counts, int64_t largest,
               const std::string& help, int64_t least = 1);

void AddModelDir(CLI::App* app, std::string* dir);
// What a command does with the model: it generates (or says what that takes), and drafts; it has contexts of its own;
// or neither.
enum class ModelFlags { kPlain, kGenerate, kWithoutContext };
void AddModelFlags(CLI::App* app, ModelOptions* o, ModelFlags flags = ModelFlags::kPlain);
void AddSyntheticFlags(CLI::App* app, ModelOptions* model);
void CheckSynthetic(const ModelOptions& model);  // its flags come with --synthetic
void AddCountExperts(CLI::App* app, ModelOptions* o, std::string* path);
void AddSamplingFlags(CLI::App* app, SamplingParams* s, StopOptions* stops);
void AddDialect(CLI::App* app, std::optional<ChatDialect>* dialect);
void AddSpecialTokens(CLI::App* app, SpecialTokensInContent* value, const std::string& usual);

// Of `dsv4 serve`, whose command calls Check when all are read.
void AddServeFlags(CLI::App* app, ServeOptions* o);
void CheckServeFlags(const ServeOptions& o);

}  // namespace dsv4::cli
