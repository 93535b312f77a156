#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "server/metrics/metrics_page.h"

namespace dsv4::server {

namespace {

double NumOpenFiles() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 0 : static_cast<double>(std::distance(files, std::filesystem::directory_iterator()) - 1);
}

// Returns the fields of /proc/self/stat after the name, which may contain blanks.
std::vector<double> ProcessStat() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream rest(text.substr(std::min(text.rfind(')') + 3, text.size())));  // after the state, one letter
  return {std::istream_iterator<double>(rest), std::istream_iterator<double>()};
}

double BootTime() {
  std::ifstream file("/proc/stat");
  double seconds = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("btime ")) seconds = std::stod(line.substr(6));
  }
  return seconds;
}

}  // namespace

void AddProcessMetrics(MetricsPage* page) {
  // proc_pid_stat(5), without its first three fields.
  constexpr size_t kUserTime = 10, kSystemTime = 11, kStart = 18, kVirtual = 19, kResident = 20;
  const std::vector<double> stat = ProcessStat();
  if (stat.size() <= kResident) return;
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const auto page_bytes = static_cast<double>(::sysconf(_SC_PAGESIZE));
  static const double start = BootTime() + stat[kStart] / ticks;
  page->One("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.",
            (stat[kUserTime] + stat[kSystemTime]) / ticks);
  page->Gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", stat[kVirtual]);
  page->Gauge("process_resident_memory_bytes", "Resident memory size in bytes.", stat[kResident] * page_bytes);
  page->Gauge("process_open_fds", "Number of open file descriptors.", NumOpenFiles());
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    page->Gauge("process_max_fds", "Maximum number of open file descriptors.", static_cast<double>(limit.rlim_cur));
  }
  page->Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", start);
}

}  // namespace dsv4::server
