// SIGTERM and SIGINT: a descriptor reports the first one; the second one ends the process at once.
#pragma once

namespace dsv4::server {

// Installs the handlers and returns a descriptor, which the caller owns; -1 if that failed. The descriptor yields the
// number of the first signal as one byte. The second signal ends the process with status 0, whatever its threads are
// doing, because the stop was requested. Call it once per process.
int CatchStopSignals();

}  // namespace dsv4::server
