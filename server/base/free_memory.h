// Memory that was freed and still belongs to the process: after much work of many threads that is most of it.
#pragma once

namespace dsv4::server {

// Gives it back to the system where it is much. Takes some milliseconds for each 100 MB.
void GiveBackFreeMemory();

}  // namespace dsv4::server
