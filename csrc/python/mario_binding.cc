// _MarioEnvSpec and _MarioEnvPool: Super Mario Bros. as an EnvPool task. The
// ROM's bytes come from mario_envpool.rom, which finds the files.
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "mario/config.h"
#include "mario/env.h"
#include "nes/translation.h"
#include "python/envpool_pool.h"
#include "python/rom.h"

template <>
struct envpool_protocol::EnvTraits<mario::Env> {
  using Config = mario::Config;

  static std::shared_ptr<const mario::Env::Shared> MakeShared(Config config) {
    const bool is_lost_levels = config.rom.starts_with("lost-levels");
    if (is_lost_levels != config.lost_levels) {
      throw std::invalid_argument(
          "rom='" + config.rom + "' does not go with lost_levels=" +
          (config.lost_levels ? "True" : "False") +
          "; use a task id of the game that you want to play");
    }
    const auto image = pybind11::module_::import("mario_envpool.rom")
                           .attr("load")(config.rom, config.rom_path)
                           .cast<std::string>();
    auto shared = std::make_shared<const mario::Env::Shared>(std::move(config),
                                                             ParseRom(image));
    WarnIfInterpreted(shared->engine());
    return shared;
  }

  static void AddStatus(const mario::Env::Shared& shared,
                        pybind11::dict& status) {
    const std::string& problem = shared.engine_problem();
    status["engine"] = nes::NameOf(problem.empty() ? shared.engine()
                                                   : nes::Engine::kInterpreter);
    status["engine_problem"] = problem;
  }
};

namespace {

namespace py = pybind11;

/// Returns snapshots for pools of `spec`, with any options: new episodes that
/// begin where saved consoles stand after some frames. Without any, an episode
/// begins at the save itself; under nes_py two idle frames after it.
py::array_t<uint8_t> StartSnapshots(
    const envpool_protocol::PySpec<mario::Env>& spec,
    const std::vector<py::bytes>& saves,
    const std::vector<py::bytes>& buttons) {
  if (saves.size() != buttons.size()) {
    throw std::invalid_argument(
        "give one movie of buttons for each save, got " +
        std::to_string(buttons.size()) + " for " +
        std::to_string(saves.size()));
  }
  mario::Env::Scratch scratch(*spec.shared());
  mario::Env env(spec.shared(), 0, 0);
  pool::SnapshotHeader header;
  header.max_episode_steps = spec.pool_config().max_episode_steps;
  const size_t bytes = sizeof(header) + env.SnapshotBytes();
  py::array_t<uint8_t> blobs(
      {std::ssize(saves), static_cast<py::ssize_t>(bytes)});
  auto* out = reinterpret_cast<std::byte*>(blobs.mutable_data());
  for (size_t i = 0; i < saves.size(); ++i, out += bytes) {
    const auto save = std::as_bytes(std::span(std::string_view(saves[i])));
    std::string_view movie(buttons[i]);
    if (movie.empty() && spec.shared()->timing() == nes::Timing::kConsole) {
      env.ResetToConsole(save, scratch);
    } else {
      if (movie.empty()) movie = std::string_view("\0\0", 2);
      env.ResetToConsoleSave(
          save, {reinterpret_cast<const uint8_t*>(movie.data()), movie.size()},
          scratch);
    }
    env.Snapshot(out + sizeof(header));
    pool::WriteSnapshotHeader(header, env.SnapshotBytes(), out);
  }
  return blobs;
}

}  // namespace

void BindMario(py::module_& module) {
  envpool_protocol::Bind<mario::Env>(module, "_MarioEnvSpec", "_MarioEnvPool");
  module.def(
      "start_snapshots", &StartSnapshots, py::arg("spec"), py::arg("saves"),
      py::arg("buttons"),
      "Returns snapshots, uint8 (n, bytes), of episodes that begin where n "
      "console saves stand after the buttons of 2 or more frames, or none.");
}
