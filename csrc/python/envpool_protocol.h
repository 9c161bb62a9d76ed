// EnvPool 1.2's native class contract: the two classes that envpool's Python
// (envpool.python.api.py_env) subclasses, for any environment of pool/spec.h.
// The installed EnvPool is the reference: tests/pool/test_envpool_contract.py
// compares these classes with its CartPole.
//
// The Python side checks dtypes only on the first call, and never checks
// lengths and ids. So the native side checks everything on every call.
#pragma once

#include <pybind11/pybind11.h>

#include "python/envpool_pool.h"
#include "python/envpool_spec.h"

namespace envpool_protocol {

/// Adds both classes; names start with "_" and the pool's has "EnvPool".
template <class Env>
void Bind(py::module_& module, const char* spec_name, const char* pool_name) {
  BindSpec<Env>(module, spec_name);
  BindPool<Env>(module, pool_name);
}

}  // namespace envpool_protocol
