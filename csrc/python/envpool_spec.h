// `_XxxEnvSpec` of EnvPool's native class contract (envpool_pool.h): a
// checked configuration, and the names, shapes and bounds that follow from it.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "pool/async_pool.h"
#include "python/arguments.h"

namespace envpool_protocol {

/// A binding specialises these traits for its environment `Env`:
///   using Config = ...;   default constructible, with Visit(visit) that calls
///                         visit("name", member, "help") for each option
///   static std::shared_ptr<const typename Env::Shared> MakeShared(Config);
///   static void AddStatus(const typename Env::Shared&, py::dict& status);
///                         adds the environment's entries to a pool's status
template <class Env>
struct EnvTraits;

/// One entry of `_state_spec` or `_action_spec`: dtype, shape (-1 leads what
/// EnvPool counts per player), bounds, elementwise bounds (unused), discrete.
inline py::tuple ArraySpec(const pool::Field& field, bool per_player) {
  py::list shape;
  if (per_player) shape.append(-1);
  for (const int dim : field.shape) shape.append(dim);
  py::object low = py::float_(field.low), high = py::float_(field.high);
  if (field.dtype == pool::DType::kBool) {
    low = py::bool_(field.low != 0), high = py::bool_(field.high != 0);
  } else if (field.dtype != pool::DType::kFloat32) {
    low = py::int_(low), high = py::int_(high);
  }
  return py::make_tuple(NumpyType(field.dtype), shape,
                        py::make_tuple(low, high),
                        py::make_tuple(py::list(), py::list()), false);
}

/// `_XxxEnvSpec`: a checked configuration, and the properties derived from it.
template <class Env>
class PySpec {
 public:
  using Config = typename EnvTraits<Env>::Config;

  explicit PySpec(const py::tuple& values) {
    const size_t expected = py::len(ConfigKeys());
    if (values.size() != expected) {
      throw std::invalid_argument("a spec takes " + std::to_string(expected) +
                                  " config values, got " +
                                  std::to_string(values.size()));
    }
    size_t i = 0;
    VisitAll(*this, [&](const char* name, auto& member, const char*) {
      ReadOption(name, values[i++], &member);
    });
    pool_config_.Validate();
    shared_ = EnvTraits<Env>::MakeShared(env_config_);
  }

  static py::list ConfigKeys() {
    py::list keys;
    ForDefaults(
        [&](const char* name, auto&, const char*) { keys.append(name); });
    return keys;
  }
  static py::tuple DefaultConfigValues() {
    py::list values;
    ForDefaults([&](const char*, auto& member, const char*) {
      values.append(py::cast(member));
    });
    return py::tuple(values);
  }
  static py::dict ConfigHelp() {
    py::dict help;
    ForDefaults(
        [&](const char* name, auto&, const char* text) { help[name] = text; });
    return help;
  }
  static py::list StateKeys() {
    py::list keys;
    for (const pool::Field& field : pool::PoolFields()) keys.append(field.name);
    for (const std::string& name : Env::FieldNames()) keys.append(name);
    return keys;
  }
  /// The state keys of this configuration, which may have several "obs:" keys.
  py::list OwnStateKeys() const {
    py::list keys;
    for (const pool::Field& field : pool::PoolFields()) keys.append(field.name);
    for (const pool::Field& field : Env::Fields(*shared_)) {
      keys.append(field.name);
    }
    return keys;
  }
  static py::list ActionKeys() {
    py::list keys;
    for (const char* key : {"env_id", "players.env_id", "action"}) {
      keys.append(key);
    }
    return keys;
  }

  py::tuple ConfigValues() {
    py::list values;
    VisitAll(*this, [&](const char*, auto& member, const char*) {
      values.append(py::cast(member));
    });
    return py::tuple(values);
  }
  py::tuple StateSpec() const {
    py::list specs;
    for (const pool::Field& field : pool::PoolFields()) {
      specs.append(ArraySpec(field, field.name == "info:players.env_id" ||
                                        field.name == "reward" ||
                                        field.name == "discount"));
    }
    for (const pool::Field& field : Env::Fields(*shared_)) {
      specs.append(ArraySpec(field, false));
    }
    return py::tuple(specs);
  }
  py::tuple ActionSpec() const {
    const pool::Field id = pool::PoolFields()[pool::kEnvId];
    const pool::Field action{
        "action", pool::DType::kInt32, {}, 0, Env::NumActions(*shared_) - 1.0};
    return py::make_tuple(ArraySpec(id, false), ArraySpec(id, true),
                          ArraySpec(action, true));
  }

  const pool::PoolConfig& pool_config() const { return pool_config_; }
  const std::shared_ptr<const typename Env::Shared>& shared() const {
    return shared_;
  }

 private:
  PySpec() = default;

  template <class Visitor>
  static void VisitAll(PySpec& spec, Visitor&& visit) {
    spec.pool_config_.Visit(visit);
    spec.env_config_.Visit(visit);
    visit("reward_threshold", spec.reward_threshold_,
          "return at which a task counts as solved; inf: not defined");
  }
  template <class Visitor>
  static void ForDefaults(Visitor&& visit) {
    PySpec defaults;
    VisitAll(defaults, visit);
  }

  pool::PoolConfig pool_config_;
  Config env_config_;
  double reward_threshold_ = std::numeric_limits<double>::infinity();
  std::shared_ptr<const typename Env::Shared> shared_;
};

template <class Env>
void BindSpec(py::module_& module, const char* name) {
  using Spec = PySpec<Env>;
  // EnvPool derives from both classes with metaclasses derived from ABCMeta.
  py::class_<Spec> cls(
      module, name, py::metaclass(py::module_::import("abc").attr("ABCMeta")));
  cls.def(py::init<const py::tuple&>(), py::arg("values"))
      .def_property_readonly("_config_values", &Spec::ConfigValues)
      .def_property_readonly("_own_state_keys", &Spec::OwnStateKeys)
      .def_property_readonly("_state_spec", &Spec::StateSpec)
      .def_property_readonly("_action_spec", &Spec::ActionSpec);
  cls.attr("_config_keys") = Spec::ConfigKeys();
  cls.attr("_default_config_values") = Spec::DefaultConfigValues();
  cls.attr("_config_help") = Spec::ConfigHelp();
  cls.attr("_state_keys") = Spec::StateKeys();
  cls.attr("_action_keys") = Spec::ActionKeys();
}

}  // namespace envpool_protocol
