// mario_envpool._xla: send and recv as handlers that code compiled by XLA calls
// (typed FFI, https://openxla.org/xla/custom_call; jax.ffi). Built where
// jaxlib, which brings XLA's headers, is installed.
//
// A handler runs in one of XLA's threads, without the GIL. It may block there:
// the pool's own threads fill its batches, so no handler waits for another
// thread of XLA, and recv refuses to wait for rows that were not requested.
#include <pybind11/pybind11.h>
#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/arguments.h"
#include "python/xla_port.h"

namespace {

namespace ffi = xla::ffi;
namespace py = pybind11;
using envpool_protocol::kSignalPeriod;
using xla_port::Port;

using Handle = ffi::BufferR1<ffi::U8>;
using Numbers = ffi::BufferR1<ffi::S32>;

class Interrupted : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Ports by number. Compiled code may outlive a pool, so it stores only the
/// number, and no number is used twice.
class Ports {
 public:
  int64_t Add(const std::shared_ptr<Port>& port) {
    const std::lock_guard lock(mutex_);
    std::erase_if(ports_,
                  [](const auto& each) { return each.second.expired(); });
    for (const auto& [number, known] : ports_) {
      if (known.lock() == port) return number;
    }
    ports_[++last_] = port;
    return last_;
  }

  std::shared_ptr<Port> Find(int64_t number) {
    RequireOpen();
    const std::lock_guard lock(mutex_);
    const auto found = ports_.find(number);
    std::shared_ptr<Port> port;
    if (found != ports_.end()) port = found->second.lock();
    if (!port) {
      throw std::runtime_error(
          "the pool of this function is gone; keep a reference to the pool, or "
          "to what its xla() returned, while you call the function");
    }
    return port;
  }

  /// Ends running handlers when the interpreter ends, because jax waits for
  /// them.
  void Close() { closed_.store(true); }
  void RequireOpen() const {
    if (closed_.load()) throw Interrupted("the interpreter is ending");
  }

 private:
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  std::unordered_map<int64_t, std::weak_ptr<Port>> ports_;  // by mutex_
  int64_t last_ = 0;                                        // by mutex_
};

Ports& ports = *new Ports;  // outlives XLA's threads

unsigned long main_thread = 0;  // Python's

/// Throws after Ctrl-C. Only Python's main thread can detect it; if XLA runs a
/// function in another thread, the main thread waits in jax, which checks for
/// it. Every call checks, because a short step never waits.
void CheckSignals() {
  if (PyThread_get_thread_ident() != main_thread) return;
  static std::chrono::steady_clock::time_point due;
  const auto now = std::chrono::steady_clock::now();
  if (now < due) return;
  due = now + kSignalPeriod;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  const py::error_already_set error;
  throw Interrupted("interrupted by " +
                    py::str(error.type().attr("__name__")).cast<std::string>());
}

/// Runs `call(port)`; an exception becomes an XLA error.
template <class Call>
ffi::Error WithPort(int64_t number, const Handle& in, ffi::Result<Handle> out,
                    Call&& call) {
  try {
    int64_t given = 0;
    if (in.size_bytes() == sizeof(given)) {
      std::memcpy(&given, in.untyped_data(), sizeof(given));
    }
    if (given != number) {
      throw std::invalid_argument(
          "this handle belongs to another pool; pass the handle that xla() "
          "returned with this function, or that the last call returned");
    }
    CheckSignals();
    call(*ports.Find(number));
    if (out->untyped_data() != in.untyped_data()) {
      std::memcpy(out->untyped_data(), &given, sizeof(given));
    }
    return ffi::Error::Success();
  } catch (const Interrupted& error) {
    return {ffi::ErrorCode::kCancelled, error.what()};
  } catch (const std::logic_error& error) {
    return ffi::Error::InvalidArgument(error.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
}

std::span<const int32_t> Span(const Numbers& numbers) {
  return {numbers.typed_data(), numbers.element_count()};
}

ffi::Error Send(int64_t number, Handle in, Numbers ids, Numbers players,
                Numbers actions, ffi::Result<Handle> out) {
  return WithPort(number, in, out, [&](Port& port) {
    if (!std::ranges::equal(Span(ids), Span(players))) {
      throw std::invalid_argument(
          "send: players.env_id must equal env_id, as every env has one "
          "player");
    }
    port.Send(Span(ids), Span(actions));
  });
}

/// The memory that XLA provides for the arrays of a batch.
std::vector<void*> OutputArrays(const ffi::RemainingRets& states,
                                std::span<const size_t> bytes) {
  std::vector<void*> arrays;
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto array = states.get<ffi::AnyBuffer>(i);
    if (!array || (*array)->size_bytes() != bytes[i]) {
      throw std::invalid_argument(
          "recv: array " + std::to_string(i) + " of a batch has " +
          std::to_string(bytes[i]) +
          " bytes, but XLA reserved another size; int64 needs "
          "jax.config.update('jax_enable_x64', True) before xla()");
    }
    arrays.push_back((*array)->untyped_data());
  }
  return arrays;
}

ffi::Error Recv(int64_t number, Handle in, ffi::Result<Handle> out,
                ffi::RemainingRets states) {
  return WithPort(number, in, out, [&](Port& port) {
    const std::vector<void*> arrays = OutputArrays(states, port.array_bytes());
    while (!port.Recv(kSignalPeriod, arrays)) {
      ports.RequireOpen();
      CheckSignals();
    }
  });
}

XLA_FFI_DEFINE_HANDLER(kSend, Send,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("handle")
                           .Arg<Handle>()
                           .Arg<Numbers>()
                           .Arg<Numbers>()
                           .Arg<Numbers>()
                           .Ret<Handle>());
XLA_FFI_DEFINE_HANDLER(kRecv, Recv,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("handle")
                           .Arg<Handle>()
                           .Ret<Handle>()
                           .RemainingRets());

int64_t AddPort(const py::capsule& capsule) {
  const char* name = capsule.name();
  if (name == nullptr || std::string_view(name) != xla_port::kPortName) {
    throw std::runtime_error(
        "mario_envpool._xla was compiled for another mario_envpool._core: run "
        "'pip install --no-deps -e .' in the repository, with jax installed");
  }
  return ports.Add(*capsule.get_pointer<std::shared_ptr<Port>>());
}

}  // namespace

PYBIND11_MODULE(_xla, module) {
  module.doc() = "XLA handlers for the pools of mario_envpool._core.";
  main_thread = py::module_::import("threading")
                    .attr("main_thread")()
                    .attr("ident")
                    .cast<unsigned long>();
  module.def("add", &AddPort, py::arg("port"),
             "Returns a number for a port, which the caller keeps.");
  module.attr("send") = py::capsule(reinterpret_cast<const void*>(kSend));
  module.attr("recv") = py::capsule(reinterpret_cast<const void*>(kRecv));
  py::module_::import("atexit").attr("register")(
      py::cpp_function([] { ports.Close(); }));
}
