// `_XxxEnvPool`: a pool as EnvPool's Python uses it, which checks dtypes only
// on the first call, and never lengths and ids. So the native side checks
// everything on every call.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pool/async_pool.h"
#include "python/arguments.h"
#include "python/envpool_protocol.h"
#include "python/xla_pool.h"

namespace envpool_protocol {
namespace {

/// `_XxxEnvPool`: takes and returns NumPy arrays (`_send`: env_id,
/// players.env_id and action, int32 (n,) each; `_recv`: one for each state
/// key), and releases the GIL while it waits.
class PyPool {
 public:
  PyPool(py::object spec, py::handle spec_class) : spec_(std::move(spec)) {
    // py::isinstance does not work: a class that pybind11 gave the metaclass
    // ABCMeta lacks the attribute that ABCMeta's __instancecheck__ reads.
    auto* const type = reinterpret_cast<PyTypeObject*>(spec_class.ptr());
    if (!PyObject_TypeCheck(spec_.ptr(), type)) {
      throw py::type_error("a pool takes the spec class of its own task, got " +
                           Describe(spec_));
    }
    const auto& native = spec_.cast<const PySpec&>();
    task_ = native.task();
    WithoutGil([&] {
      pool_ = std::make_shared<pool::AsyncPool>(native.pool_config(), task_);
    });
    for (const pool::Field& field : pool_->layout().fields()) {
      types_.push_back(NumpyType(field.dtype));
    }
  }
  ~PyPool() {
    if (!pool_) return;
    if (!pool_->InOwnProcess()) {
      static_cast<void>(new std::shared_ptr(pool_));  // see InOwnProcess
      return;
    }
    WithoutGil([&] {
      pool_->Close();  // ends a recv in XLA, which then drops the pool
      port_.reset();
      pool_.reset();
    });
  }
  PyPool(const PyPool&) = delete;
  PyPool& operator=(const PyPool&) = delete;

  py::object spec() const { return spec_; }

  using Runner = pool::AsyncPool::Runner;

  void Send(const py::sequence& arrays) { SendTo(Runner::kWorkers, arrays); }
  void SendTo(Runner runner, const py::sequence& arrays) {
    if (arrays.size() != 3) {
      throw std::invalid_argument(
          "send: give the 3 arrays env_id, players.env_id and action, got " +
          std::to_string(arrays.size()));
    }
    const std::vector<int32_t> ids = ReadInt32(arrays[0], "send: env_id");
    const std::vector<int32_t> players =
        ReadInt32(arrays[1], "send: players.env_id");
    const std::vector<int32_t> actions = ReadInt32(arrays[2], "send: action");
    if (ids != players) {
      throw std::invalid_argument(
          "send: players.env_id must equal env_id, as every env has one "
          "player");
    }
    WithoutGil([&] { pool_->Send(ids, actions, runner); });
  }

  void Reset(py::handle env_ids, const std::optional<py::sequence>& seeds) {
    ResetBy(Runner::kWorkers, env_ids, seeds);
  }
  void ResetBy(Runner runner, py::handle env_ids,
               const std::optional<py::sequence>& seeds) {
    const std::vector<int32_t> ids = ReadIds(env_ids, "reset");
    std::vector<std::optional<uint64_t>> values;
    if (seeds) {
      // Not through py::sequence, which forgets an exception of its __len__.
      for (const py::handle seed : py::iter(*seeds)) {
        values.emplace_back();
        if (!seed.is_none()) values.back() = ReadSeed(seed, "reset");
      }
    }
    WithoutGil([&] { pool_->Reset(ids, values, runner); });
  }

