// One mario::Env without a pool, for films, tools and tests. It steps in the
// caller's thread, and callers can read and write work RAM between steps.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mario/env.h"
#include "python/arguments.h"
#include "python/rom.h"

namespace py = pybind11;

namespace {

mario::Config ConfigFromDict(const py::dict& options) {
  mario::Config config;
  const py::dict unknown = options.attr("copy")();
  for (const pool::Option& option : config.Options()) {
    if (!options.contains(option.name)) continue;
    envpool_protocol::ReadOption(options[option.name], option);
    unknown.attr("pop")(option.name);
  }
  for (const auto& item : unknown) {
    throw std::invalid_argument("unknown option '" +
                                item.first.cast<std::string>() + "'");
  }
  return config;
}

std::shared_ptr<const mario::Env::Shared> MakeShared(const py::bytes& rom,
                                                     const py::dict& options) {
  auto shared = std::make_shared<const mario::Env::Shared>(
      ConfigFromDict(options), ParseRom(rom));
  WarnIfInterpreted(shared->engine());
  return shared;
}

/// Does not release the GIL, so that threads that share an environment take
/// turns, and none sees work RAM in the middle of a frame. A step with its
/// pictures takes less than 0.1 ms.
class SingleEnv {
 public:
  SingleEnv(const py::bytes& rom, const py::dict& options, int env_id,
            py::handle seed)
      : shared_(MakeShared(rom, options)),
        fields_(shared_->Fields()),
        scratch_(*shared_),
        env_(shared_, env_id, CheckedSeed(seed)) {}

  /// `stage` is an index of the option `stages`; without it the options choose.
  py::dict Reset(py::handle seed, std::optional<int> stage) {
    if (!seed.is_none()) env_.Seed(CheckedSeed(seed));
    if (stage) {
      RequireStage(*stage);
      env_.ResetToStage(*stage, scratch_);
    } else {
      env_.Reset(scratch_);
    }
    Moved();
    return Read();
  }

  /// Begins an episode as Reset does, and keeps the buttons of all frames from
  /// power-on, start screen and skipped waits included.
  py::dict ResetAndRecord() {
    const mario::Config& config = shared_->config();
    if (shared_->NumStages() != 1 || config.noop_max != 0 ||
        !config.noops.empty() || config.rng_frames_max != 0) {
      throw std::invalid_argument(
          "a movie covers one level or the whole game, without idle frames; "
          "give at most one entry in stages, noop_max=0, no noops and "
          "rng_frames_max=0");
    }
    movie_ = shared_->start(0, 0).movie;
    env_.game().set_movie(&*movie_);
    env_.ResetToStage(0, scratch_);
    Moved();
    return Read();
  }

  /// The buttons that ResetAndRecord keeps, one byte per frame.
  py::bytes Movie() const {
    if (!movie_)
      throw std::runtime_error(
          "there is no movie yet; call reset_and_record first");
    return {reinterpret_cast<const char*>(movie_->data()), movie_->size()};
  }

  /// Returns (reward, terminated, truncated, fields). Without `skip_waits` the
  /// step ends before the waits that follow it; SkipWaits runs through them.
  py::tuple Step(int action, bool skip_waits) {
    const pool::Outcome outcome = Run(action, nullptr, skip_waits);
    return py::make_tuple(outcome.reward, outcome.terminated, outcome.truncated,
                          Read());
  }

  void SkipWaits() { env_.SkipWaits(); }

  /// The position and the clock from which the next classic reward is counted.
  int x_last() { return env_.counter().x_last; }
  void set_x_last(int x) { SetLast(&env_.counter().x_last, x); }
  int time_last() { return env_.counter().time_last; }
  void set_time_last(int time) { SetLast(&env_.counter().time_last, time); }

  /// Runs one frame outside the task: no reward, no end, no info.
  void RunFrame(int buttons) {
    if (buttons < 0 || buttons > 255) {
      throw std::out_of_range("buttons=" + std::to_string(buttons) +
                              " is not a byte; give 0 to 255");
    }
    env_.game().RunFrame(static_cast<uint8_t>(buttons), nullptr);
  }

