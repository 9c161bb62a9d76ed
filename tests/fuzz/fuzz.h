// Shared by the fuzz targets: functions that read choices from an input and
// edit a valid blob with them (plain bytes would fail the first check), and a
// cartridge that runs without a ROM. Each target is a file beside this one and
// defines LLVMFuzzerTestOneInput, for libFuzzer (MARIO_BUILD_FUZZERS) and for
// the driver with a generator of its own (replay.cc).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "nes/cartridge.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fuzz {

/// Ends the process with a message: a finding.
inline void Require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::abort();
}

/// The bytes of one input as a row of choices; zeros once they are used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }

  template <class T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const size_t bytes = std::min(sizeof(T), rest_.size());
    if (bytes > 0) std::memcpy(&value, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return value;
  }
  bool Flag() { return Take<uint8_t>() & 1; }
  /// 0 to bound - 1.
  uint32_t Below(uint32_t bound) {
    return (bound <= 256 ? Take<uint8_t>() : Take<uint32_t>()) % bound;
  }
  /// True once in `n` times.
  bool Once(uint32_t n) { return Below(n) == n - 1; }

  std::span<const uint8_t> Bytes(size_t most) {
    const auto bytes = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(bytes.size());
    return bytes;
  }
  std::string Text(size_t most) {
    const auto bytes = Bytes(Below(static_cast<uint32_t>(most) + 1));
    return {bytes.begin(), bytes.end()};
  }
  /// A number as tests of bounds want it: small, extreme, or any.
  int64_t Number() {
    constexpr int64_t kEdges[] = {0,
                                  1,
                                  -1,
                                  2,
                                  255,
                                  256,
                                  1024,
                                  1025,
                                  65535,
                                  65536,
                                  INT32_MAX,
                                  INT32_MIN,
                                  int64_t{INT32_MAX} + 1,
                                  INT64_MAX,
                                  INT64_MIN};
    switch (Below(4)) {
      case 0:
        return kEdges[Below(std::size(kEdges))];
      case 1:
        return Take<int64_t>();
      default:
        return Take<int8_t>();
    }
  }

 private:
  std::span<const uint8_t> rest_;
};

/// Overwrites up to eight places of `blob` behind `from`: with bytes of the
/// input, or with an edge of an integer of 1 to 8 bytes.
inline void Edit(Input& input, std::span<std::byte> blob, size_t from = 0) {
  const uint32_t edits = input.Below(9);
  for (uint32_t i = 0; i < edits && from < blob.size(); ++i) {
    const size_t room = blob.size() - from;
    const size_t at = from + input.Below(static_cast<uint32_t>(room));
    const size_t bytes =
        std::min<size_t>(size_t{1} << input.Below(4), blob.size() - at);
    if (input.Flag()) {
      const int64_t value = input.Number();
      std::memcpy(blob.data() + at, &value, bytes);
    } else {
      const auto raw = input.Bytes(bytes);
      if (!raw.empty()) std::memcpy(blob.data() + at, raw.data(), raw.size());
    }
  }
}

/// What the present input was refused with, for replay.cc.
inline std::vector<std::string> refusals;

/// Notes a refusal, which must say why.
inline void NoteRefusal(const std::exception& error) {
  Require(error.what()[0] != '\0', "a refusal says why");
  refusals.emplace_back(error.what());
}

/// Runs `action`; true if it was refused in a documented way.
template <class Action>
bool Refused(Action&& action) {
  try {
    action();
    return false;
  } catch (const std::logic_error& error) {  // invalid_argument, out_of_range
    NoteRefusal(error);
    return true;
  }
}

/// A program of ours that keeps work RAM as the game does:
/// tests/support/stand_in.asm.
inline std::shared_ptr<const nes::Cartridge> StandIn() {
  static constexpr uint8_t kCode[] = {
#include "stand_in_rom.inc"
  };
  constexpr uint8_t kNmi = 63;  // where the NMI's code begins
  std::vector<uint8_t> image(16 + 32768 + 8192);
  std::memcpy(image.data(), "NES\x1A\x02\x01\x01", 7);
  uint8_t* const prg = image.data() + 16;
  std::memcpy(prg, kCode, sizeof(kCode));
  const uint8_t vectors[] = {kNmi, 0x80, 0x00, 0x80, 0x00, 0x80};
  std::memcpy(prg + 0x7FFA, vectors, sizeof(vectors));
  uint8_t* const chr = prg + 32768;
  for (int i = 0; i < 8192; ++i) chr[i] = static_cast<uint8_t>(i * 37 ^ i >> 4);
  return nes::Cartridge::Parse(image);
}

}  // namespace fuzz
