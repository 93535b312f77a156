// Without libedit, the terminal's own line editing is used.
#include "line_editor.h"

namespace dsv4::cli {

std::unique_ptr<LineEditor> LineEditor::Create(const std::string&) { return nullptr; }

}  // namespace dsv4::cli
