// mario_envpool._core: the Python module of the native code, and its functions
// without a class: limits of the process, one frame of preprocessing on a
// chosen code path (for tests), addresses and tiles of work RAM.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
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

using Picture = py::array_t<uint8_t, py::array::c_style>;

cpu::Path PathFromName(const std::string& name) {
  for (const cpu::Path path : preprocess::kPaths) {
    if (name == cpu::Name(path)) return path;
  }
  throw std::invalid_argument("path '" + name +
                              "' is unknown; choose scalar, neon, avx2 or "
                              "avx512_vbmi");
}

preprocess::Hud ParseHud(const std::string& name) {
  if (const auto hud = preprocess::HudFromName(name)) return *hud;
  throw std::invalid_argument("hud '" + name +
                              "' is unknown; choose keep, mask or crop");
}

/// Returns the picture in C order. Its colours index tables, so they are
/// checked too.
Picture Checked(py::handle value) {
  if (!py::isinstance<py::array_t<uint8_t>>(value)) {
    throw py::type_error("a picture must be an array of dtype uint8");
  }
  const auto picture = Picture::ensure(value);
  if (!picture) throw py::error_already_set();
  if (picture.ndim() != 2 || picture.shape(0) != preprocess::kSourceHeight ||
      picture.shape(1) != preprocess::kSourceWidth) {
    throw std::invalid_argument("a picture must be (240, 256) uint8");
  }
  const uint8_t* data = picture.data();
  if (std::any_of(data, data + picture.size(),
                  [](uint8_t index) { return index > 63; })) {
    throw std::invalid_argument(
        "a picture consists of palette indices, which are 0 to 63");
  }
  return picture;
}

/// Returns the frame, (C, height, width), and the name of the path taken.
py::tuple MakeFrame(py::handle indices, py::handle previous, int height,
                    int width, bool gray, bool area, const std::string& hud,
                    const std::string& path) {
  preprocess::FrameSpec spec;
  spec.height = height;
  spec.width = width;
  spec.gray = gray;
  spec.area = area;
  spec.hud = ParseHud(hud);
  const preprocess::FrameMaker maker(
      spec, path.empty() ? cpu::Best(preprocess::kPaths) : PathFromName(path));
  const Picture now = Checked(indices);
  Picture before;
  if (!previous.is_none()) before = Checked(previous);
  py::array_t<uint8_t> frame({maker.channels(), height, width});
  maker.Make(now.data(), previous.is_none() ? nullptr : before.data(),
             frame.mutable_data());
  return py::make_tuple(frame, cpu::Name(maker.path()));
}

py::list Paths() {
  py::list names;
  for (const cpu::Path path : preprocess::kPaths) {
    if (cpu::Supports(path)) names.append(cpu::Name(path));
  }
  return names;
}

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

void BindPreprocess(py::module_& module) {
  module.def("preprocess_frame", &MakeFrame, py::arg("indices"),
             py::arg("previous") = py::none(), py::arg("height") = 84,
             py::arg("width") = 84, py::arg("gray") = true,
             py::arg("area") = true, py::arg("hud") = "keep",
             py::arg("path") = "");
  module.def("preprocess_paths", &Paths);
  module.def("preprocess_palette", &Palette);
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
      [](const Ram& ram) {
        py::array_t<int8_t> rows({mario::kMotionRows, mario::kMotionColumns});
        mario::MakeMotion(WorkRam(ram), rows.mutable_data());
        return rows;
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
  BindRam(module);
}