  py::list Recv() {
    std::list<pool::BatchInHand> in_hand;
    for (;;) {
      WithoutGil([&] { in_hand = pool_->BeginRecv(kSignalPeriod); });
      if (!in_hand.empty()) break;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
    try {
      const pool::Batch batch = *in_hand.front().batch;
      py::list arrays = Arrays(batch);
      pool_->FinishRecv(batch);
      return arrays;
    } catch (...) {  // MemoryError: the next call returns the batch
      WithoutGil([&] { pool_->CancelRecv(std::move(in_hand)); });
      throw;
    }
  }

  // A request and its rows in one call. Between the two no exception of a
  // signal handler can come, which would leave rows that no caller expects.
  py::list SendAndRecv(const py::sequence& arrays) {
    SendTo(Runner::kCallerToo, arrays);
    return Answer();
  }
  py::list ResetAndRecv(py::handle env_ids,
                        const std::optional<py::sequence>& seeds) {
    ResetBy(Runner::kCallerToo, env_ids, seeds);
    return Answer();
  }
  py::list RestoreAndRecv(py::handle env_ids, py::handle blobs,
                          const std::string& rng) {
    RestoreBy(Runner::kCallerToo, env_ids, blobs, rng);
    return Answer();
  }

  /// Returns integers as `_send` takes them; an int32 array as it is.
  py::array CheckedIds(py::handle value, const char* call) const {
    return Checked(value, Envs(call));
  }
  py::array CheckedActions(py::handle value, int rows) const {
    return Checked(value,
                   {"send", false, pool_->num_actions(), std::to_string(rows)});
  }

  int outstanding() { return pool_->OutstandingRows(); }
  py::array_t<bool> Ended() {
    py::array_t<bool> ended(pool_->config().num_envs);
    pool_->Ended({ended.mutable_data(), static_cast<size_t>(ended.size())});
    return ended;
  }

  py::array_t<uint8_t> Render(py::handle env_ids, int width, int height,
                              int camera_id) {
    constexpr int kMaxSide = 4096;
    const std::vector<int32_t> ids = ReadIds(env_ids, "render");
    if (width < 0 || width > kMaxSide || height < 0 || height > kMaxSide) {
      throw std::invalid_argument(
          "render: width and height must be 0 (the native size) to " +
          std::to_string(kMaxSide) + ", got " + std::to_string(width) +
          " and " + std::to_string(height));
    }
    if (camera_id != -1 && camera_id != 0) {
      throw std::invalid_argument(
          "render: camera_id must be -1 or 0, as there is one camera, got " +
          std::to_string(camera_id));
    }
    const auto [native_height, native_width] = task_->Picture();
    if (width == 0) width = native_width;
    if (height == 0) height = native_height;
    py::array_t<uint8_t> out({std::ssize(ids), py::ssize_t{height},
                              py::ssize_t{width}, py::ssize_t{3}});
    uint8_t* to = out.mutable_data();
    std::vector<uint8_t> native(size_t(native_height) * size_t(native_width) *
                                3);
    for (size_t i = 0; i < ids.size();) {
      WithoutGil([&] {
        while (i < ids.size() &&
               pool_->Render(ids[i], native.data(), kSignalPeriod)) {
          Scale(native.data(), width, height, to);
          to += size_t(width) * size_t(height) * 3;
          ++i;
        }
      });
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
    return out;
  }

  py::array_t<uint8_t> Snapshot(py::handle env_ids) {
    const std::vector<int32_t> ids = ReadIds(env_ids, "snapshot");
    const auto bytes = static_cast<py::ssize_t>(pool_->SnapshotBytes());
    py::array_t<uint8_t> blobs({std::ssize(ids), bytes});
    auto* to = reinterpret_cast<std::byte*>(blobs.mutable_data());
    WithoutGil([&] { pool_->Snapshot(ids, to); });
    return blobs;
  }

  void Restore(py::handle env_ids, py::handle blobs, const std::string& rng) {
    RestoreBy(Runner::kWorkers, env_ids, blobs, rng);
  }
  void RestoreBy(Runner runner, py::handle env_ids, py::handle blobs,
                 const std::string& rng) {
    const std::vector<int32_t> ids = ReadIds(env_ids, "restore");
    Blobs saved = ReadBlobs(blobs, "restore: blobs");
    if (saved.count != ids.size()) {
      throw std::invalid_argument(
          "restore: got " + std::to_string(ids.size()) + " env ids and " +
          std::to_string(saved.count) + " blobs; give one blob for each env");
    }
    if (rng != "saved" && rng != "keep") {
      throw std::invalid_argument(
          "restore: rng must be 'saved' or 'keep', got '" + rng + "'");
    }
    const pool::RngMode mode =
        rng == "saved" ? pool::RngMode::kSaved : pool::RngMode::kKeep;
    WithoutGil(
        [&] { pool_->Restore(ids, std::move(saved.bytes), mode, runner); });
  }

  void SetStarts(py::handle weights, py::handle snapshots) {
    if (weights.is_none() && snapshots.is_none()) {
      return WithoutGil([&] { pool_->ClearStarts(); });
    }
    const std::vector<double> numbers =
        ReadDoubles(weights, "set_starts: weights");
    Blobs saved;
    if (!snapshots.is_none()) {
      saved = ReadBlobs(snapshots, "set_starts: snapshots");
    }
    WithoutGil([&] {
      pool_->SetStarts(numbers, std::move(saved.bytes), saved.count);
    });
  }

  void SetReplacement(int budget, int every_episodes) {
    WithoutGil([&] { pool_->SetReplacement(budget, every_episodes); });
  }

  int num_stages() const { return pool_->num_stages(); }

  /// Returns the description that envpool.python.xla_template.make_xla takes.
  py::list Xla() {
    pool_->RequireThisProcess();
    if (!port_) port_ = std::make_shared<PoolPort>(pool_);
    return XlaFunctions(port_, pool_->layout().fields(),
                        pool_->config().batch_size);
  }

  py::dict Status() {
    const auto name = [](auto value, const auto& names) {
      return names[static_cast<size_t>(value)];
    };
    constexpr const char* kPhases[] = {"new",     "idle",  "queued",
                                       "running", "ready", "failed"};
    constexpr const char* kActivities[] = {"building", "waiting", "working",
                                           "stopped"};
    pool::PoolStatus status;
    WithoutGil([&] { status = pool_->Status(); });
    py::list envs, workers, replaced;
    for (const pool::EnvStatus& env : status.envs) {
      py::dict entry;
      entry["state"] = name(env.phase, kPhases);
      entry["steps"] = env.steps;
      entry["error"] = env.error;
      envs.append(std::move(entry));
    }
    for (const pool::WorkerStatus& worker : status.workers) {
      py::dict entry;
      entry["state"] = name(worker.activity, kActivities);
      entry["env_id"] = worker.env_id;
      entry["cpu"] = worker.cpu;
      entry["tasks"] = worker.tasks;
      workers.append(std::move(entry));
    }
    for (const pool::Failure& failure : status.replaced) {
      py::dict entry;
      entry["env_id"] = failure.env_id;
      entry["error"] = failure.text;
      replaced.append(std::move(entry));
    }
    py::dict result;
    result["closed"] = status.closed;
    result["outstanding"] = status.outstanding_rows;
    result["slab_growth"] = slab_growth();
    result["envs"] = std::move(envs);
    result["workers"] = std::move(workers);
    result["replaced"] = std::move(replaced);
    for (const auto& [key, text] : task_->Status()) result[key] = text;
    return result;
  }

  std::vector<std::pair<uintptr_t, size_t>> Buffers() const {
    pool_->RequireThisProcess();
    return pool_->slabs().Buffers();
  }
  int slab_growth() const {
    pool_->RequireThisProcess();
    return pool_->slabs().growth();
  }

  void Close() {
    WithoutGil([&] { pool_->Close(); });
  }

 private:
  Numbered Envs(const char* call) const {
    return {call, true, pool_->config().num_envs};
  }
  std::vector<int32_t> ReadIds(py::handle value, const char* call) const {
    return ReadIntegers(value, Envs(call));
  }

  static py::array Checked(py::handle value, const Numbered& numbered) {
    if (py::isinstance<py::array_t<int32_t>>(value)) {
      auto array = py::reinterpret_borrow<py::array>(value);
      if (array.ndim() == 1) return array;
    }
    const std::vector<int32_t> numbers = ReadIntegers(value, numbered);
    return py::array_t<int32_t>(std::ssize(numbers), numbers.data());
  }

  /// Returns the rows of a request that the same call has made. An exception of
  /// a signal handler is thrown once the rows are here, and drops them. An
  /// async pool throws it at once: the next batch may have rows of other
  /// requests, and none is lost.
  py::list Answer() {
    std::optional<py::error_already_set> interrupt;
    for (;;) {
      std::optional<pool::Batch> batch;
      WithoutGil([&] {
        pool_->Help();
        batch = pool_->Recv(kSignalPeriod);
      });
      if (batch && !interrupt) return Arrays(*batch);
      if (batch) throw py::error_already_set(*interrupt);
      if (PyErr_CheckSignals() == 0) continue;
      interrupt.emplace();
      if (!pool_->config().is_sync()) throw py::error_already_set(*interrupt);
    }
  }

  /// Returns observations as views that keep their slab, and all other fields
  /// as copies.
  py::list Arrays(const pool::Batch& batch) const {
    const std::vector<pool::Field>& fields = pool_->layout().fields();
    py::list arrays(fields.size());
    for (size_t i = 0; i < fields.size(); ++i) {
      std::vector<py::ssize_t> shape{batch.rows()};
      shape.insert(shape.end(), fields[i].shape.begin(), fields[i].shape.end());
      if (!fields[i].bulk) {
        py::array copy(types_[i], std::move(shape));
        batch.Copy(i, copy.mutable_data());
        arrays[i] = std::move(copy);
        continue;
      }
      using Lease = std::shared_ptr<pool::Slab>;
      auto lease = std::make_unique<Lease>(batch.slab());
      const py::capsule owner(
          lease.get(), [](void* held) { delete static_cast<Lease*>(held); });
      static_cast<void>(lease.release());  // the capsule owns it now
      arrays[i] = py::array(types_[i], std::move(shape), batch.Bulk(i), owner);
    }
    return arrays;
  }

  void Scale(const uint8_t* native, int width, int height, uint8_t* to) const {
    const auto [native_height, native_width] = task_->Picture();
    for (int y = 0; y < height; ++y) {
      const uint8_t* row =
          native + size_t(y * native_height / height) * native_width * 3;
      for (int x = 0; x < width; ++x, to += 3) {
        std::memcpy(to, row + size_t(x * native_width / width) * 3, 3);
      }
    }
  }

  py::object spec_;
  std::shared_ptr<const pool::Task> task_;
  std::shared_ptr<pool::AsyncPool> pool_;
  std::shared_ptr<xla_port::Port> port_;  // set once xla() has been called
  std::vector<py::dtype> types_;
};

}  // namespace

void Bind(py::module_& module, const Binding& binding) {
  const py::object spec_class = BindSpec(module, binding);
  py::class_<PyPool> cls(
      module, binding.pool_name, py::module_local(),
      py::metaclass(py::module_::import("abc").attr("ABCMeta")));
  cls.def(py::init([spec_class](py::object spec) {
            return std::make_unique<PyPool>(std::move(spec), spec_class);
          }),
          py::arg("spec"))
      .def_property_readonly("_spec", &PyPool::spec)
      .def("_reset", &PyPool::Reset, py::arg("env_ids"),
           py::arg("seeds") = py::none())
      .def("_send", &PyPool::Send, py::arg("arrays"))
      .def("_recv", &PyPool::Recv)
      .def("_send_and_recv", &PyPool::SendAndRecv, py::arg("arrays"))
      .def("_reset_and_recv", &PyPool::ResetAndRecv, py::arg("env_ids"),
           py::arg("seeds") = py::none())
      .def("_restore_and_recv", &PyPool::RestoreAndRecv, py::arg("env_ids"),
           py::arg("blobs"), py::arg("rng") = "saved")
      .def("_checked_ids", &PyPool::CheckedIds, py::arg("env_ids"),
           py::arg("call") = "send")
      .def("_checked_actions", &PyPool::CheckedActions, py::arg("actions"),
           py::arg("rows"))
      .def_property_readonly("_outstanding", &PyPool::outstanding)
      .def_property_readonly("_ended", &PyPool::Ended)
      .def("_render", &PyPool::Render, py::arg("env_ids"), py::arg("width"),
           py::arg("height"), py::arg("camera_id"))
      .def("_xla", &PyPool::Xla)
      .def("_close", &PyPool::Close)
      .def_property_readonly("_buffers", &PyPool::Buffers)
      .def_property_readonly("slab_growth", &PyPool::slab_growth,
                             "Slabs allocated since construction.")
      .def("status", &PyPool::Status,
           "Returns what each env and each worker is doing, as a dict.")
      .def("snapshot", &PyPool::Snapshot, py::arg("env_ids"),
           "Returns exact states of envs without an outstanding request, uint8 "
           "(n, bytes).")
      .def("restore", &PyPool::Restore, py::arg("env_ids"), py::arg("blobs"),
           py::arg("rng") = "saved",
           "Restores snapshots; recv returns the rows, as after a reset.")
      .def_property_readonly(
          "num_stages", &PyPool::num_stages,
          "Number of stages of the options: the first weights of set_starts.")
      .def("set_starts", &PyPool::SetStarts, py::arg("weights"),
           py::arg("snapshots") = py::none(),
           "From the next resets on, draws where each episode begins. weights: "
           "float (num_stages + n,), of the stages and of n snapshots; None: "
           "the options decide.")
      .def(
          "set_replacement", &PyPool::SetReplacement, py::arg("budget"),
          py::arg("every_episodes") = 0,
          "Lets up to budget envs that raise an exception be replaced; 0: the "
          "first exception closes the pool. The replacement begins at the last "
          "start of an episode that the env kept, one of every_episodes (0: at "
          "a start as after a reset). status()['replaced'] lists "
          "replacements.");
  cls.attr("_state_keys") = spec_class.attr("_state_keys");
  cls.attr("_action_keys") = spec_class.attr("_action_keys");
}

}  // namespace envpool_protocol
