// mario_envpool._core: the Python module of the native code.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "pool/control_groups.h"
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
  module.def(
      "usable_cpus",
      [](const std::string& root) { return pool::UsableCpus(root); },
      py::arg("root") = "/",
      "Returns how many CPUs this process can keep busy: those that it may run "
      "on, or the CPU quota of its container if that is less.");
  module.def(
      "control_groups",
      [](const std::string& controller, const std::string& root) {
        std::vector<std::string> folders;
        for (const auto& group : pool::ControlGroups(controller, root)) {
          folders.push_back(group.string());
        }
        return folders;
      },
      py::arg("controller"), py::arg("root") = "/",
      "Returns the folders of the control groups that limit this process by "
      "'cpu' or 'memory', its own group first.");
  BindConsole(module);
  BindMario(module);
  BindMarioEnv(module);
  BindPreprocess(module);
  BindTiles(module);
  BindCounting(module);
}
