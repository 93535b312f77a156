// Standard streams, files and Ctrl-C for the commands.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "dsv4/status.h"

namespace dsv4::cli {

bool StdinIsTerminal();
bool StdoutIsTerminal();
bool StderrIsTerminal();
bool StderrIsStdout();   // both go to one file, pipe or terminal
size_t StderrColumns();  // of the terminal; 80 where it does not say

// Takes the numbers of standard streams that are closed, so that no file gets them; reading or writing those fails.
// Once, at the start.
void HoldClosedStreams();

// Installs the handler of SIGINT and SIGTERM, turns SIGPIPE into a write error, and the SIGBUS of a model's file that
// has become shorter while it is read into a line that names it and the status 1. Once, at the start.
void InstallSignalHandlers();

// True after Ctrl-C. A second Ctrl-C before ClearInterrupt() ends the process at once with status 130.
bool Interrupted();
void StopIfInterrupted();  // throws QuietExit with the status 130 then
void ClearInterrupt();

// Writes to stdout at once (no buffering between calls). A closed pipe is a QuietExit, a full disk a RunError.
void Print(std::string_view text);

// On one line, with what a terminal would obey, and bytes that are no UTF-8, spelled out (\x1b).
std::string Printable(std::string_view text);

// To stderr; failures are ignored.
void PrintError(std::string_view text);

// "dsv4: note: ..." on stderr.
void PrintNote(std::string_view text);

// Some bytes of stdin, at least one; 0 at its end. Ctrl-C while waiting throws QuietExit.
size_t ReadStdinSome(std::span<char> buffer);

// Lines of stdin as they come, without their line feed.
class LineReader {
 public:
  // False at the end. Ctrl-C while waiting throws QuietExit.
  bool Next(std::string* line);

  // True when another Next() would have to wait for input: the time to flush what is known.
  bool WouldWait() const { return held_.find('\n', start_) == std::string::npos; }

 private:
  std::string held_;
  size_t start_ = 0;
  bool ended_ = false;
};

// One line out for each line of stdin, written as soon as stdin would be waited for. An error names the line.
int ForEachLine(const std::function<Result<std::string>(const std::string&)>& convert);

// All of stdin, or a file ("-": stdin).
std::string ReadStdin();
std::string ReadInput(const std::string& path);

// Writes `path` whole or not at all (through a temporary file that Ctrl-C removes, too). Devices, pipes and links are
// written in place.
void WriteOutput(const std::string& path, std::string_view bytes);

// Fails early, before a long computation, when `path` cannot be written: its folder does not exist or is read-only.
void CheckWritable(const std::string& path);

// For a writer that renames a temporary file over `path`: what links lead to. Throws unless that is a regular file or
// does not exist yet, since a rename would replace a device or pipe, and where its folder takes no other file.
std::string ResolveReplaceableFile(const std::string& path);

// The offset of the first byte that is not valid UTF-8, or npos.
size_t FindInvalidUtf8(std::string_view text);

// A note on stderr when `text` is not valid UTF-8: the tokenizer then reads each broken part as U+FFFD.
void NoteInvalidUtf8(std::string_view text, std::string_view what);

}  // namespace dsv4::cli
