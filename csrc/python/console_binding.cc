// `_core.Console`, and functions that describe this build's engines and
// opcodes.
#include "python/console_binding.h"

#include "nes/simd.h"

namespace py = pybind11;

void BindConsole(py::module_& m) {
  py::class_<PyConsole>(m, "Console")
      .def(py::init(&PyConsole::Make), py::arg("rom"),
           py::arg("timing") = "console", py::arg("engine") = "")
      .def("step", &PyConsole::Step, py::arg("buttons"), py::arg("draw") = true)
      .def("step_many", &PyConsole::StepMany, py::arg("movie"),
           py::arg("draw_every") = 0)
      .def("step_instruction",
           [](PyConsole& self) { self.console().StepInstruction(); })
      .def("power_on", &PyConsole::PowerOn)
      .def("reset", [](PyConsole& self) { self.console().Reset(); })
      .def(
          "peek",
          [](PyConsole& self, uint16_t address) {
            return self.console().Peek(address);
          },
          py::arg("address"))
      .def_property_readonly(
          "ram",
          [](const py::object& self) {
            uint8_t* ram = self.cast<PyConsole&>().console().ram();
            return py::array_t<uint8_t>({nes::kRamBytes}, {1}, ram, self);
          })
      .def_property_readonly(
          "nametable",
          [](const PyConsole& self) {
            const auto& table = self.console().state().ppu.nametable;
            py::array_t<uint8_t> out({nes::kNametableBytes});
            std::memcpy(out.mutable_data(), table, sizeof(table));
            return out;
          })
      .def("palette_indices", &PyConsole::Indices)
      .def("screen", &PyConsole::Screen)
      .def("save", &PyConsole::Save)
      .def("load", &PyConsole::Load, py::arg("blob"))
      .def("state_bytes", &PyConsole::StateBytes)
      .def_property_readonly("registers", &PyConsole::Registers)
      .def("set_registers", &PyConsole::SetRegisters)
      .def("set_picture", &PyConsole::SetPicture, py::kw_only(),
           py::arg("nametable"), py::arg("palette"), py::arg("oam"),
           py::arg("ctrl"), py::arg("mask"), py::arg("status"), py::arg("v"),
           py::arg("t"), py::arg("fine_x"), py::arg("w"))
      .def_property_readonly("beam", &PyConsole::BeamPosition)
      .def_property_readonly(
          "rom_hash",
          [](PyConsole& self) { return self.console().cartridge().hash(); })
      .def("set_engine", &PyConsole::SetEngine, py::arg("name"))
      .def_property_readonly(
          "engine",
          [](PyConsole& self) { return nes::NameOf(self.console().engine()); })
      .def_property_readonly("translation_size", &PyConsole::TranslationSize)
      .def(
          "set_idle_skip",
          [](PyConsole& self, bool on) { self.console().set_idle_skip(on); },
          py::arg("on"))
      .def(
          "set_fast_loop",
          [](PyConsole& self, bool on) { self.console().set_fast_loop(on); },
          py::arg("on"));

  m.def(
      "nes_engine",
      [] {
        const std::string problem = nes::WhyNotTranslated();
        const nes::Engine engine = nes::DefaultEngine();
        return py::make_tuple(
            problem.empty() ? nes::NameOf(engine) : "interpreter", problem);
      },
      "Returns the engine that runs programs here, and why it is not a faster "
      "one.");
  m.def(
      "nes_cpu_path", [] { return cpu::Name(cpu::Best(nes::simd::kPaths)); },
      "Returns the vector instructions that drawing uses here.");
}
