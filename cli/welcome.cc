#include "welcome.h"

#include <algorithm>
#include <vector>

#include "dsv4/version.h"
#include "format.h"
#include "terminal_text.h"

namespace dsv4::cli {

namespace {

// "no GPU", "1 GPU (NVIDIA H200)", "2 GPUs (NVIDIA H200, NVIDIA H100)"
std::string Gpus(std::vector<std::string> names) {
  if (names.empty()) return "no GPU";
  std::string text = FormatCount(static_cast<int64_t>(names.size())) + (names.size() == 1 ? " GPU" : " GPUs");
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (names.size() > 1 || names.front() != "GPU") text += " (" + FormatList(names) + ")";
  return text;
}

std::string Machine(const MachineInfo& machine) {
  const std::string memory = machine.available_bytes > 0
                                 ? FormatFixed(static_cast<double>(machine.available_bytes) / 1e9, 0) +
                                       " GB of free memory, "
                                 : "";
  return FormatCount(machine.cores) + (machine.cores == 1 ? " core with " : " cores with ") + machine.instructions +
         ", " + memory + Gpus(machine.gpus);
}

}  // namespace

std::string WelcomeText(const Welcome& welcome, size_t columns) {
  const bool has_gpu = !welcome.machine.gpus.empty();
  std::string out = Wrapped("dsv4 " + GetBuildInfo().version + " runs DeepSeek-V4 models. This machine has " +
                                Machine(welcome.machine) + ".",
                            columns, 0) +
                    "\n";
  if (has_gpu && !welcome.has_gpu_code)
    out += Wrapped("This build has no GPU code: build it where nvcc is (docs/hardware.md).", columns, 0) + "\n";
  if (welcome.has_bundled_model) {
    out += "\nTry the bundled model of 20 MB, which writes prose and adds numbers:\n" +
           Table({{"dsv4 generate -p \"In the beginning\" -n 40", "continue a text"},
                  {"dsv4 chat", "talk to it here"},
                  {"dsv4 serve", "API, page: http://127.0.0.1:8000"}},
                 {false, false});
  }
  const std::string device = has_gpu && welcome.has_gpu_code ? " --device cuda" : "";
  return out +
         "\nGet a large model of 167 GB; --plan prints the memory that it takes here:\n"
         "  pip install huggingface_hub\n"
         "  hf download deepseek-ai/DeepSeek-V4-Flash-0731 --local-dir flash\n"
         "  dsv4 inspect -m flash --plan" +
         device + "\n  dsv4 chat -m flash" + device +
         "\n\ndocs/models.md lists other models, and the hardware that holds them.\n"
         "dsv4 --help lists all commands.\n";
}

}  // namespace dsv4::cli
