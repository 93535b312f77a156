// The line editor with libedit (BSD licence). ReadKey reads the terminal while a line is edited, so that signals end
// the wait. Ctrl-C and Ctrl-Z arrive as keys.
#include "line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "errors.h"
#include "io.h"

namespace dsv4::cli {

namespace {

constexpr int kHistorySize = 1000;
constexpr wchar_t kCtrlC = 3;
constexpr wchar_t kReplacement = 0xfffd;
constexpr std::wstring_view kPasteEnd = L"\033[201~";

// Removes control characters, which would move the cursor, and line ends at the end. Converts line ends to line feeds.
std::wstring CleanPaste(std::wstring_view text) {
  std::wstring clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const wchar_t c = text[i];
    if (c == '\r') {
      clean += L'\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else if (c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f)) {
      clean += c;
    }
  }
  clean.resize(clean.find_last_not_of(L'\n') + 1);
  return clean;
}

constexpr off_t kMaxHistoryBytes = off_t{16} << 20;

// Reads the history if `path` is a regular file of its owner's, which a pipe, a device or a link in its place is not.
// Returns why it cannot be used; empty: it can, or it does not exist yet.
std::string LoadHistory(History* history, const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? "" : errno == ELOOP ? "is a link" : std::strerror(errno);
  struct stat info;
  std::string problem;
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    problem = "is not a regular file";
  } else if (info.st_size > kMaxHistoryBytes) {
    problem = "has more than " + std::to_string(kMaxHistoryBytes >> 20) + " MiB";
  } else {
    HistEvent event;
    ::history(history, &event, H_LOAD, ("/proc/self/fd/" + std::to_string(fd)).c_str());  // the file that was examined
  }
  ::close(fd);
  return problem;
}

// Replaces the history file atomically. Its mode is 0600 from the start.
bool SaveHistory(History* history, const std::string& path) {
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  FILE* file = ::fdopen(fd, "w");
  if (file == nullptr) {
    ::close(fd);
    return false;
  }
  HistEvent event;
  bool done = ::history(history, &event, H_SAVE_FP, file) >= 0;
  done = std::fclose(file) == 0 && done;
  done = done && ::rename(temporary.c_str(), path.c_str()) == 0;
  if (!done) ::unlink(temporary.c_str());
  return done;
}

class LibeditEditor : public LineEditor {
 public:
  explicit LibeditEditor(const std::string& history_file) : history_file_(history_file) {
    UseUtf8();
    editor_ = ::el_init("dsv4", stdin, stderr, stderr);
    history_ = ::history_init();
    if (editor_ == nullptr || history_ == nullptr) throw RunError("not enough memory for the line editor");
    HistEvent event;
    ::history(history_, &event, H_SETSIZE, kHistorySize);
    ::history(history_, &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) {
      if (const std::string problem = LoadHistory(history_, history_file_); !problem.empty()) {
        PrintNote("there is no history: " + history_file_ + " " + problem + "; remove it, or use --no-history");
        history_file_.clear();
      }
    }
    ::el_set(editor_, EL_CLIENTDATA, this);
    ::el_set(editor_, EL_PROMPT, Prompt);
    ::el_set(editor_, EL_EDITOR, "emacs");
    ::el_set(editor_, EL_HIST, ::history, history_);
    ::el_source(editor_, nullptr);  // the user's ~/.editrc
    ::el_set(editor_, EL_SIGNAL, 0);
    ::el_wset(editor_, EL_GETCFN, ReadKey);
    ::el_set(editor_, EL_SETTY, "-d", "-isig", nullptr);  // Ctrl-C and Ctrl-Z are keys while a line is edited
    Bind("^C", "dsv4-clear", "drop the line", Clear);
    ::el_set(editor_, EL_BIND, "^@", "em-delete-or-list", nullptr);  // Ctrl-D that was typed ahead
    Bind("^Z", "dsv4-suspend", "suspend the program", Suspend);
    Bind("\\e[200~", "dsv4-paste", "insert pasted text", Paste);
    Bind("\\e\\r", "dsv4-newline", "begin another line", NewLine);
    Bind("\\e\\n", "dsv4-newline", "begin another line", NewLine);
    const char* terminal = nullptr;
    ::el_get(editor_, EL_TERMINAL, &terminal);
    paste_ = terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
  }

  ~LibeditEditor() override {
    ::el_end(editor_);
    ::history_end(history_);
  }
  LibeditEditor(const LibeditEditor&) = delete;
  LibeditEditor& operator=(const LibeditEditor&) = delete;

