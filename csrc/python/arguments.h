// Converts Python values to native values and back, for the bindings of pools.
// Every error names the argument, the given value and the allowed values.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "pool/spec.h"
#include "python/without_gil.h"

namespace envpool_protocol {

namespace py = pybind11;

/// How often a blocking call checks for Ctrl-C.
constexpr std::chrono::milliseconds kSignalPeriod{100};

template <class T>
const char* TypeName() {
  if constexpr (std::is_same_v<T, bool>) {
    return "a bool";
  } else if constexpr (std::is_same_v<T, int>) {
    return "an int of 32 bits";
  } else if constexpr (std::is_same_v<T, double>) {
    return "a float";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "a str";
  } else if constexpr (std::is_same_v<T, std::vector<int>>) {
    return "a list of ints";
  } else {
    return "a list of str";
  }
}

/// The range of an option's integers, as the end of a message.
template <class T>
const char* Range() {
  if constexpr (std::is_same_v<T, int> || std::is_same_v<T, std::vector<int>>) {
    return "; ints here are -2147483648 to 2147483647";
  } else {
    return "";
  }
}

/// Accepts bool, numpy.bool and the ints 0 and 1. Other values with a truth
/// value, such as None and 'false', are mistakes that would pass unnoticed.
inline bool IsBool(py::handle value) {
  if (py::isinstance<py::bool_>(value)) return true;
  if (py::isinstance<py::int_>(value)) {
    return value.equal(py::int_(0)) || value.equal(py::int_(1));
  }
  return py::isinstance(value, py::module_::import("numpy").attr("bool_"));
}

/// Whether a value has the option's type. pybind11 alone would accept more: any
/// truth value for a bool, bytes in any encoding for a str.
template <class T>
bool IsOfType(py::handle value) {
  if constexpr (std::is_same_v<T, bool>) {
    return IsBool(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return py::isinstance<py::str>(value);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    if (!py::isinstance<py::sequence>(value)) return true;  // cast refuses it
    // py::sequence is not used, because it ignores an exception of __len__.
    for (const py::handle item : py::iter(value)) {
      if (py::isinstance<py::bytes>(item)) return false;
    }
  }
  return true;
}

/// Sets an option from a Python value; TypeError names the option.
inline void ReadOption(py::handle value, const pool::Option& option) {
  std::visit(
      [&]<class T>(T* member) {
        try {
          if (!IsOfType<T>(value)) throw py::cast_error();
          *member = value.cast<T>();
        } catch (const py::cast_error&) {
          throw py::type_error(std::string("config ") + option.name +
                               " must be " + TypeName<T>() + ", got " +
                               py::repr(value).cast<std::string>() +
                               Range<T>());
        }
      },
      option.value);
}

inline std::string Describe(py::handle value) {
  if (!py::isinstance<py::array>(value)) {
    return py::str(py::type::handle_of(value).attr("__name__"));
  }
  return "an array of dtype " +
         py::str(value.attr("dtype")).cast<std::string>() + " and shape " +
         py::str(value.attr("shape")).cast<std::string>();
}

/// Returns the numbers of a contiguous array, which need not be aligned.
template <class T>
std::vector<T> Copied(const py::array& array) {
  std::vector<T> numbers(static_cast<size_t>(array.size()));
  if (!numbers.empty()) {
    std::memcpy(numbers.data(), array.data(), numbers.size() * sizeof(T));
  }
  return numbers;
}

/// Returns the numbers of a one-dimensional int32 array; TypeError describes
/// any other value. The result is a copy, because another thread may write to
/// the array once the GIL is released, and the numbers that were checked must
/// be the numbers that are used.
inline std::vector<int32_t> ReadInt32(py::handle value,
                                      const std::string& what) {
  if (!py::isinstance<py::array_t<int32_t>>(value) ||
      py::reinterpret_borrow<py::array>(value).ndim() != 1) {
    throw py::type_error(what +
                         " must be a NumPy array of dtype int32 and shape "
                         "(n,), got " +
                         Describe(value));
  }
  const auto array = py::array_t<int32_t, py::array::c_style>::ensure(value);
  if (!array) throw py::error_already_set();
  return Copied<int32_t>(array);
}

/// Returns the numbers of a one-dimensional array or sequence of real numbers,
/// or throws TypeError. The result is a copy for the same reason.
inline std::vector<double> ReadDoubles(py::handle value,
                                       const std::string& what) {
  const auto array = py::array::ensure(value);
  if (!array) PyErr_Clear();
  const bool numbers =
      array && array.ndim() == 1 &&
      (array.dtype().kind() == 'f' || array.dtype().kind() == 'i' ||
       array.dtype().kind() == 'u');
  if (!numbers) {
    throw py::type_error(what +
                         " must be numbers, a list or an array of dtype "
                         "float64 and shape (n,), got " +
                         Describe(value));
  }
  const auto wide =
      py::array_t<double, py::array::c_style | py::array::forcecast>(array);
  return Copied<double>(wide);
}

/// Snapshots, one after the other.
struct Blobs {
  size_t count = 0;
  std::vector<std::byte> bytes;
};

/// Returns the rows of a two-dimensional uint8 array, or throws TypeError. The
/// result is a copy for the same reason.
inline Blobs ReadBlobs(py::handle value, const std::string& what) {
  if (!py::isinstance<py::array_t<uint8_t>>(value) ||
      py::reinterpret_borrow<py::array>(value).ndim() != 2) {
    throw py::type_error(what +
                         " must be a NumPy array of dtype uint8 and shape (n, "
                         "bytes) as snapshot() returns it, got " +
                         Describe(value));
  }
  const auto array = py::array_t<uint8_t, py::array::c_style>::ensure(value);
  if (!array) throw py::error_already_set();
  const auto* from = reinterpret_cast<const std::byte*>(array.data());
  return {static_cast<size_t>(array.shape(0)), {from, from + array.size()}};
}

/// The things that an argument's integers number, from 0 on, for messages.
struct Numbered {
  const char* call;
  bool are_envs;  // else actions
  int count;
  std::string rows = "n";

  std::string Last() const { return std::to_string(count - 1); }

  /// Throws what the pool throws for such arguments: TypeError and IndexError
  /// for environments, ValueError for actions.
  [[noreturn]] void RefuseType(const std::string& given) const {
    const std::string text =
        std::string(call) + (are_envs ? ": env_ids" : ": actions") +
        " must be integers of shape (" + rows +
        ",), a list or an array, from " + "0 to " + Last() + ", got " + given;
    if (are_envs) throw py::type_error(text);
    throw std::invalid_argument(text);
  }
  [[noreturn]] void RefuseNumber(const std::string& number, size_t at) const {
    const std::string given =
        number + " (position " + std::to_string(at) + ") is out of range; ";
    if (!are_envs) {
      throw std::invalid_argument(std::string(call) + ": action " + given +
                                  "actions are 0 to " + Last());
    }
    throw std::out_of_range(std::string(call) + ": env id " + given +
                            "this pool has envs 0 to " + Last());
  }
};

/// Appends the integers of an array of any width, byte order and alignment.
inline void AppendIntegers(const py::array& array, const Numbered& numbered,
                           std::vector<int32_t>* numbers) {
  const char kind = array.dtype().kind();
  if ((kind != 'i' && kind != 'u') || array.ndim() != 1) {
    numbered.RefuseType(Describe(array));
  }
  const auto wide =
      py::array_t<int64_t, py::array::c_style | py::array::forcecast>(array);
  const bool can_wrap = kind == 'u' && array.itemsize() == sizeof(uint64_t);
  for (const int64_t number : Copied<int64_t>(wide)) {
    if (number < 0 && can_wrap) {
      numbered.RefuseNumber(std::to_string(static_cast<uint64_t>(number)),
                            numbers->size());
    }
    if (number < INT32_MIN || number > INT32_MAX) {
      numbered.RefuseNumber(std::to_string(number), numbers->size());
    }
    numbers->push_back(static_cast<int32_t>(number));
  }
}

/// Appends an integer that is no bool; nothing else is taken for an integer.
inline void AppendInteger(py::handle value, const Numbered& numbered,
                          std::vector<int32_t>* numbers) {
  const bool is_bool = py::isinstance<py::bool_>(value);
  const auto integer = py::reinterpret_steal<py::object>(
      is_bool ? nullptr : PyNumber_Index(value.ptr()));
  if (!integer) {
    if (!is_bool) {
      if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) {
        throw py::error_already_set();
      }
      PyErr_Clear();
    }
    numbered.RefuseType(Describe(value) + " " +
                        py::repr(value).cast<std::string>());
  }
  int overflow = 0;
  const long long number =
      PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
  if (overflow != 0 || number < INT32_MIN || number > INT32_MAX) {
    numbered.RefuseNumber(py::str(integer).cast<std::string>(),
                          numbers->size());
  }
  numbers->push_back(static_cast<int32_t>(number));
}

/// Returns integers from a one-dimensional array of any integer type, or from a
/// sequence of integers. Refuses everything else, bools and floats included,
/// and integers that int32 would cut; the pool checks the range. The result is
/// a copy for the same reason.
inline std::vector<int32_t> ReadIntegers(py::handle value,
                                         const Numbered& numbered) {
  std::vector<int32_t> numbers;
  PyObject* const given = value.ptr();
  if (py::isinstance<py::array>(value) || py::hasattr(value, "__array__")) {
    const auto array = py::array::ensure(value);
    if (!array) throw py::error_already_set();
    AppendIntegers(array, numbered, &numbers);
  } else if (PySequence_Check(given) != 0 && PyUnicode_Check(given) == 0 &&
             PyBytes_Check(given) == 0) {
    // Not through py::sequence, which forgets an exception of its __len__.
    for (const py::handle item : py::iter(value)) {
      AppendInteger(item, numbered, &numbers);
    }
  } else {
    numbered.RefuseType(Describe(value) + " " +
                        py::repr(value).cast<std::string>());
  }
  return numbers;
}

/// Returns any integer from 0 to 2^64 - 1, NumPy's included; `call` is the name
/// of the call for messages.
inline uint64_t ReadSeed(py::handle value, const std::string& call) {
  const py::object integer =
      py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!integer) {
    PyErr_Clear();
    throw py::type_error(call + ": a seed must be an integer, got " +
                         Describe(value) + " " +
                         py::repr(value).cast<std::string>());
  }
  const unsigned long long seed = PyLong_AsUnsignedLongLong(integer.ptr());
  if (PyErr_Occurred()) {
    PyErr_Clear();
    throw std::invalid_argument(call + ": seeds are 0 to 2^64 - 1, got " +
                                py::str(integer).cast<std::string>());
  }
  return seed;
}

inline py::dtype NumpyType(pool::DType dtype) {
  switch (dtype) {
    case pool::DType::kBool:
      return py::dtype::of<bool>();
    case pool::DType::kUint8:
      return py::dtype::of<uint8_t>();
    case pool::DType::kInt8:
      return py::dtype::of<int8_t>();
    case pool::DType::kInt32:
      return py::dtype::of<int32_t>();
    case pool::DType::kInt64:
      return py::dtype::of<int64_t>();
    case pool::DType::kFloat32:
      return py::dtype::of<float>();
  }
  throw std::logic_error("a field has an unknown dtype");
}

}  // namespace envpool_protocol
