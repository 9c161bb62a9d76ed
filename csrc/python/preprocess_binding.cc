// Preprocessing without an environment, for tests: makes one frame from palette
// indices on a chosen code path, and lists the paths of this machine.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "nes/palette.h"
#include "preprocess/frame.h"

namespace py = pybind11;

namespace {

using Picture = py::array_t<uint8_t, py::array::c_style>;

preprocess::Path PathFromName(const std::string& name) {
  using preprocess::Path;
  for (const Path path : preprocess::kPaths) {
    if (name == preprocess::Name(path)) return path;
  }
  throw std::invalid_argument(
      "path '" + name + "' is unknown; choose scalar, avx2, avx512 or neon");
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
      spec, path.empty() ? preprocess::BestPath() : PathFromName(path));
  const Picture now = Checked(indices);
  Picture before;
  if (!previous.is_none()) before = Checked(previous);
  py::array_t<uint8_t> frame({maker.channels(), height, width});
  maker.Make(now.data(), previous.is_none() ? nullptr : before.data(),
             frame.mutable_data());
  return py::make_tuple(frame, preprocess::Name(maker.path()));
}

py::list Paths() {
  using preprocess::Path;
  py::list names;
  for (const Path path : preprocess::kPaths) {
    if (preprocess::Supports(path)) names.append(preprocess::Name(path));
  }
  return names;
}

/// Returns the RGB values of the palette indices, (64, 3).
py::array_t<uint8_t> Palette() {
  py::array_t<uint8_t> colours({64, 3});
  std::memcpy(colours.mutable_data(), nes::kPalette.data(), 64 * 3);
  return colours;
}

}  // namespace

void BindPreprocess(py::module_& module) {
  module.def("preprocess_frame", &MakeFrame, py::arg("indices"),
             py::arg("previous") = py::none(), py::arg("height") = 84,
             py::arg("width") = 84, py::arg("gray") = true,
             py::arg("area") = true, py::arg("hud") = "keep",
             py::arg("path") = "");
  module.def("preprocess_paths", &Paths);
  module.def("preprocess_palette", &Palette);
}