  /// Returns (frames, reward, terminated, truncated, fields): a step with the
  /// picture of each frame that it ran, (n, 240, 256, 3) RGB, without skipped
  /// waits.
  py::tuple Film(int action) {
    std::vector<uint8_t> film;
    const pool::Outcome outcome = Run(action, &film);
    py::array_t<uint8_t> frames(
        {static_cast<py::ssize_t>(film.size() / nes::kScreenPixels),
         static_cast<py::ssize_t>(nes::kScreenHeight),
         static_cast<py::ssize_t>(nes::kScreenWidth),
         static_cast<py::ssize_t>(3)});
    mario::Env::ToRgb(film.data(), film.size(), frames.mutable_data());
    return py::make_tuple(frames, outcome.reward, outcome.terminated,
                          outcome.truncated, Read());
  }

  /// Returns every field of the last result by name, "obs" included.
  py::dict Read() const {
    py::dict result;
    std::vector<std::byte*> rows;
    for (const pool::Field& field : fields_) {
      py::array array(
          envpool_protocol::NumpyType(field.dtype),
          std::vector<py::ssize_t>(field.shape.begin(), field.shape.end()));
      rows.push_back(static_cast<std::byte*>(array.mutable_data()));
      result[py::str(field.name)] = array;
    }
    env_.Write(pool::Row{rows.data()});
    return result;
  }

  py::bytes Snapshot() const {
    std::string blob(env_.SnapshotBytes(), '\0');
    env_.Snapshot(reinterpret_cast<std::byte*>(blob.data()));
    return py::bytes(blob);
  }

  py::dict Restore(const py::bytes& bytes, bool keep_rng) {
    const std::string blob = bytes;
    const auto from = std::as_bytes(std::span(blob));
    shared_->CheckSnapshot(from);
    env_.Restore(from.data(),
                 keep_rng ? pool::RngMode::kKeep : pool::RngMode::kSaved);
    Moved();
    return Read();
  }

  /// Begins an episode where the save of a bare console (Console.save) stands.
  py::dict LoadConsole(const py::bytes& save) {
    const std::string_view blob(save);
    env_.ResetToConsole(std::as_bytes(std::span(blob)), scratch_);
    Moved();
    return Read();
  }

  /// Returns a complete save of this game, as Console.save does.
  py::bytes SaveConsole() {
    const nes::Console& console = env_.game().console();
    std::string save(console.SaveBytes(), '\0');
    console.Save(reinterpret_cast<std::byte*>(save.data()));
    return py::bytes(save);
  }

  /// Returns the picture of the last frame; after a step it is drawn already.
  py::array_t<uint8_t> Render() {
    py::array_t<uint8_t> picture({nes::kScreenHeight, nes::kScreenWidth, 3});
    const uint64_t frame = env_.game().frames();
    if (observed_ == frame) {
      mario::Env::ToRgb(scratch_.pixels[frame & 1].data(), nes::kScreenPixels,
                        picture.mutable_data());
    } else {
      env_.Render(scratch_, picture.mutable_data());
    }
    return picture;
  }

  uint8_t* ram() { return env_.game().console().ram(); }
  /// Returns a copy of work RAM at the moment at which the last info was read.
  py::array_t<uint8_t> InfoRam() const {
    return py::array_t<uint8_t>(static_cast<py::ssize_t>(info_ram_.size()),
                                info_ram_.data());
  }
  int num_actions() const { return shared_->NumActions(); }
  uint64_t frames() { return env_.game().frames(); }
  std::vector<int> buttons() const {
    return {shared_->buttons().begin(), shared_->buttons().end()};
  }

 private:
  pool::Outcome Run(int action, std::vector<uint8_t>* film = nullptr,
                    bool skip_waits = true) {
    RequireAction(action);
    const pool::Outcome outcome = env_.StepForViewer(
        action, scratch_, info_ram_.data(), film, skip_waits);
    if (shared_->observation().pictures() > 0) {
      observed_ = env_.game().frames();
    }
    return outcome;
  }

