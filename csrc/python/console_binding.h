// A bare console for tests and tools: `_core.Console`. Training never passes
// through here.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nes/console.h"
#include "nes/palette.h"
#include "python/rom.h"

namespace py = pybind11;

/// Does not release the GIL, so that threads that share a console take turns.
class PyConsole {
 public:
  explicit PyConsole(std::unique_ptr<nes::Console> console)
      : console_(std::move(console)) {}

  static std::unique_ptr<PyConsole> Make(const py::bytes& rom,
                                         const std::string& timing,
                                         const std::string& engine) {
    return std::make_unique<PyConsole>(std::make_unique<nes::Console>(
        ParseRom(rom), nes::TimingByName(timing), Wanted(engine)));
  }

  nes::Console& console() { return *console_; }
  const nes::Console& console() const { return *console_; }

  void Step(int buttons, bool draw) {
    if (buttons < 0 || buttons > 255) {
      throw py::value_error("buttons is " + std::to_string(buttons) +
                            "; a pad byte is 0 to 255");
    }
    RunFrame(static_cast<uint8_t>(buttons), draw);
  }

  // Runs many frames without the Python interpreter in the loop.
  void StepMany(const py::bytes& movie, int draw_every) {
    const std::string_view buttons(movie);
    for (size_t i = 0; i < buttons.size(); ++i) {
      const bool draw =
          draw_every > 0 && (i + 1) % static_cast<size_t>(draw_every) == 0;
      RunFrame(static_cast<uint8_t>(buttons[i]), draw);
    }
  }

  void PowerOn() {
    console_->PowerOn();
    has_jumped_ = true;
  }

  void SetEngine(const std::string& name) {
    console_->set_engine(Wanted(name));
  }

  py::array_t<uint8_t> Indices() {
    py::array_t<uint8_t> out({nes::kScreenHeight, nes::kScreenWidth});
    std::memcpy(out.mutable_data(), Picture().data(), indices_.size());
    return out;
  }

  py::array_t<uint8_t> Screen() {
    py::array_t<uint8_t> out({nes::kScreenHeight, nes::kScreenWidth, 3});
    uint8_t* to = out.mutable_data();
    for (uint8_t index : Picture()) {
      std::memcpy(to, nes::kPalette[index & 63].data(), 3);
      to += 3;
    }
    return out;
  }

  py::bytes Save() const {
    std::string blob(console_->SaveBytes(), '\0');
    console_->Save(reinterpret_cast<std::byte*>(blob.data()));
    return py::bytes(blob);
  }

  void Load(const py::bytes& blob) {
    const std::string_view view(blob);
    console_->Load(
        {reinterpret_cast<const std::byte*>(view.data()), view.size()});
    has_jumped_ = true;
  }

  py::bytes StateBytes() const {
    return py::bytes(reinterpret_cast<const char*>(&console_->state()),
                     sizeof(nes::State));
  }

  py::dict Registers() const {
    const nes::CpuState& cpu = console_->state().cpu;
    py::dict out;
    out["pc"] = cpu.pc;
    out["a"] = cpu.a;
    out["x"] = cpu.x;
    out["y"] = cpu.y;
    out["sp"] = cpu.sp;
    out["p"] = cpu.p;
    out["cycle"] = cpu.cycle;
    return out;
  }

  void SetRegisters(const py::kwargs& values) {
    nes::State state = console_->state();
    for (const auto& [key, value] : values) {
      const auto name = key.cast<std::string>();
      if (name == "pc") {
        state.cpu.pc = value.cast<uint16_t>();
      } else if (name == "a") {
        state.cpu.a = value.cast<uint8_t>();
      } else if (name == "x") {
        state.cpu.x = value.cast<uint8_t>();
      } else if (name == "y") {
        state.cpu.y = value.cast<uint8_t>();
      } else if (name == "sp") {
        state.cpu.sp = value.cast<uint8_t>();
      } else if (name == "p") {
        state.cpu.p = value.cast<uint8_t>();
      } else {
        throw py::value_error("no CPU register " + name +
                              "; the registers are pc, a, x, y, sp and p");
      }
    }
    console_->set_state(state);
  }

