// Standard streams, files and Ctrl-C for the commands.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "dsv4/status.h"
#include "terminal_text.h"

namespace dsv4::cli {

bool StdinIsTerminal();
bool StdoutIsTerminal();
bool StderrIsTerminal();
bool StderrIsStdout();   // both go to one file, pipe or terminal
size_t StdoutColumns();  // of the terminal; 80 if unknown
size_t StderrColumns();

// Reserves the descriptors of closed standard streams, so that no file gets them. Reading and writing them still fails.
// Call once, at the start.
void HoldClosedStreams();

// Installs a handler for SIGINT and SIGTERM, and turns SIGPIPE into a write error. SIGBUS from a model file that became
// shorter while it was read prints a line with the file's name and ends the process with status 1. Call once, at the
// start.
void InstallSignalHandlers();

// Returns true after Ctrl-C. A second Ctrl-C before ClearInterrupt() ends the process at once with status 130.
bool Interrupted();
void StopIfInterrupted();  // after Ctrl-C throws QuietExit with status 130
void ClearInterrupt();

// Writes to stdout without buffering: byte for byte, but to a terminal as ForTerminal() returns it. Throws QuietExit
// for a closed pipe, RunError for other errors.
void Print(std::string_view text);
void PrintRaw(std::string_view text);  // byte for byte, also to a terminal: for the program's own escape sequences

// Writes to stderr; ignores errors.
void PrintError(std::string_view text);

// Writes "dsv4: note: ..." to stderr.
void PrintNote(std::string_view text);

// Reads at least one byte of stdin; returns 0 at its end. Throws QuietExit after Ctrl-C.
size_t ReadStdinSome(std::span<char> buffer);

// Reads lines of stdin as they arrive, without their line feed.
class LineReader {
 public:
  // Returns false at the end. Throws QuietExit after Ctrl-C.
  bool Next(std::string* line);

  // Returns true if Next() would wait for input. Output should be flushed before.
  bool WouldWait() const { return held_.find('\n', start_) == std::string::npos; }

 private:
  std::string held_;
  size_t start_ = 0;
  bool ended_ = false;
};

// Writes one line for each line of stdin. Flushes before it waits for input. An error names the line.
int ForEachLine(const std::function<Result<std::string>(const std::string&)>& convert);

// Reads all of stdin, or a file ("-": stdin).
std::string ReadStdin();
std::string ReadInput(const std::string& path);

// Writes `path` atomically, through a temporary file, which Ctrl-C also removes. Writes devices, pipes and links in
// place.
void WriteOutput(const std::string& path, std::string_view bytes);

// Throws if `path` cannot be written, because its folder does not exist or is read-only. For use before a long
// computation.
void CheckWritable(const std::string& path);

// Returns the target of `path` after its links, for a writer that renames a temporary file over it. Throws if the
// target exists and is not a regular file, since a rename would replace a device or pipe, or if its folder cannot be
// written.
std::string ResolveReplaceableFile(const std::string& path);

// Prints a note on stderr if `text` is not valid UTF-8. The tokenizer reads each invalid part as U+FFFD.
void NoteInvalidUtf8(std::string_view text, std::string_view what);

}  // namespace dsv4::cli