  Read Next(const std::string& prompt, std::string* line) override {
    prompt_ = prompt;
    cleared_ = false;
    line->clear();
    FitWindow();
    ::el_set(editor_, EL_PREP_TERM, 1);  // before the prompt; el_gets() would do it at the first key
    AskForPastes(true);
    int length = 0;
    const char* text = ::el_gets(editor_, &length);
    AskForPastes(false);
    StopIfInterrupted();
    if (text == nullptr || length <= 0) return Read::kEnd;
    line->assign(text, static_cast<size_t>(length));
    if (line->back() == '\n') line->pop_back();
    return cleared_ ? Read::kCleared : Read::kLine;
  }

  void Remember(const std::string& line) override {
    HistEvent event;
    ::history(history_, &event, H_ENTER, line.c_str());
    if (history_file_.empty()) return;
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::path(history_file_).parent_path();
    std::filesystem::create_directories(folder.parent_path(), error);
    ::mkdir(folder.c_str(), 0700);
    if (SaveHistory(history_, history_file_)) return;
    PrintNote("the history cannot be written to " + history_file_ + " and is kept only for this chat");
    history_file_.clear();
  }

 private:
  using Function = unsigned char (*)(EditLine*, int);

  static LibeditEditor& Of(EditLine* editor) {
    void* self = nullptr;
    ::el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<LibeditEditor*>(self);
  }

  static char* Prompt(EditLine* editor) { return Of(editor).prompt_.data(); }

  // libedit gets the width of characters from the locale.
  static void UseUtf8() {
    std::setlocale(LC_CTYPE, "");
    if (std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
  }

  void Bind(const char* keys, const char* name, const char* help, Function function) {
    ::el_set(editor_, EL_ADDFN, name, help, function);
    ::el_set(editor_, EL_BIND, keys, name, nullptr);
  }

  // Turns marks around pasted text on or off.
  void AskForPastes(bool on) const {
    if (paste_) PrintError(on ? "\033[?2004h" : "\033[?2004l");
  }

  void FitWindow() {
    struct winsize now = {};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &now) != 0) return;
    if (now.ws_col == window_.ws_col && now.ws_row == window_.ws_row) return;
    window_ = now;
    ::el_resize(editor_);
  }

  // Reads the next character. Returns 0 at the end of the input, -1 after a signal.
  static int ReadKey(EditLine* editor, wchar_t* key) {
    LibeditEditor& self = Of(editor);
    std::mbstate_t state = {};
    while (true) {
      if (self.next_ == self.held_) {
        try {
          self.held_ = ReadStdinSome(self.keys_);
        } catch (...) {  // a signal, which Next() checks, or a closed terminal, which ends the input
          return -1;
        }
        self.next_ = 0;
        if (self.held_ == 0) return 0;
        self.FitWindow();
      }
      const size_t used = std::mbrtowc(key, self.keys_.data() + self.next_++, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;
      if (used == static_cast<size_t>(-1)) *key = kReplacement;
      return 1;
    }
  }

  static unsigned char Paste(EditLine* editor, int) {
    std::wstring text;
    wchar_t key = 0;
    while (::el_wgetc(editor, &key) == 1 && key != kCtrlC) {
      text += key;
      if (!text.ends_with(kPasteEnd)) continue;
      text.resize(text.size() - kPasteEnd.size());
      break;
    }
    return Insert(editor, CleanPaste(text));
  }

  static unsigned char NewLine(EditLine* editor, int) { return Insert(editor, L"\n"); }

  static unsigned char Insert(EditLine* editor, const std::wstring& text) {
    return ::el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_REFRESH_BEEP;
  }

  // Ends the line as Enter does, and marks it as cleared.
  static unsigned char Clear(EditLine* editor, int) {
    Of(editor).cleared_ = true;
    const LineInfoW* line = ::el_wline(editor);
    ::el_cursor(editor, static_cast<int>(line->lastchar - line->cursor));
    ::el_wpush(editor, L"\n");
    return CC_REFRESH;
  }

  static unsigned char Suspend(EditLine* editor, int) {
    Of(editor).AskForPastes(false);
    ::el_set(editor, EL_PREP_TERM, 0);
    ::kill(0, SIGTSTP);
    ::el_set(editor, EL_PREP_TERM, 1);
    Of(editor).AskForPastes(true);
    return CC_REDISPLAY;
  }

  std::string history_file_;
  std::string prompt_;
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
  bool paste_ = false;
  bool cleared_ = false;
  struct winsize window_ = {};
  std::array<char, 4096> keys_;  // bytes from the terminal; not processed yet: [next_, held_)
  size_t next_ = 0;
  size_t held_ = 0;
};

}  // namespace

std::unique_ptr<LineEditor> LineEditor::Create(const std::string& history_file) {
  if (!StdinIsTerminal() || !StderrIsTerminal()) return nullptr;
  return std::make_unique<LibeditEditor>(history_file);
}

}  // namespace dsv4::cli
