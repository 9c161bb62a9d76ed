// The memory in which the PPU draws, the notification of finished lines, and
// what a picture showed, from which the PPU finds what the next one repeats.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nes {

constexpr int kLineWidth = 256;
/// Eight lines are a band; a row of tiles is one if it is not scrolled in y.
constexpr int kBands = 30;

/// The bands of a picture that were one row of tiles without a sprite.
struct Bands {
  struct Band {
    // 48 bytes that are compared: tiles, their palettes, bits of $2000, $2001.
    uint8_t names[36];
    uint8_t attributes[9];  // two bits for two tiles
    uint8_t settings, reserved[2];
    uint8_t scroll;  // pixels, within four tiles
    bool plain;      // of one colour, so that the scroll does not matter
    uint8_t colours[16];
  };
  Band band[kBands];
  uint32_t known = 0;  // a bit for each band
};

/// Memory for the lines of a picture, in one or several planes, and the byte
/// that each of the 64 colours is written as in each plane. If it has fewer
/// lines than a picture, it is a ring, and a derived class takes the lines as
/// they are finished.
class Canvas {
 public:
  static constexpr int kMostPlanes = 4;
  /// The most bytes written beside a line, on each side.
  static constexpr int kMargin = 8;

  virtual ~Canvas() = default;

  /// Called when the lines [begin, end) are complete, at most eight at a time,
  /// or when none of them is wanted.
  virtual void Finished(int /*begin*/, int /*end*/) {}

  /// Called before the lines of these bands are drawn, if `before` is set: they
  /// are as in the picture before. The canvas may then want fewer lines.
  virtual void Repeated(uint32_t /*bands*/) {}

  uint8_t* at(int plane, int line) const {
    return lines + static_cast<size_t>(plane) * plane_bytes +
           (static_cast<unsigned>(line) & line_mask) * stride;
  }

  /// The byte that a colour is written as.
  uint8_t Write(int plane, uint8_t colour) const {
    return colours == nullptr ? colour : colours[plane * 64 + colour];
  }

  uint8_t* lines = nullptr;  // line 0 of plane 0, its first pixel
  size_t stride = kLineWidth;
  unsigned line_mask = 255;  // number of kept lines, a power of two, minus 1
  size_t plane_bytes = 0;
  int planes = 1;
  /// Whether kMargin bytes on both sides of each line may be overwritten.
  bool has_margins = false;
  /// (planes, 64): a byte for each colour; nullptr: the number of the colour.
  const uint8_t* colours = nullptr;
  /// (240,): the lines that are wanted; nullptr: all.
  const bool* wanted = nullptr;
  /// The picture before, replaced by this one while it is drawn; or nullptr.
  Bands* before = nullptr;
};

}  // namespace nes
