// dsv4: the command line. Exit status: 0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C.
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "command_line.h"
#include "errors.h"
#include "io.h"

namespace {

int Fail(int exit_status, const std::string& message) {
  dsv4::cli::PrintError("dsv4: error: " + dsv4::cli::Printable(message) + "\n");
  return exit_status;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace dsv4::cli;
  try {
    HoldClosedStreams();
    InstallSignalHandlers();
    return ParseCommandLine(argc, argv)();
  } catch (const QuietExit& quiet) {
    return quiet.exit_status;
  } catch (const UsageError& error) {
    return Fail(kExitUsage, error.what());
  } catch (const RunError& error) {
    return Fail(kExitFailed, error.what());
  } catch (const std::bad_alloc&) {
    return Fail(kExitFailed, "not enough memory; try a smaller --ctx or --prefill-chunk");
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again)
      return Fail(kExitFailed, std::string("internal error: ") + error.what());
    return Fail(kExitFailed,
                "cannot start a thread; use fewer --threads, or raise the limits of the process (ulimit -u, -v)");
  } catch (const std::exception& error) {
    return Fail(kExitFailed, std::string("internal error: ") + error.what());
  }
}
