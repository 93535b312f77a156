// The extension module dsv4._dsv4. dsv4/__init__.py has the names that users see.
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "dsv4/version.h"
#include "engine.h"
#include "sampling.h"
#include "service.h"
#include "text.h"
#include "threads.h"

NB_MODULE(_dsv4, m) {
  namespace nb = nanobind;
  using namespace dsv4::python;  // NOLINT: a module's function
  nb::set_leak_warnings(false);  // objects that are alive at the end of the interpreter are no error
  m.doc() = "The C++ part of dsv4. Use the names of the package dsv4.";
  WatchForks();
  BindText(m);
  BindEngine(m);
  BindSampling(m);
  BindService(m);
  m.def("_close_all", &CloseAll, "Ends all engines: the interpreter ends.");
  m.def("_build_info", []() -> nb::typed<nb::dict, std::string, std::string> {
    const dsv4::BuildInfo info = dsv4::GetBuildInfo();
    nb::dict dict;
    dict["version"] = info.version;
    dict["commit"] = info.commit;
    dict["compiler"] = info.compiler;
    dict["cpu_features"] = info.cpu_features;
    dict["gpu_architectures"] = info.gpu_architectures;
    return nb::typed<nb::dict, std::string, std::string>(std::move(dict));
  });
}
