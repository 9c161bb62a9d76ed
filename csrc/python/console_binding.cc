// A bare console for tests and tools: `_core.Console`. Training never passes
// through here.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "nes/console.h"
#include "nes/opcodes.h"
#include "nes/palette.h"
#include "nes/simd.h"
#include "python/engine_warning.h"

namespace py = pybind11;

namespace {

std::span<const uint8_t> AsBytes(const std::string_view& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

/// Does not release the GIL, so that threads that share a console take turns.
class PyConsole {
 public:
  PyConsole(const py::bytes& rom, const std::string& timing,
            const std::string& engine)
      : cartridge_(nes::Cartridge::Parse(AsBytes(std::string_view(rom)))),
        console_(cartridge_, nes::TimingByName(timing), Wanted(engine)) {}

  nes::Console& console() { return console_; }
  const nes::Console& console() const { return console_; }

  void Step(int buttons, bool draw) {
    if (buttons < 0 || buttons > 255) {
      throw py::value_error("buttons is " + std::to_string(buttons) +
                            "; a pad byte is 0 to 255");
    }
    RunFrame(static_cast<uint8_t>(buttons), draw);
  }

  // Runs many frames without the Python interpreter in the loop.
  void StepMany(const py::bytes& movie, int draw_every) {
    const std::string_view buttons(movie);
    for (size_t i = 0; i < buttons.size(); ++i) {
      const bool draw =
          draw_every > 0 && (i + 1) % static_cast<size_t>(draw_every) == 0;
      RunFrame(static_cast<uint8_t>(buttons[i]), draw);
    }
  }

  void PowerOn() {
    console_.PowerOn();
    has_jumped_ = true;
  }

  void SetEngine(const std::string& name) { console_.set_engine(Wanted(name)); }

  py::array_t<uint8_t> Indices() {
    py::array_t<uint8_t> out({nes::kScreenHeight, nes::kScreenWidth});
    std::memcpy(out.mutable_data(), Picture().data(), indices_.size());
    return out;
  }

  py::array_t<uint8_t> Screen() {
    py::array_t<uint8_t> out({nes::kScreenHeight, nes::kScreenWidth, 3});
    uint8_t* to = out.mutable_data();
    for (uint8_t index : Picture()) {
      std::memcpy(to, nes::kPalette[index & 63].data(), 3);
      to += 3;
    }
    return out;
  }

  py::bytes Save() const {
    std::string blob(console_.SaveBytes(), '\0');
    console_.Save(reinterpret_cast<std::byte*>(blob.data()));
    return py::bytes(blob);
  }

  void Load(const py::bytes& blob) {
    const std::string_view view(blob);
    console_.Load(
        {reinterpret_cast<const std::byte*>(view.data()), view.size()});
    has_jumped_ = true;
  }

  py::bytes StateBytes() const {
    return py::bytes(reinterpret_cast<const char*>(&console_.state()),
                     sizeof(nes::State));
  }

  py::dict Registers() const {
    const nes::CpuState& cpu = console_.state().cpu;
    py::dict out;
    out["pc"] = cpu.pc;
    out["a"] = cpu.a;
    out["x"] = cpu.x;
    out["y"] = cpu.y;
    out["sp"] = cpu.sp;
    out["p"] = cpu.p;
    out["cycle"] = cpu.cycle;
    return out;
  }

  void SetRegisters(const py::kwargs& values) {
    nes::State state = console_.state();
    for (const auto& [key, value] : values) {
      const auto name = key.cast<std::string>();
      if (name == "pc") {
        state.cpu.pc = value.cast<uint16_t>();
      } else if (name == "a") {
        state.cpu.a = value.cast<uint8_t>();
      } else if (name == "x") {
        state.cpu.x = value.cast<uint8_t>();
      } else if (name == "y") {
        state.cpu.y = value.cast<uint8_t>();
      } else if (name == "sp") {
        state.cpu.sp = value.cast<uint8_t>();
      } else if (name == "p") {
        state.cpu.p = value.cast<uint8_t>();
      } else {
        throw py::value_error("no CPU register " + name +
                              "; the registers are pc, a, x, y, sp and p");
      }
    }
    console_.set_state(state);
  }

  py::dict EngineCounts() const {
    const nes::EngineCounts& counts = console_.engine_counts();
    py::dict out;
    out["translated"] = counts.translated;
    out["interpreted"] = counts.interpreted;
    out["entries"] = counts.entries;
    return out;
  }

  py::dict TranslationSize() const {
    py::dict out;
    if (console_.translation() == nullptr) return out;
    const nes::Translation::Size size = console_.translation()->size();
    out["blocks"] = size.blocks;
    out["batches"] = size.batches;
    out["code_bytes"] = size.code_bytes;
    out["memory_bytes"] = size.memory_bytes;
    out["seconds"] = size.seconds;
    return out;
  }

  // Scanline and dot at the current CPU cycle, as emulator logs print them.
  std::pair<int, int> BeamPosition() const {
    const nes::State& state = console_.state();
    constexpr int kLine = nes::kDotsPerLine;
    constexpr int kFrame = nes::kDotsPerFrame;
    const int64_t since =
        static_cast<int64_t>(nes::kDotsPerCycle * state.cpu.cycle +
                             nes::kPowerOnDot) -
        static_cast<int64_t>(state.ppu.frame_dot);
    const int dots = static_cast<int>((since + kFrame) % kFrame);
    const int line = dots / kLine + static_cast<int>(nes::kVblankLine);
    return {line % static_cast<int>(nes::kLinesPerFrame), dots % kLine};
  }

 private:
  using Pixels = std::array<uint8_t, nes::kScreenPixels>;

  static nes::Engine Wanted(const std::string& name) {
    const nes::Engine engine =
        name.empty() ? nes::DefaultEngine() : nes::EngineByName(name);
    WarnIfInterpreted(engine);
    return engine;
  }

  void RunFrame(uint8_t buttons, bool draw) {
    console_.RunFrame(buttons, draw ? indices_.data() : nullptr);
    if (draw) has_jumped_ = false;
  }

  /// The last frame drawn. After a jump to another state, which has no picture,
  /// the frame that begins in it, run on another console.
  const Pixels& Picture() {
    if (!has_jumped_) return indices_;
    nes::Console ahead(cartridge_, console_.timing(),
                       nes::Engine::kInterpreter);
    std::vector<std::byte> save(console_.SaveBytes());
    console_.Save(save.data());
    ahead.Load(save);
    ahead.RunFrame(console_.state().pad.buttons[0], indices_.data());
    has_jumped_ = false;
    return indices_;
  }

  std::shared_ptr<const nes::Cartridge> cartridge_;
  nes::Console console_;
  Pixels indices_ = {};
  bool has_jumped_ = false;
};

py::list OpcodeTable() {
  constexpr const char* kModes[] = {"imp",  "acc",  "imm",  "zp",   "zpx",
                                    "zpy",  "abs",  "absx", "absy", "ind",
                                    "indx", "indy", "rel"};
  py::list rows;
  for (const nes::OpcodeInfo& row : nes::kOpcodes) {
    rows.append(py::make_tuple(
        row.operation, kModes[static_cast<size_t>(row.mode)],
        nes::InstructionBytes(row.mode), row.cycles, row.page_penalty));
  }
  return rows;
}

}  // namespace

void BindConsole(py::module_& m) {
  py::class_<PyConsole>(m, "Console")
      .def(py::init<const py::bytes&, const std::string&, const std::string&>(),
           py::arg("rom"), py::arg("timing") = "console",
           py::arg("engine") = "")
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
      .def_property_readonly("beam", &PyConsole::BeamPosition)
      .def_property_readonly(
          "rom_hash",
          [](PyConsole& self) { return self.console().cartridge().hash(); })
      .def("set_engine", &PyConsole::SetEngine, py::arg("name"))
      .def_property_readonly(
          "engine",
          [](PyConsole& self) { return nes::NameOf(self.console().engine()); })
      .def_property_readonly("engine_counts", &PyConsole::EngineCounts)
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
  m.def("opcode_table", &OpcodeTable);
  m.def(
      "nes_cpu_path", [] { return cpu::Name(cpu::Best(nes::simd::kPaths)); },
      "Returns the vector instructions that drawing uses here.");
}
