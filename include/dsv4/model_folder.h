// Checks the path that a user gives as the folder of a model.
#pragma once

#include <string>

#include "dsv4/export.h"
#include "dsv4/status.h"

namespace dsv4 {

// Returns an error with the remedy if `path` is no folder (a file, an archive, the id of a repository), or a folder
// that can be no checkpoint: weights of another kind only, or checkpoints only in its subfolders. Looks at names and at
// the first bytes of a file. Engine::Load and DescribeModel check the files of a checkpoint.
DSV4_API Status CheckModelFolder(const std::string& path);

}  // namespace dsv4
