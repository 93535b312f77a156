// SIGTERM and SIGINT: the first is told to whoever reads the descriptor, the second ends the process at once.
#pragma once

namespace dsv4::server {

// From now on. The descriptor, which the caller owns, gives the first signal's number as one byte; the second signal
// ends the process with the status 0, whatever its threads are doing: that is what was asked for. Once in a process.
int CatchStopSignals();

}  // namespace dsv4::server
