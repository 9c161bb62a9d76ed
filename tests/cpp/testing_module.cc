// mario_envpool._testing, for tests and benches only: the pool and the protocol
// with an environment whose results are known in advance (_CountingEnvSpec and
// _CountingEnvPool), a bare 6502 (FlatCpu), a Console that checks its
// translated code (CheckedConsole), the table of opcodes, and one frame of
// preprocessing on a chosen code path.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "checked_console.h"
#include "counting_env.h"
#include "cpu/path.h"
#include "flat_bus.h"
#include "nes/opcodes.h"
#include "preprocess/frame.h"
#include "python/console_binding.h"
#include "python/envpool_protocol.h"

namespace {

class CountingOptions final : public envpool_protocol::TaskOptions {
 public:
  std::vector<pool::Option> Options() override { return config_.Options(); }
  std::shared_ptr<const pool::Task> MakeTask() const override {
    return std::make_shared<const pool::CountingEnv::Shared>(config_);
  }

 private:
  pool::CountingConfig config_;
};

/// A CPU with the flat memory of the single-step test vectors.
class FlatCpu {
 public:
  py::array_t<uint8_t> Memory(const py::object& self) {
    return py::array_t<uint8_t>({65536}, {1}, bus_.memory.data(), self);
  }

  // Executes one instruction; returns the new registers and the cycles.
  py::tuple Step(uint16_t pc, uint8_t a, uint8_t x, uint8_t y, uint8_t sp,
                 uint8_t p) {
    nes::CpuState cpu = {};
    cpu.pc = pc;
    cpu.a = a;
    cpu.x = x;
    cpu.y = y;
    cpu.sp = sp;
    cpu.p = p;
    bus_.limit_cycle = 1;
    nes::RunOneInstruction(&cpu, bus_);
    return py::make_tuple(cpu.pc, cpu.a, cpu.x, cpu.y, cpu.sp, cpu.p,
                          cpu.cycle);
  }

 private:
  nes::FlatBus bus_;
};

class PyCheckedConsole : public PyConsole {
 public:
  PyCheckedConsole(const py::bytes& rom, const std::string& timing, bool checks)
      : PyConsole(std::make_unique<nes::CheckedConsole>(
            ParseRom(rom), nes::TimingByName(timing))),
        checked_(static_cast<nes::CheckedConsole&>(console())) {
    checked_.set_checks(checks);
  }
  uint64_t runs() const { return checked_.translated_runs(); }
  double share() const { return checked_.translated_share(); }

 private:
  nes::CheckedConsole& checked_;
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

}  // namespace

PYBIND11_MODULE(_testing, module) {
  envpool_protocol::Bind(
      module,
      {.spec_name = "_CountingEnvSpec",
       .pool_name = "_CountingEnvPool",
       .make_options = []() -> std::unique_ptr<envpool_protocol::TaskOptions> {
         return std::make_unique<CountingOptions>();
       },
       .field_names = pool::CountingEnv::FieldNames()});
  py::module_::import("mario_envpool._core");  // has the base class
  py::class_<PyCheckedConsole, PyConsole>(module, "CheckedConsole")
      .def(py::init<const py::bytes&, const std::string&, bool>(),
           py::arg("rom"), py::arg("timing") = "console",
           py::arg("checks") = true)
      .def_property_readonly("translated_runs", &PyCheckedConsole::runs)
      .def_property_readonly("translated_share", &PyCheckedConsole::share);
  module.def("opcode_table", &OpcodeTable);
  module.def("preprocess_frame", &MakeFrame, py::arg("indices"),
             py::arg("previous") = py::none(), py::arg("height") = 84,
             py::arg("width") = 84, py::arg("gray") = true,
             py::arg("area") = true, py::arg("hud") = "keep",
             py::arg("path") = "");
  module.def("preprocess_paths", &Paths);
  py::class_<FlatCpu>(module, "FlatCpu")
      .def(py::init<>())
      .def_property_readonly("memory",
                             [](const py::object& self) {
                               return self.cast<FlatCpu&>().Memory(self);
                             })
      .def("step", &FlatCpu::Step);
}
