// mario_envpool._core: the Python module of the native code, and its functions
// without a class: limits of the process, addresses and tiles of work RAM.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/path.h"
#include "mario/tiles.h"
#include "nes/palette.h"
#include "nes/state.h"
#include "pool/control_groups.h"
#include "preprocess/frame.h"

namespace py = pybind11;

void BindConsole(py::module_& module);   // console_binding.cc
void BindMario(py::module_& module);     // mario_binding.cc
void BindMarioEnv(py::module_& module);  // mario_env_binding.cc

namespace {

/// Returns the RGB values of the palette indices, (64, 3).
py::array_t<uint8_t> Palette() {
  py::array_t<uint8_t> colours({64, 3});
  std::memcpy(colours.mutable_data(), nes::kPalette.data(), 64 * 3);
  return colours;
}

using Ram = py::array_t<uint8_t, py::array::c_style>;

const uint8_t* WorkRam(const Ram& ram) {
  if (ram.ndim() != 1 || ram.shape(0) != py::ssize_t{nes::kRamBytes}) {
    throw std::invalid_argument(
        "work RAM is an array of 2,048 bytes, got shape " +
        py::str(py::tuple(py::cast(std::vector<py::ssize_t>(
                    ram.shape(), ram.shape() + ram.ndim()))))
            .cast<std::string>());
  }
  return ram.data();
}

void BindRam(py::module_& module) {
  py::dict addresses;
#define RAM(name, address) addresses[&#name[1]] = address;  // without the k
#include "mario/ram_map.inc"
  module.attr("ram_addresses") = addresses;
  py::list names;
  for (int code = 0; code < mario::kTileCount; ++code) {
    names.append(mario::TileName(code));
  }
  module.attr("tile_names") = py::tuple(names);
  module.attr("tile_mario_column") = mario::kMarioColumn;
  module.def(
      "tiles",
      [](const Ram& ram) {
        py::array_t<uint8_t> grid({mario::kTileRows, mario::kTileColumns});
        mario::MakeTiles(WorkRam(ram), grid.mutable_data());
        return grid;
      },
      py::arg("ram"));
  module.def(
      "motion",
      [](const Ram& ram, bool world) {
        py::array_t<int8_t> rows({mario::kMotionRows, mario::kMotionColumns});
        mario::MakeMotion(WorkRam(ram), rows.mutable_data());
        if (world) mario::MakeWorld(WorkRam(ram), rows.mutable_data());
        return rows;
      },
      py::arg("ram"), py::arg("world") = false);
  module.def(
      "objects",
      [](const Ram& ram) {
        int16_t rows[mario::kMaxObjects * mario::kObjectColumns];
        const int count = mario::MakeObjects(WorkRam(ram), rows);
        return py::array_t<int16_t>({count, mario::kObjectColumns}, rows);
      },
      py::arg("ram"));
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  cpu::Supports(cpu::Path::kScalar);  // refuses a wrong MARIO_CPU
  module.doc() = "Native code of mario_envpool: console, task and pool.";
  module.attr("version") = MARIO_VERSION;
  module.def(
      "cpu_path", [] { return cpu::Name(cpu::Best(preprocess::kPaths)); },
      "Returns the vector instructions that resizing uses here.");
  module.def("preprocess_palette", &Palette);
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
  BindRam(module);
}
