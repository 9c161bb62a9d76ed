// A ROM from Python, and the warning that its program runs slower here than it
// could.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "nes/cartridge.h"
#include "nes/translation.h"

inline std::shared_ptr<const nes::Cartridge> ParseRom(std::string_view image) {
  return nes::Cartridge::Parse(
      {reinterpret_cast<const uint8_t*>(image.data()), image.size()});
}

/// Warns (RuntimeWarning) once in a process if `wanted` translates programs and
/// this system could, but does not let memory become machine code. The GIL must
/// be held.
inline void WarnIfInterpreted(nes::Engine wanted) {
  static bool has_warned = false;
  if (has_warned || !nes::HasTranslator() ||
      wanted == nes::Engine::kInterpreter) {
    return;
  }
  const std::string problem = nes::WhyNotTranslated();
  if (problem.empty()) return;
  has_warned = true;
  const std::string text =
      "the game is interpreted, with the same results but several times "
      "slower: " +
      problem +
      "; allow it (systemd: MemoryDenyWriteExecute=no, SELinux: execmem), or "
      "choose engine='interpreter' (or MARIO_ENGINE=interpreter) to run "
      "without "
      "this warning";
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) {
    throw pybind11::error_already_set();
  }
}
