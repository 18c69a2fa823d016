// SPDX-License-Identifier: Apache-2.0
// The extension module kvonce._native.

#include <kvonce/version.hpp>

#include "python/src/futures.hpp"

NB_MODULE(_native, module) {
  using namespace kvonce::python;
  // A child of a fork and the end of the interpreter leave objects alone on purpose.
  nanobind::set_leak_warnings(false);
  module.attr("__doc__") = "The C++ side of kvonce.";
  module.def("version", &kvonce::version, "Version, commit, CAF version and kind of the build.");
  watch_process(module);
  set_end_call(&stop_all);
  bind_errors(module);
  bind_futures(module);
  bind_rank(module);
  bind_runtime(module);
}
