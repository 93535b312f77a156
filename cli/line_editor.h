// Lines that are typed at a terminal: edited with the arrow keys, remembered from one run to the next, pasted whole.
#pragma once

#include <memory>
#include <string>

namespace dsv4::cli {

class LineEditor {
 public:
  enum class Read { kLine, kCleared, kEnd };  // kCleared: Ctrl-C

  // The history is kept in this file, which only its owner may read; empty: in memory. Null where stdin or stderr is no
  // terminal, or the program was built without libedit.
  static std::unique_ptr<LineEditor> Create(const std::string& history_file);

  virtual ~LineEditor() = default;

  // Waits for a line, without its line feed; one that was pasted, or written with Alt+Enter, holds others. kCleared:
  // the text that was there is in *line. Throws QuietExit after SIGINT or SIGTERM.
  virtual Read Next(const std::string& prompt, std::string* line) = 0;

  virtual void Remember(const std::string& line) = 0;
};

}  // namespace dsv4::cli
