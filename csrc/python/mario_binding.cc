// _MarioEnvSpec and _MarioEnvPool: Super Mario Bros. as an EnvPool task. The
// ROM's bytes come from mario_envpool.rom, which knows where to look for them.
#include <stdexcept>
#include <string>

#include "mario/config.h"
#include "mario/env.h"
#include "nes/cartridge.h"
#include "python/envpool_protocol.h"

template <>
struct envpool_protocol::EnvTraits<mario::Env> {
  using Config = mario::Config;

  static std::shared_ptr<const mario::Env::Shared> MakeShared(Config config) {
    const bool is_lost_levels = config.rom.starts_with("lost-levels");
    if (is_lost_levels != config.lost_levels) {
      throw std::invalid_argument(
          "rom='" + config.rom + "' does not go with lost_levels=" +
          (config.lost_levels ? "True" : "False") +
          "; take a task id of the game that you want to play");
    }
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
