// A whole NES with an NROM cartridge: the bus that joins CPU, PPU, APU, two
// pads and memory. It knows nothing of Mario, Python or threads. Everything
// mutable is in one padding-free State, so saving is one assignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nes/cartridge.h"
#include "nes/state.h"

namespace nes {

constexpr int kScreenWidth = 256;
constexpr int kScreenHeight = 240;
constexpr int kScreenPixels = kScreenWidth * kScreenHeight;

/// Bits of a pad byte. Any combination is passed on, Left+Right included.
enum Button : uint8_t {
  kA = 1,
  kB = 2,
  kSelect = 4,
  kStart = 8,
  kUp = 16,
  kDown = 32,
  kLeft = 64,
  kRight = 128,
};

class Console {
 public:
  explicit Console(std::shared_ptr<const Cartridge> cartridge);

  void PowerOn();  // clears RAM and registers, as after switching on
  void Reset();    // the reset button: RAM is kept

  /// Runs one video frame with pad 1 = `buttons`: from the start of one
  /// vertical blank (just before its NMI) to the start of the next.
  /// `pixels` receives 240x256 palette indices (0-63), row-major; nullptr
  /// draws nothing, and leaves exactly the same State behind.
  void RunFrame(uint8_t buttons, uint8_t* pixels);

  /// The 2 KiB of work RAM, mirrored at $0000-$1FFF; may be written.
  uint8_t* ram() { return state_.ram; }
  const uint8_t* ram() const { return state_.ram; }

  /// A CPU-side read without side effects (registers read as 0).
  uint8_t Peek(uint16_t address) const;

  /// The fast save: enough where the cartridge has neither work RAM nor CHR
  /// RAM in use (every Super Mario Bros. image).
  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

  /// The complete save: header with version and ROM hash, State, cartridge
  /// RAM. Load throws std::invalid_argument for another version, ROM or size.
  size_t SaveBytes() const;
  void Save(std::byte* out) const;
  void Load(std::span<const std::byte> blob);

  const Cartridge& cartridge() const { return *cartridge_; }
  const std::shared_ptr<const Cartridge>& shared_cartridge() const {
    return cartridge_;
  }

  /// Exact shortcuts for `JMP self` and sprite-0 polling; on by default.
  void set_idle_skip(bool on) { idle_skip_ = on; }

 private:
  State state_;
  std::shared_ptr<const Cartridge> cartridge_;
  bool idle_skip_ = true;
};

}  // namespace nes
