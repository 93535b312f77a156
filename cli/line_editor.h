// Reads lines at a terminal, with editing keys, a history that is kept between runs, and pasted lines.
#pragma once

#include <memory>
#include <string>

namespace dsv4::cli {

class LineEditor {
 public:
  enum class Read { kLine, kCleared, kEnd };  // kCleared: Ctrl-C

  // Keeps the history in `history_file`, which only its owner can read; "": only in memory. Returns null if stdin or
  // stderr is not a terminal, or if the program was built without libedit.
  static std::unique_ptr<LineEditor> Create(const std::string& history_file);

  virtual ~LineEditor() = default;

  // Waits for a line and returns it without its line feed. Pasted text, or Alt+Enter, gives line feeds inside the line.
  // kCleared: *line is the text that was cleared. Throws QuietExit after SIGINT or SIGTERM.
  virtual Read Next(const std::string& prompt, std::string* line) = 0;

  virtual void Remember(const std::string& line) = 0;
};

}  // namespace dsv4::cli
