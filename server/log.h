// Lines on standard error: key=value, or one JSON object each. Any thread.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace dsv4::server {

using LogField = std::pair<std::string_view, std::string>;

class Log {
 public:
  explicit Log(bool json) : json_(json) {}
  void Line(std::string_view event, std::initializer_list<LogField> fields) const;

 private:
  const bool json_;
};

}  // namespace dsv4::server
