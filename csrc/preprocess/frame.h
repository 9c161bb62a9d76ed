// Turns a picture into one frame of an observation: converts colours to grey or
// RGB, takes the maximum of two pictures (optional), hides the status bar, and
// resizes. Of the console it uses only the palette. The arithmetic is integer,
// so results are equal on every machine and code path.
//
// A picture is passed as a whole, as palette indices (Make), or in lines of
// brightness while it is drawn, one plane per channel (MakeRows): a row of the
// frame is made as soon as the last line under it is drawn.
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

#include "cpu/path.h"

namespace preprocess {

using cpu::Path;

/// Those with separate code.
inline constexpr Path kPaths[] = {Path::kScalar, Path::kNeon, Path::kAvx2,
                                  Path::kAvx512Vbmi};

constexpr int kSourceHeight = 240;
constexpr int kSourceWidth = 256;
constexpr int kSourcePixels = kSourceHeight * kSourceWidth;
constexpr int kHudRows = 32;  // the game's status bar at the top

/// Bytes from one line of brightness to the next: 256 pixels, and the free
/// space that drawing needs.
constexpr int kLineStride = 320;
/// About how many lines a call of MakeRows gets; at most eight more.
constexpr int kLinesAtOnce = 48;
/// The largest FrameMaker::lines_kept(): enough for any picture.
constexpr int kMostLinesKept = 256;

/// The last lines of a picture, in planes: line y of plane c is at
/// first + c * plane_bytes + (y & mask) * kLineStride.
struct Lines {
  const uint8_t* first;
  size_t plane_bytes;
  unsigned mask;
};

/// How the status bar is treated.
enum class Hud : uint8_t { kKeep, kMask, kCrop };

/// Returns the value of "keep", "mask" or "crop"; nothing for another name.
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
  explicit FrameMaker(const FrameSpec& spec, Path path = cpu::Best(kPaths));

  int channels() const { return spec_.gray ? 1 : 3; }
  /// Bytes of a frame: channels x height x width.
  size_t frame_bytes() const {
    return static_cast<size_t>(channels()) * spec_.height * spec_.width;
  }
  /// The path that is used; for unusual sizes it is kScalar.
  Path path() const { return path_; }

  /// `indices` and `previous` are (240, 256) palette indices 0-63. `previous`
  /// may be null; otherwise the brighter value of each pixel is used (per
  /// channel). Writes frame_bytes() bytes, channels first.
  void Make(const uint8_t* indices, const uint8_t* previous,
            uint8_t* out) const noexcept;

  /// (channels, 64): the brightness of each palette index.
  const uint8_t* colours() const { return luts_[0].data(); }
  int height() const { return spec_.height; }
  /// The lines [begin, end) of a picture that change a row of the frame.
  struct Range {
    int begin, end;
  };
  Range LinesUnder(int row) const { return lines_under_[row]; }
  /// How many lines must be kept for MakeRows, a power of two.
  int lines_kept() const { return lines_kept_; }
  /// Makes the rows [row, end) in the frame at `out`.
  void MakeRows(int row, int end, const Lines& lines,
                uint8_t* out) const noexcept;
  /// Copies these rows from another frame, which may be the same.
  void CopyRows(int row, int end, const uint8_t* from,
                uint8_t* out) const noexcept;

 private:
  static constexpr int kMagicBits = 40;    // of magic_
  static constexpr int kMagic32Bits = 24;  // of magic32_
  static constexpr int kGroup = 8;         // output columns that share a window
  static constexpr int kWindow = 32;       // source columns in one
  static constexpr int kRowsAtOnce = 4;
  static constexpr int kPairWindow = 8;  // in one of two outputs
  static constexpr int kTaps = 4;  // source columns of one output at a time

  void PlanFast(Path path);
  bool PlanColumns();
  void PlanPairs();
  void FindNeededLines();
  const uint8_t* LineUnder(const Lines& lines, int y) const {
    return y < black_rows_ || y >= kSourceHeight
               ? kBlack.data()
               : lines.first + (static_cast<unsigned>(y) & lines.mask) *
                                   size_t{kLineStride};
  }
  /// The first row from `row` on that needs a line from `end` on.
  int RowsBefore(int row, int end) const;
  /// Makes the rows [row, end) of one channel; its frame begins at `out`.
  void MakePlaneRows(int row, int end, const Lines& plane,
                     uint8_t* out) const noexcept;
  void AreaRows(int row, int end, const Lines& plane,
                uint8_t* out) const noexcept;
  void NearestRow(int row, const Lines& plane, uint8_t* out) const noexcept;
  /// Converts a line of palette indices to brightness, or takes the brighter of
  /// two lines.
  void BrightLine(const uint8_t* lut, const uint8_t* indices,
                  const uint8_t* previous, uint8_t* out) const noexcept;
  // Make rows of an area resize from lines of brightness, at most kRowsAtOnce
  // at a time. All sums down the columns precede the sums along a row, so that
  // no load waits for a recent store.
  void AreaRowScalar(int row, const Lines& plane, uint8_t* out) const noexcept;
  static void BrightLineScalar(const uint8_t* lut, const uint8_t* indices,
                               const uint8_t* previous, uint8_t* out) noexcept;
#if defined(CPU_X86)  // area_x86.cc
  void AreaRowsAvx2(int row, int end, const Lines& plane,
                    uint8_t* out) const noexcept;
  void AreaRowsAvx512(int row, int end, const Lines& plane,
                      uint8_t* out) const noexcept;
  void SumLinesAvx2(int row, const Lines& plane, uint16_t* sums) const noexcept;
  void SumColumnsAvx2(const uint16_t* sums, uint8_t* out) const noexcept;
  static void BrightLineAvx2(const uint8_t* lut, const uint8_t* indices,
                             const uint8_t* previous, uint8_t* out) noexcept;
  static void BrightLineAvx512(const uint8_t* lut, const uint8_t* indices,
                               const uint8_t* previous, uint8_t* out) noexcept;
#elif defined(CPU_NEON)  // area_neon.cc
  void AreaRowsNeon(int row, int end, const Lines& plane,
                    uint8_t* out) const noexcept;
  void AreaRowNeon(int row, const Lines& plane, uint8_t* out) const noexcept;
  static void BrightLineNeon(const uint8_t* lut, const uint8_t* indices,
                             const uint8_t* previous, uint8_t* out) noexcept;
#endif

  // The line that replaces a line that is hidden or beyond the picture.
  static constexpr std::array<uint8_t, kSourceWidth> kBlack{};

  FrameSpec spec_;
  Path path_ = Path::kScalar;
  Path lookup_path_ = Path::kScalar;  // of BrightLine, for any size
  int top_ = 0;                       // first source row that is used (crop)
  int black_rows_ = 0;  // source rows above this one count as black (mask)
  std::array<std::array<uint8_t, 64>, 3> luts_{};
  std::vector<int> nearest_rows_, nearest_columns_;
  std::vector<Range> lines_under_;  // (height,)
  int lines_kept_ = 0;

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
  // For 4 pairs of outputs in each group: the first of 8 sums; the byte offsets
  // of the 4 taps of both outputs among these sums; their weights. pair_first_
  // is empty if the taps do not fit.
  std::vector<int> pair_first_;
  std::vector<uint8_t> pair_shuffle_;
  std::vector<int16_t> pair_weight_;
};

}  // namespace preprocess
