// EnvPool 1.2's native class contract: the two classes that envpool's Python
// (envpool.python.api.py_env) subclasses, for any task of pool/spec.h. The
// installed EnvPool is the reference: tests/pool/test_envpool_contract.py
// compares these classes with its CartPole. Additions to the contract are
// snapshots, starts and status.
#pragma once

#include <pybind11/pybind11.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "pool/pool_config.h"
#include "pool/spec.h"

namespace envpool_protocol {

namespace py = pybind11;

/// The options of a task, at their defaults until they are written, and the
/// task that they make.
class TaskOptions {
 public:
  virtual ~TaskOptions() = default;
  virtual std::vector<pool::Option> Options() = 0;
  virtual std::shared_ptr<const pool::Task> MakeTask() const = 0;
};

/// The two classes of a task. Names start with "_", and the pool's has
/// "EnvPool".
struct Binding {
  const char* spec_name;
  const char* pool_name;
  std::unique_ptr<TaskOptions> (*make_options)();
  /// The task's fields under default options: EnvPool needs their names as
  /// class attributes, before any task exists.
  std::vector<std::string> field_names;
};

/// `_XxxEnvSpec`: a checked configuration, and the properties derived from it.
class PySpec {
 public:
  /// The defaults, unchecked and without a task.
  explicit PySpec(std::unique_ptr<TaskOptions> options)
      : task_options_(std::move(options)) {}
  PySpec(std::unique_ptr<TaskOptions> options, const py::tuple& values);

  std::vector<pool::Option> Options();
  py::tuple ConfigValues();
  /// The state keys of this configuration, which may have several "obs:" keys.
  py::list OwnStateKeys() const;
  py::tuple StateSpec() const;
  py::tuple ActionSpec() const;

  const pool::PoolConfig& pool_config() const { return pool_config_; }
  const std::shared_ptr<const pool::Task>& task() const { return task_; }

 private:
  pool::PoolConfig pool_config_;
  std::unique_ptr<TaskOptions> task_options_;
  double reward_threshold_ = std::numeric_limits<double>::infinity();
  std::shared_ptr<const pool::Task> task_;
};

/// Adds `_XxxEnvSpec`, and returns it.
py::object BindSpec(py::module_& module, const Binding& binding);
/// Adds both classes.
void Bind(py::module_& module, const Binding& binding);

}  // namespace envpool_protocol
