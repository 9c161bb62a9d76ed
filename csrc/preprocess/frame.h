// From a picture of palette indices to one frame of an observation: colours to
// grey or RGB, optional maximum of two pictures, hidden status bar, resize. It
// knows the palette and nothing else of the console. Integers only: results are
// equal on every machine and code path.
//
// Area resize of one axis, `in` to `out` pixels with out <= in: a source pixel
// weighs `out` units, an output pixel covers `in` of them, so every weight is
// an integer overlap (both divided by their greatest common divisor). Sums down
// the columns fit 16 bits, sums along the rows 32; one rounded division ends
// it. tests/preprocess has the same arithmetic in a few lines of NumPy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "preprocess/cpu_path.h"

namespace preprocess {

constexpr int kSourceHeight = 240;
constexpr int kSourceWidth = 256;
constexpr int kSourcePixels = kSourceHeight * kSourceWidth;
constexpr int kHudRows = 32;  // the game's status bar at the top

/// What becomes of the status bar.
enum class Hud : uint8_t { kKeep, kMask, kCrop };

/// Of "keep", "mask" and "crop"; nothing for another name.
std::optional<Hud> HudFromName(std::string_view name);

struct FrameSpec {
  int height = 84;
  int width = 84;
  bool gray = true;
  bool area = true;  // false: nearest neighbour
  Hud hud = Hud::kKeep;
};

/// Weights of one axis of an area resize; see the top of the file.
struct AxisWeights {
  int in_units = 1;  // both after division by the greatest common divisor
  int out_units = 1;
  int taps = 1;                   // most source pixels under one output pixel
  std::vector<int> first;         // (out,) first source pixel
  std::vector<uint16_t> weights;  // (out, taps) zero beyond the last one

  AxisWeights() = default;
  AxisWeights(int in, int out);
};

/// Immutable and shared: turns pictures into frames of one FrameSpec.
class FrameMaker {
 public:
  /// Throws std::invalid_argument on sizes outside 1..1024, on an area resize
  /// that would enlarge, and on a path that this machine lacks.
  explicit FrameMaker(const FrameSpec& spec, Path path = BestPath());

  int channels() const { return spec_.gray ? 1 : 3; }
  /// channels x height x width.
  size_t frame_bytes() const {
    return static_cast<size_t>(channels()) * spec_.height * spec_.width;
  }
  /// The path taken, which for unusual sizes is kScalar.
  Path path() const { return path_; }

  /// `indices` and `previous` are (240, 256) palette indices 0-63; `previous`
  /// may be null, else the brighter value of each pixel counts (per channel).
  /// Writes frame_bytes() bytes, channels first.
  void Make(const uint8_t* indices, const uint8_t* previous,
            uint8_t* out) const noexcept;

 private:
  static constexpr int kMagicBits = 40;    // of magic_
  static constexpr int kMagic32Bits = 24;  // of magic32_
  static constexpr int kGroup = 8;         // output columns that share a window
  static constexpr int kWindow = 32;       // source columns in one
  static constexpr int kTaps = 4;  // source columns of one output at a time

  void PlanFast(Path path);
  bool PlanColumns();
  void Plane(const uint8_t* lut, const uint8_t* indices,
             const uint8_t* previous, uint8_t* out) const noexcept;
  // area_scalar.cc
  void AreaScalar(const uint8_t* lut, const uint8_t* indices,
                  const uint8_t* previous, uint8_t* out) const noexcept;
  // area_x86.cc; elsewhere they are AreaScalar.
  void AreaAvx2(const uint8_t* lut, const uint8_t* indices,
                const uint8_t* previous, uint8_t* out) const noexcept;
  void AreaAvx512(const uint8_t* lut, const uint8_t* indices,
                  const uint8_t* previous, uint8_t* out) const noexcept;
  void Nearest(const uint8_t* lut, const uint8_t* indices,
               const uint8_t* previous, uint8_t* out) const noexcept;

  FrameSpec spec_;
  Path path_ = Path::kScalar;
  int top_ = 0;         // first source row that is used (crop)
  int black_rows_ = 0;  // source rows above this one count as black (mask)
  std::array<std::array<uint8_t, 64>, 3> luts_{};
  std::vector<int> nearest_rows_, nearest_columns_;

  // Area: the two axes, and division by in_units x in_units as a product.
  AxisWeights rows_, columns_;
  uint32_t half_ = 0;
  uint64_t magic_ = 0;  // x / d == x * magic_ >> 40 for x < 2^24

  // The vector paths: (x >> shift_) * magic32_ >> 24, pairs of row weights,
  // and for every 8 output columns the sums under them with their weights.
  int shift_ = 0;
  uint32_t magic32_ = 0;
  int pairs_ = 0;                    // row pairs per output row
  std::vector<uint16_t> row_pairs_;  // (height, pairs_): weights of 2 rows
  int groups_ = 0;                   // of 8 output columns
  int passes_ = 0;                   // of 4 taps each
  std::vector<int> window_;          // (groups_,) first column
  // (groups_, passes_, 8 outputs, 4 taps): column - window, and its weight.
  std::vector<uint16_t> window_index_;
  std::vector<int16_t> window_weight_;
};

}  // namespace preprocess
