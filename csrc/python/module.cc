// mario_envpool._core: the Python module of the native code.
#include <pybind11/pybind11.h>

#include "preprocess/cpu_path.h"

namespace py = pybind11;

void BindConsole(py::module_& module);     // console_binding.cc
void BindCounting(py::module_& module);    // counting_binding.cc
void BindMario(py::module_& module);       // mario_binding.cc
void BindMarioEnv(py::module_& module);    // mario_env_binding.cc
void BindPreprocess(py::module_& module);  // preprocess_binding.cc
void BindTiles(py::module_& module);       // tiles_binding.cc

PYBIND11_MODULE(_core, module) {
  module.doc() = "Native code of mario_envpool: console, task and pool.";
  module.attr("version") = MARIO_VERSION;
  module.def("cpu_path", &preprocess::CpuPath,
             "Returns the vector instructions chosen for this CPU.");
  BindConsole(module);
  BindMario(module);
  BindMarioEnv(module);
  BindPreprocess(module);
  BindTiles(module);
  BindCounting(module);
}
