// _MarioEnvSpec and _MarioEnvPool: Super Mario Bros. as an EnvPool task. The
// ROM's bytes come from mario_envpool.rom, which knows where to look for them.
#include <string>

#include "mario/config.h"
#include "mario/env.h"
#include "nes/cartridge.h"
#include "python/envpool_protocol.h"

template <>
struct envpool_protocol::EnvTraits<mario::Env> {
  using Config = mario::Config;

  static std::shared_ptr<const mario::Env::Shared> MakeShared(Config config) {
    const auto image = pybind11::module_::import("mario_envpool.rom")
                           .attr("load")(config.rom, config.rom_path)
                           .cast<std::string>();
    auto cartridge = nes::Cartridge::Parse(
        {reinterpret_cast<const uint8_t*>(image.data()), image.size()});
    return std::make_shared<const mario::Env::Shared>(std::move(config),
                                                      std::move(cartridge));
  }
};

void BindMario(pybind11::module_& module) {
  envpool_protocol::Bind<mario::Env>(module, "_MarioEnvSpec", "_MarioEnvPool");
}
