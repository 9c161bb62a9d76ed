// The pool's side of XLA: a pool as a port, and the description of its
// functions that envpool.python.xla_template.make_xla takes. The functions
// themselves are in _xla (xla_module.cc).
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <cstring>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pool/async_pool.h"
#include "python/arguments.h"
#include "python/xla_port.h"

namespace envpool_protocol {

class PoolPort final : public xla_port::Port {
 public:
  explicit PoolPort(std::shared_ptr<pool::AsyncPool> pool)
      : pool_(std::move(pool)) {
    for (const pool::Field& field : pool_->layout().fields()) {
      array_bytes_.push_back(field.RowBytes() * size_t(batch_size()));
    }
  }

  std::span<const size_t> array_bytes() const override { return array_bytes_; }

  void Send(std::span<const int32_t> ids,
            std::span<const int32_t> actions) override {
    pool_->Send(ids, actions);
  }

  bool Recv(std::chrono::milliseconds timeout,
            std::span<void* const> arrays) override {
    std::list<pool::BatchInHand> in_hand = pool_->BeginRecv(timeout);
    if (in_hand.empty()) return false;
    const pool::Batch batch = *in_hand.front().batch;
    if (batch.rows() != batch_size()) {
      pool_->CancelRecv(std::move(in_hand));
      throw std::logic_error(
          "recv: the next batch has " + std::to_string(batch.rows()) +
          " rows, and a compiled function takes " +
          std::to_string(batch_size()) +
          "; call recv outside of compiled code for it, and name all envs in "
          "one send or reset");
    }
    const std::vector<pool::Field>& fields = pool_->layout().fields();
    for (size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].bulk) {
        std::memcpy(arrays[i], batch.Bulk(i), array_bytes_[i]);
      } else {
        batch.Copy(i, arrays[i]);
      }
    }
    pool_->FinishRecv(batch);
    return true;
  }

 private:
  int batch_size() const { return pool_->config().batch_size; }

  const std::shared_ptr<pool::AsyncPool> pool_;
  std::vector<size_t> array_bytes_;
};

/// Returns the module with the handlers; throws RuntimeError with the commands
/// that build it.
inline py::module_ ImportXla() {
  try {
    return py::module_::import("mario_envpool._xla");
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ModuleNotFoundError)) throw;
  }
  throw std::runtime_error(
      "mario_envpool was built without jax: run 'pip install jax' and then, in "
      "the repository, 'pip install --no-deps -e .', which compiles its XLA "
      "handlers (on Linux)");
}

/// Returns (dtype, shape) of an array; -1 rows: any number of rows.
inline py::tuple XlaSpec(const py::dtype& dtype, int rows,
                         const std::vector<int>& row = {}) {
  py::list shape;
  shape.append(rows);
  for (const int dim : row) shape.append(dim);
  return py::make_tuple(dtype, shape);
}

/// Returns, for recv and for send, (name, (handle, (inputs, outputs), (CPU,
/// GPU))); the last two are handlers. The caller keeps the port; a function
/// that is called after the port is destroyed fails.
inline py::list XlaFunctions(const std::shared_ptr<xla_port::Port>& port,
                             const std::vector<pool::Field>& fields,
                             int batch_size) {
  const py::module_ xla = ImportXla();
  auto shared = port;  // for the duration of the call
  const auto number = xla.attr("add")(py::capsule(&shared, xla_port::kPortName))
                          .cast<int64_t>();
  const py::bytes handle(reinterpret_cast<const char*>(&number),
                         sizeof(number));
  const py::tuple handle_spec =
      XlaSpec(py::dtype::of<uint8_t>(), int{sizeof(number)});
  const py::tuple ids_spec = XlaSpec(py::dtype::of<int32_t>(), -1);
  py::list batch;
  batch.append(handle_spec);
  for (const pool::Field& field : fields) {
    batch.append(XlaSpec(NumpyType(field.dtype), batch_size, field.shape));
  }
  const py::tuple nothing = py::make_tuple(handle_spec);
  const py::tuple request =
      py::make_tuple(handle_spec, ids_spec, ids_spec, ids_spec);

  py::list functions;
  const auto add = [&](const char* name, const py::tuple& inputs,
                       const py::tuple& outputs) {
    const py::tuple handlers = py::make_tuple(xla.attr(name), py::none());
    functions.append(py::make_tuple(
        name,
        py::make_tuple(handle, py::make_tuple(inputs, outputs), handlers)));
  };
  add("recv", nothing, py::tuple(batch));
  add("send", request, nothing);
  return functions;
}

}  // namespace envpool_protocol
