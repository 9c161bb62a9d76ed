// `_XxxEnvSpec`: names, shapes and bounds that follow from a configuration.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "pool/async_pool.h"
#include "python/arguments.h"
#include "python/envpool_protocol.h"

namespace envpool_protocol {
namespace {

/// One entry of `_state_spec` or `_action_spec`: dtype, shape (-1 leads what
/// EnvPool counts per player), bounds, elementwise bounds (unused), discrete.
py::tuple ArraySpec(const pool::Field& field, bool per_player) {
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

py::object ToPython(const pool::Option& option) {
  return std::visit(
      [](const auto* value) -> py::object { return py::cast(*value); },
      option.value);
}

}  // namespace

PySpec::PySpec(std::unique_ptr<TaskOptions> options, const py::tuple& values)
    : PySpec(std::move(options)) {
  const std::vector<pool::Option> all = Options();
  if (values.size() != all.size()) {
    throw std::invalid_argument("a spec takes " + std::to_string(all.size()) +
                                " config values, got " +
                                std::to_string(values.size()));
  }
  for (size_t i = 0; i < all.size(); ++i) ReadOption(values[i], all[i]);
  pool_config_.Validate();
  task_ = task_options_->MakeTask();
}

std::vector<pool::Option> PySpec::Options() {
  std::vector<pool::Option> all = pool_config_.Options();
  for (const pool::Option& option : task_options_->Options()) {
    all.push_back(option);
  }
  all.push_back({"reward_threshold", &reward_threshold_,
                 "return at which a task counts as solved; inf: not defined"});
  return all;
}

py::tuple PySpec::ConfigValues() {
  py::list values;
  for (const pool::Option& option : Options()) values.append(ToPython(option));
  return py::tuple(values);
}

py::list PySpec::OwnStateKeys() const {
  py::list keys;
  for (const pool::Field& field : pool::PoolFields()) keys.append(field.name);
  for (const pool::Field& field : task_->Fields()) keys.append(field.name);
  return keys;
}

py::tuple PySpec::StateSpec() const {
  py::list specs;
  for (const pool::Field& field : pool::PoolFields()) {
    specs.append(ArraySpec(field, field.name == "info:players.env_id" ||
                                      field.name == "reward" ||
                                      field.name == "discount"));
  }
  for (const pool::Field& field : task_->Fields()) {
    specs.append(ArraySpec(field, false));
  }
  return py::tuple(specs);
}

py::tuple PySpec::ActionSpec() const {
  const pool::Field id = pool::PoolFields()[pool::kEnvId];
  const pool::Field action{
      "action", pool::DType::kInt32, {}, 0, task_->NumActions() - 1.0};
  return py::make_tuple(ArraySpec(id, false), ArraySpec(id, true),
                        ArraySpec(action, true));
}

py::object BindSpec(py::module_& module, const Binding& binding) {
  // EnvPool derives from both classes with metaclasses derived from ABCMeta.
  // Another module may have these classes for another task.
  py::class_<PySpec> cls(
      module, binding.spec_name, py::module_local(),
      py::metaclass(py::module_::import("abc").attr("ABCMeta")));
  cls.def(py::init([make = binding.make_options](const py::tuple& values) {
            return std::make_unique<PySpec>(make(), values);
          }),
          py::arg("values"))
      .def_property_readonly("_config_values", &PySpec::ConfigValues)
      .def_property_readonly("_own_state_keys", &PySpec::OwnStateKeys)
      .def_property_readonly("_state_spec", &PySpec::StateSpec)
      .def_property_readonly("_action_spec", &PySpec::ActionSpec);
  PySpec defaults(binding.make_options());
  py::list config_keys, state_keys;
  py::dict help;
  for (const pool::Option& option : defaults.Options()) {
    config_keys.append(option.name);
    help[option.name] = option.help;
  }
  for (const pool::Field& field : pool::PoolFields()) {
    state_keys.append(field.name);
  }
  for (const std::string& name : binding.field_names) state_keys.append(name);
  cls.attr("_config_keys") = config_keys;
  cls.attr("_default_config_values") = defaults.ConfigValues();
  cls.attr("_config_help") = help;
  cls.attr("_state_keys") = state_keys;
  cls.attr("_action_keys") =
      py::cast(std::vector<std::string>{"env_id", "players.env_id", "action"});
  return cls;
}

}  // namespace envpool_protocol
