// Native code without the GIL, also in a thread that the interpreter's end
// finds there.
//
// An object whose calls release the GIL needs a lock of its own, because
// threads that share it no longer take turns. A call never waits for that lock
// with the GIL, which the thread that has the lock may be waiting for.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <exception>
#include <thread>

namespace envpool_protocol {

inline bool InterpreterEnds() {
#if PY_VERSION_HEX < 0x030D0000
  return _Py_IsFinalizing() != 0;
#else
  return Py_IsFinalizing() != 0;
#endif
}

/// Runs `action` without the GIL and takes it again.
///
/// A daemon thread may run `action` while the interpreter ends, and then never
/// gets the GIL again. Until Python 3.13, a request for the GIL unwinds the
/// thread's stack, which ends the process if the unwinding begins in a
/// destructor (py::gil_scoped_release). From 3.14 on the thread sleeps for
/// ever, as it does here.
template <class Action>
void WithoutGil(Action&& action) {
  const bool is_ending_thread =
      InterpreterEnds();  // then no other thread has the GIL
  PyThreadState* const thread = PyEval_SaveThread();
  std::exception_ptr error;
  try {
    action();
  } catch (...) {
    error = std::current_exception();
  }
  while (!is_ending_thread && InterpreterEnds()) {
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
  PyEval_RestoreThread(thread);
  if (error) std::rethrow_exception(error);
}

}  // namespace envpool_protocol
