// The 64 colours of the picture processor as RGB and as luma. The RGB values
// are those of nes-py 8.2.1 (nes_py/nes/include/palette.hpp, MIT licence), so
// that pictures can be compared byte for byte with gym-super-mario-bros.
#pragma once

#include <array>
#include <cstdint>

namespace nes {

namespace palette_internal {

inline constexpr uint32_t kRgb24[64] = {
    0x7C7C7C, 0x0000FC, 0x0000BC, 0x4428BC, 0x940084, 0xA80020, 0xA81000,
    0x881400, 0x503000, 0x007800, 0x006800, 0x005800, 0x004058, 0x000000,
    0x000000, 0x000000, 0xBCBCBC, 0x0078F8, 0x0058F8, 0x6844FC, 0xD800CC,
    0xE40058, 0xF83800, 0xE45C10, 0xAC7C00, 0x00B800, 0x00A800, 0x00A844,
    0x008888, 0x000000, 0x000000, 0x000000, 0xF8F8F8, 0x3CBCFC, 0x6888FC,
    0x9878F8, 0xF878F8, 0xF85898, 0xF87858, 0xFCA044, 0xF8B800, 0xB8F818,
    0x58D854, 0x58F898, 0x00E8D8, 0x787878, 0x000000, 0x000000, 0xFCFCFC,
    0xA4E4FC, 0xB8B8F8, 0xD8B8F8, 0xF8B8F8, 0xF8A4C0, 0xF0D0B0, 0xFCE0A8,
    0xF8D878, 0xD8F878, 0xB8F8B8, 0xB8F8D8, 0x00FCFC, 0xF8D8F8, 0x000000,
    0x000000,
};

/// Rec. 601 luma in 14-bit fixed point, rounded as OpenCV's RGB2GRAY does.
constexpr uint8_t Luma(uint32_t r, uint32_t g, uint32_t b) {
  return static_cast<uint8_t>((r * 4899 + g * 9617 + b * 1868 + 8192) >> 14);
}

template <class T, class Function>
constexpr std::array<T, 64> Map(Function function) {
  std::array<T, 64> table{};
  for (int i = 0; i < 64; ++i) {
    const uint32_t rgb = kRgb24[i];
    table[i] = function(rgb >> 16, (rgb >> 8) & 0xFF, rgb & 0xFF);
  }
  return table;
}

}  // namespace palette_internal

/// (64, 3): red, green and blue of each palette index.
inline constexpr std::array<std::array<uint8_t, 3>, 64> kPalette =
    palette_internal::Map<std::array<uint8_t, 3>>(
        [](uint32_t r, uint32_t g, uint32_t b) {
          return std::array<uint8_t, 3>{static_cast<uint8_t>(r),
                                        static_cast<uint8_t>(g),
                                        static_cast<uint8_t>(b)};
        });

/// (64,): grey level of each palette index.
inline constexpr std::array<uint8_t, 64> kLuma =
    palette_internal::Map<uint8_t>(palette_internal::Luma);

}  // namespace nes
