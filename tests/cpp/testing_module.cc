// mario_envpool._testing, for tests and benches only: the pool and the protocol
// with an environment whose results are known in advance (_CountingEnvSpec and
// _CountingEnvPool), and a bare 6502 (FlatCpu).
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "counting_env.h"
#include "flat_bus.h"
#include "python/envpool_pool.h"

namespace py = pybind11;

template <>
struct envpool_protocol::EnvTraits<pool::CountingEnv> {
  using Config = pool::CountingConfig;

  static std::shared_ptr<const pool::CountingEnv::Shared> MakeShared(
      Config config) {
    return std::make_shared<const pool::CountingEnv::Shared>(std::move(config));
  }

  static void AddStatus(const pool::CountingEnv::Shared&, py::dict&) {}
};

namespace {

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

}  // namespace

PYBIND11_MODULE(_testing, module) {
  envpool_protocol::Bind<pool::CountingEnv>(module, "_CountingEnvSpec",
                                            "_CountingEnvPool");
  py::class_<FlatCpu>(module, "FlatCpu")
      .def(py::init<>())
      .def_property_readonly("memory",
                             [](const py::object& self) {
                               return self.cast<FlatCpu&>().Memory(self);
                             })
      .def("step", &FlatCpu::Step);
}
