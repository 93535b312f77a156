// Flags on CLI11: commands, flags with a value, and the groups of flags that several commands share. A value is checked
// while it is parsed. UsageError then names the flag, the text and the accepted values.
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

// Parses all of `text` as one number of type T. Accepts a leading +.
template <typename T>
bool ParseWhole(std::string_view text, T* value) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// Type names in --help: a file, a folder, one of the names of AddChoice.
inline constexpr const char* kFileType = "F";
inline constexpr const char* kFolderType = "DIR";
inline constexpr const char* kChoiceType = "CHOICE";

// Returns the names that a flag of AddChoice accepts; empty for other flags.
std::vector<std::string> ChoicesOf(const CLI::Option& option);

// Runs a command and returns its exit status.
using Command = std::function<int()>;

// Adds a command, or a sub-command, with an example for its --help.
CLI::App* AddCommand(CLI::App* app, const char* name, const char* help, const std::string& example);

// During its lifetime, added flags get this title in --help.
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

// Adds a flag with one value, and its old names (old_flags.h). `store` gets the value; of several, the last one. `type`
// is the name of the value in --help.
CLI::Option* AddText(CLI::App* app, const std::string& flags, const std::string& type, const std::string& help,
                     std::function<void(const std::string&)> store);

// Adds a flag that may be repeated. `store` gets each value, in order.
void AddTexts(CLI::App* app, const std::string& flags, const std::string& type, const std::string& help,
              std::function<void(const std::string&)> store);

// Returns true if `key` is visible ASCII, as an HTTP header requires.
bool IsUsableKey(std::string_view key);

// Returns "--model" for "-m,--model".
std::string LongName(const std::string& flags);

// Parses the value of a flag. Throws a UsageError that names the flag.
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

// A list such as "512,8192"; may be empty.
void AddCounts(CLI::App* app, const std::string& names, std::optional<std::vector<int64_t>>* counts, int64_t largest,
               const std::string& help, int64_t least = 1);

void AddModelDir(CLI::App* app, std::string* dir);
// kGenerate: with flags for drafts. kWithoutContext: without --ctx, which the command defines itself.
enum class ModelFlags { kPlain, kGenerate, kWithoutContext };
void AddModelFlags(CLI::App* app, ModelOptions* o, ModelFlags flags = ModelFlags::kPlain);
void AddSyntheticFlags(CLI::App* app, ModelOptions* model);
void CheckSynthetic(const ModelOptions& model);  // throws if flags of synthetic weights are used without --synthetic
void AddCountExperts(CLI::App* app, ModelOptions* o, std::string* path);
void AddSamplingFlags(CLI::App* app, SamplingParams* s, StopOptions* stops);
void AddDialect(CLI::App* app, std::optional<ChatDialect>* dialect);
void AddSpecialTokens(CLI::App* app, SpecialTokensInContent* value, const std::string& usual);

// Sampling values that can be checked without a model. Throws a UsageError.
void CheckSampling(const SamplingParams& s);

// Flags of `dsv4 serve`, and checks after all flags are parsed.
void AddServeFlags(CLI::App* app, ServeOptions* o);
void CheckServeFlags(const ServeOptions& o);

// `dsv4 bench` with its sub-commands, and `dsv4 synthesize`. Store the command that was chosen in `chosen`.
void AddBench(CLI::App* app, Command* chosen);
void AddSynthesize(CLI::App* app, Command* chosen);

}  // namespace dsv4::cli
