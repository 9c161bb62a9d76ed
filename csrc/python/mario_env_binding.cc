// One mario::Env without a pool, for tests and tools: it steps in the caller's
// thread and lets work RAM be read and written between steps.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mario/env.h"
#include "python/arguments.h"

namespace py = pybind11;

namespace {

mario::Config ConfigFromDict(const py::dict& options) {
  mario::Config config;
  size_t used = 0;
  config.Visit([&](const char* name, auto& member, const char*) {
    if (!options.contains(name)) return;
    envpool_protocol::ReadOption(name, options[name], &member);
    ++used;
  });
  if (used != options.size()) {
    for (const auto& item : options) {
      bool known = false;
      config.Visit([&](const char* name, auto&, const char*) {
        known = known || item.first.cast<std::string>() == name;
      });
      if (!known) {
        throw std::invalid_argument("unknown option '" +
                                    item.first.cast<std::string>() + "'");
      }
    }
  }
  return config;
}

std::shared_ptr<const mario::Env::Shared> MakeShared(const py::bytes& rom,
                                                     const py::dict& options) {
  const std::string image = rom;
  return std::make_shared<const mario::Env::Shared>(
      ConfigFromDict(options),
      nes::Cartridge::Parse(
          {reinterpret_cast<const uint8_t*>(image.data()), image.size()}));
}

class SingleEnv {
 public:
  SingleEnv(const py::bytes& rom, const py::dict& options, int env_id,
            uint64_t seed)
      : shared_(MakeShared(rom, options)),
        fields_(mario::Env::Fields(*shared_)),
        scratch_(*shared_),
        env_(shared_, env_id, seed) {}

  py::dict Reset(std::optional<uint64_t> seed) {
    if (seed) env_.Seed(*seed);
    env_.Reset(scratch_);
    return Read();
  }

  /// (reward, terminated, truncated, fields)
  py::tuple Step(int action) {
    RequireAction(action);
    const pool::Outcome outcome = env_.Step(action, scratch_);
    return py::make_tuple(outcome.reward, outcome.terminated, outcome.truncated,
                          Read());
  }

  /// (frames, reward, terminated, truncated, fields): a step with the picture
  /// of each frame it ran, (n, 240, 256, 3) RGB; skipped waits have none.
  py::tuple Film(int action) {
    RequireAction(action);
    std::vector<uint8_t> film;
    pool::Outcome outcome;
    {
      const py::gil_scoped_release release;
      const Filming filming(scratch_, &film);
      outcome = env_.Step(action, scratch_);
    }
    py::array_t<uint8_t> frames(
        {static_cast<py::ssize_t>(film.size() / nes::kScreenPixels),
         static_cast<py::ssize_t>(mario::Env::kRenderHeight),
         static_cast<py::ssize_t>(mario::Env::kRenderWidth),
         static_cast<py::ssize_t>(3)});
    mario::Env::ToRgb(film.data(), film.size(), frames.mutable_data());
    return py::make_tuple(frames, outcome.reward, outcome.terminated,
                          outcome.truncated, Read());
  }

  /// Every field of the last result by name, "obs" included.
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

  /// Steps and resets without leaving native code, for timing.
  void StepMany(const std::vector<int>& actions) {
    for (const int action : actions) {
      RequireAction(action);
      const pool::Outcome outcome = env_.Step(action, scratch_);
      if (outcome.terminated || outcome.truncated) env_.Reset(scratch_);
    }
  }

  py::bytes Snapshot() const {
    std::string blob(env_.SnapshotBytes(), '\0');
    env_.Snapshot(reinterpret_cast<std::byte*>(blob.data()));
    return py::bytes(blob);
  }

  py::dict Restore(const py::bytes& bytes, bool keep_rng) {
    const std::string blob = bytes;
    if (blob.size() != env_.SnapshotBytes()) {
      throw std::invalid_argument("a snapshot here has " +
                                  std::to_string(env_.SnapshotBytes()) +
                                  " bytes, not " + std::to_string(blob.size()));
    }
    env_.Restore(reinterpret_cast<const std::byte*>(blob.data()),
                 keep_rng ? pool::RngMode::kKeep : pool::RngMode::kSaved,
                 scratch_);
    return Read();
  }

  /// Puts a bare console's complete save (Console.save) into this game.
  void LoadConsole(const py::bytes& save) {
    const std::string blob = save;
    env_.game().console().Load(
        {reinterpret_cast<const std::byte*>(blob.data()), blob.size()});
  }

  py::array_t<uint8_t> Render() {
    py::array_t<uint8_t> picture(
        {mario::Env::kRenderHeight, mario::Env::kRenderWidth, 3});
    env_.Render(scratch_, picture.mutable_data());
    return picture;
  }

  uint8_t* ram() { return env_.game().console().ram(); }
  int num_actions() const { return mario::Env::NumActions(*shared_); }
  uint64_t frames() { return env_.game().frames(); }
  std::vector<int> buttons() const {
    return {shared_->buttons().begin(), shared_->buttons().end()};
  }

 private:
  /// Films as long as it lives; a step may throw.
  struct Filming {
    Filming(mario::Env::Scratch& scratch, std::vector<uint8_t>* film)
        : scratch(scratch) {
      scratch.film = film;
    }
    ~Filming() { scratch.film = nullptr; }
    mario::Env::Scratch& scratch;
  };

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
};

}  // namespace

void BindMarioEnv(py::module_& module) {
  py::class_<SingleEnv>(module, "_MarioEnv")
      .def(py::init<const py::bytes&, const py::dict&, int, uint64_t>(),
           py::arg("rom"), py::arg("options") = py::dict(),
           py::arg("env_id") = 0, py::arg("seed") = 0)
      .def("reset", &SingleEnv::Reset, py::arg("seed") = py::none())
      .def("step", &SingleEnv::Step, py::arg("action"))
      .def("film", &SingleEnv::Film, py::arg("action"))
      .def("step_many", &SingleEnv::StepMany, py::arg("actions"))
      .def("snapshot", &SingleEnv::Snapshot)
      .def("restore", &SingleEnv::Restore, py::arg("blob"),
           py::arg("keep_rng") = false)
      .def("load_console", &SingleEnv::LoadConsole, py::arg("save"))
      .def("render", &SingleEnv::Render)
      .def_property_readonly("num_actions", &SingleEnv::num_actions)
      .def_property_readonly("buttons", &SingleEnv::buttons)
      .def_property_readonly("frames", &SingleEnv::frames)
      .def_property_readonly("ram", [](py::object self) {
        // A live view: writes change the game.
        return py::array_t<uint8_t>({2048}, {1}, self.cast<SingleEnv&>().ram(),
                                    self);
      });
}
