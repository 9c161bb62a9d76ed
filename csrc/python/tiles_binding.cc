// Python bindings of mario/tiles.h: the legend, and both functions of work RAM.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "mario/tiles.h"
#include "nes/state.h"

namespace py = pybind11;

namespace {

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

}  // namespace

void BindTiles(py::module_& module) {
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