  /// Replaces the memory of the picture unit and its registers, which the
  /// vertical blank that has just begun finds.
  void SetPicture(const py::bytes& nametable, const py::bytes& palette,
                  const py::bytes& oam, uint8_t ctrl, uint8_t mask,
                  uint8_t status, uint16_t v, uint16_t t, uint8_t fine_x,
                  uint8_t w) {
    nes::State state = console_->state();
    nes::PpuState& ppu = state.ppu;
    CopyAll("nametable", nametable, ppu.nametable);
    CopyAll("palette", palette, ppu.palette);
    CopyAll("oam", oam, ppu.oam);
    ppu.ctrl = ctrl;
    ppu.mask = mask;
    ppu.status = static_cast<uint8_t>(status | 0x80);  // the vertical blank
    ppu.v = v;
    ppu.t = t;
    ppu.fine_x = fine_x;
    ppu.w = w;
    if (!nes::IsPlausible(state, console_->timing())) {
      throw py::value_error(
          "v and t must be below 32768, and fine_x below 8, got " +
          std::to_string(v) + ", " + std::to_string(t) + " and " +
          std::to_string(fine_x));
    }
    console_->set_state(state);
    has_jumped_ = true;
  }

  py::dict TranslationSize() const {
    py::dict out;
    if (console_->translation() == nullptr) return out;
    const nes::Translation::Size size = console_->translation()->size();
    out["blocks"] = size.blocks;
    out["batches"] = size.batches;
    out["code_bytes"] = size.code_bytes;
    out["memory_bytes"] = size.memory_bytes;
    out["seconds"] = size.seconds;
    return out;
  }

  // Scanline and dot at the current CPU cycle, as emulator logs print them.
  std::pair<int, int> BeamPosition() const {
    const nes::State& state = console_->state();
    constexpr int kLine = nes::kDotsPerLine;
    constexpr int kFrame = nes::kDotsPerFrame;
    const int64_t since =
        static_cast<int64_t>(nes::kDotsPerCycle * state.cpu.cycle +
                             nes::kPowerOnDot) -
        static_cast<int64_t>(state.ppu.frame_dot);
    const int dots = static_cast<int>((since + kFrame) % kFrame);
    const int line = dots / kLine + static_cast<int>(nes::kVblankLine);
    return {line % static_cast<int>(nes::kLinesPerFrame), dots % kLine};
  }

 private:
  using Pixels = std::array<uint8_t, nes::kScreenPixels>;

  template <size_t kBytes>
  static void CopyAll(const char* name, const py::bytes& from,
                      uint8_t (&to)[kBytes]) {
    const std::string_view bytes(from);
    if (bytes.size() != kBytes) {
      throw py::value_error(std::string(name) + " has " +
                            std::to_string(bytes.size()) +
                            " bytes; it must have " + std::to_string(kBytes));
    }
    std::memcpy(to, bytes.data(), kBytes);
  }

  static nes::Engine Wanted(const std::string& name) {
    const nes::Engine engine =
        name.empty() ? nes::DefaultEngine() : nes::EngineByName(name);
    WarnIfInterpreted(engine);
    return engine;
  }

  void RunFrame(uint8_t buttons, bool draw) {
    console_->RunFrame(buttons, draw ? indices_.data() : nullptr);
    if (draw) has_jumped_ = false;
  }

  /// The last frame drawn. After a jump to another state, which has no picture,
  /// the frame that begins in it, run on another console.
  const Pixels& Picture() {
    if (!has_jumped_) return indices_;
    nes::Console ahead(console_->shared_cartridge(), console_->timing(),
                       nes::Engine::kInterpreter);
    std::vector<std::byte> save(console_->SaveBytes());
    console_->Save(save.data());
    ahead.Load(save);
    ahead.RunFrame(console_->state().pad.buttons[0], indices_.data());
    has_jumped_ = false;
    return indices_;
  }

  std::unique_ptr<nes::Console> console_;
  Pixels indices_ = {};
  bool has_jumped_ = false;
};
