// Without libedit a terminal edits its lines by itself.
#include "line_editor.h"

namespace dsv4::cli {

std::unique_ptr<LineEditor> LineEditor::Create(const std::string&) { return nullptr; }

}  // namespace dsv4::cli
