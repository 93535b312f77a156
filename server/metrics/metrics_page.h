// A page in Prometheus' text format.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace dsv4::server {

class MetricsPage {
 public:
  // `label`: added to every series; NAME="VALUE".
  explicit MetricsPage(std::string label) : label_(std::move(label)) {}

  static std::string Number(double value) {
    std::array<char, 32> buffer;
    return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr};
  }
  static std::string Escape(const std::string& text) {
    std::string out;
    for (const char c : text) {
      if (c == '"' || c == '\\' || c == '\n') out += '\\';
      out += c == '\n' ? 'n' : c;
    }
    return out;
  }
  static std::string Label(const std::string& name, const std::string& value) {
    return name + "=\"" + Escape(value) + "\"";
  }

  void Head(const std::string& name, const char* type, const char* help) {
    out += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void Value(const std::string& name, const std::string& more_labels, double value) {
    out += name + "{" + label_ + more_labels + "} " + Number(value) + "\n";
  }
  void One(const std::string& name, const char* type, const char* help, double value) {
    Head(name, type, help);
    Value(name, "", value);
  }
  void Gauge(const std::string& name, const char* help, double value) { One(name, "gauge", help, value); }
  void Gauge(const std::string& name, const char* help, int64_t value) {
    One(name, "gauge", help, static_cast<double>(value));
  }
  template <typename Integer>
  void Counter(const std::string& name, const char* help, Integer value) {
    One(name, "counter", help, static_cast<double>(value));
  }
  // A counter with one more label and its values.
  void Counters(const std::string& name, const char* help, const char* key,
                const std::map<std::string, uint64_t>& counts) {
    Head(name, "counter", help);
    for (const auto& [value, count] : counts) Value(name, "," + Label(key, value), static_cast<double>(count));
  }
  const std::string& label() const { return label_; }

  std::string out;

 private:
  const std::string label_;
};

// Adds CPU time, memory, file descriptors and start time of this process, with the names of Prometheus' client
// libraries.
void AddProcessMetrics(MetricsPage* page);

}  // namespace dsv4::server