  /// To be called after a jump to another state, which has no picture yet.
  void Moved() {
    observed_.reset();
    std::memcpy(info_ram_.data(), ram(), info_ram_.size());
  }

  void SetLast(int32_t* last, int value) {
    const int32_t before = std::exchange(*last, value);
    if (env_.counter().IsPlausible()) return;
    *last = before;
    throw std::invalid_argument(std::to_string(value) +
                                " is not a position or a clock of the game");
  }

  uint64_t CheckedSeed(py::handle given) const {
    const uint64_t seed = envpool_protocol::ReadSeed(given, "_MarioEnv");
    const uint64_t max_seed = shared_->MaxSeed();
    if (seed <= max_seed) return seed;
    throw std::invalid_argument("seed=" + std::to_string(seed) +
                                " is outside 0 to " + std::to_string(max_seed));
  }

  void RequireStage(int stage) const {
    const int count = shared_->NumStages();
    if (stage >= 0 && stage < count) return;
    throw std::out_of_range("stage=" + std::to_string(stage) +
                            " is outside 0 to " + std::to_string(count - 1));
  }

  void RequireAction(int action) const {
    if (action >= 0 && action < num_actions()) return;
    throw std::out_of_range("action " + std::to_string(action) +
                            " is outside 0 to " +
                            std::to_string(num_actions() - 1));
  }

  std::shared_ptr<const mario::Env::Shared> shared_;
  std::vector<pool::Field> fields_;
  mario::Env::Scratch scratch_;
  mario::Env env_;
  std::array<uint8_t, nes::kRamBytes> info_ram_{};
  std::optional<std::vector<uint8_t>> movie_;
  std::optional<uint64_t> observed_;  // the frame in the scratch pictures
};

}  // namespace

void BindMarioEnv(py::module_& module) {
  py::class_<SingleEnv>(module, "_MarioEnv")
      .def(py::init<const py::bytes&, const py::dict&, int, py::handle>(),
           py::arg("rom"), py::arg("options") = py::dict(),
           py::arg("env_id") = 0, py::arg("seed") = 0)
      .def("reset", &SingleEnv::Reset, py::arg("seed") = py::none(),
           py::arg("stage") = py::none())
      .def("reset_and_record", &SingleEnv::ResetAndRecord)
      .def_property_readonly("movie", &SingleEnv::Movie)
      .def("step", &SingleEnv::Step, py::arg("action"),
           py::arg("skip_waits") = true)
      .def("skip_waits", &SingleEnv::SkipWaits)
      .def_property("x_last", &SingleEnv::x_last, &SingleEnv::set_x_last)
      .def_property("time_last", &SingleEnv::time_last,
                    &SingleEnv::set_time_last)
      .def("advance", &SingleEnv::RunFrame, py::arg("buttons"))
      .def("read", &SingleEnv::Read)
      .def("info_ram", &SingleEnv::InfoRam)
      .def("film", &SingleEnv::Film, py::arg("action"))
      .def("snapshot", &SingleEnv::Snapshot)
      .def("restore", &SingleEnv::Restore, py::arg("blob"),
           py::arg("keep_rng") = false)
      .def("load_console", &SingleEnv::LoadConsole, py::arg("save"))
      .def("save_console", &SingleEnv::SaveConsole)
      .def("render", &SingleEnv::Render)
      .def_property_readonly("num_actions", &SingleEnv::num_actions)
      .def_property_readonly("buttons", &SingleEnv::buttons)
      .def_property_readonly("frames", &SingleEnv::frames)
      .def_property_readonly("ram", [](py::object self) {
        // The array is a live view: writes change the game.
        return py::array_t<uint8_t>({nes::kRamBytes}, {1},
                                    self.cast<SingleEnv&>().ram(), self);
      });
}
