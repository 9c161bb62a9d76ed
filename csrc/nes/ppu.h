// The 2C02 picture unit, run lazily: nothing happens until the program accesses
// a register or the frame ends; then everything up to that dot is run. Source:
// NESdev "PPU rendering", "PPU scrolling", "PPU frame timing".
//
// One frame, counted from the vertical blank (timing.h has the numbers):
//
//   line 241            dot 1       VBL flag rises, NMI
//   lines 241-260                   vertical blank
//   line 261 (pre-render)  dot 1    VBL, hit and overflow flags fall
//                          257, 304 scroll copied from t: x, then y
//                          339      one dot dropped in odd frames if rendering
//   lines 0-239            1-256    one pixel per dot
//                          256, 257 v: y steps down, x copied from t
//   line 240                        idle
//
// Lines that show the same row of tiles are drawn together if no register
// access interrupts them. A write in the middle of a line that changes what is
// shown first draws the part up to its dot. Approximation: a change affects the
// two tiles that real hardware has already fetched, so up to 16 pixels after a
// mid-line write may differ.
//
// The sprite-0 hit and the overflow flag are predicted: their times are
// computed from registers and memory when needed, and discarded when registers
// or memory are written. They never depend on drawing, so a frame without
// pixels leaves the same state behind.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "nes/canvas.h"
#include "nes/cartridge.h"
#include "nes/simd.h"
#include "nes/state.h"
#include "nes/timing.h"

namespace nes {

inline uint64_t Load8(const uint8_t* from) {
  uint64_t bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  return bytes;
}

inline void Store8(uint8_t* to, uint64_t bytes) {
  std::memcpy(to, &bytes, sizeof(bytes));
}

class Ppu {
 public:
  Ppu(const Cartridge& cartridge, PpuState* state, Timing timing);

  void PowerOn();
  void Reset();
  /// To be called after PowerOn: sets the state in which nes-py begins,
  /// rendering on the pre-render line, with `dot` the third dot to be run.
  void PowerOnAsNesPy(uint64_t dot);

  uint8_t ReadRegister(unsigned address, uint64_t cycle);
  void WriteRegister(unsigned address, uint8_t value, uint64_t cycle);
  /// OAM DMA: 256 bytes written through $2004.
  void WriteOam(const uint8_t* page, uint64_t cycle);

  /// Brings the state to `dot`: every event at or before it has happened.
  void CatchUp(uint64_t dot);

  /// Sets the canvas for the next frames; nullptr: nothing is drawn.
  void set_output(Canvas* canvas) {
    canvas_ = canvas;
    colours_known_ = false;
    if (canvas != nullptr) drawn_ = PixelsSoFar(Now());
  }
  /// To be called when a frame ends within a line: draws its pixels up to now.
  void DrawSoFar();

  /// Dot at which the VBL flag of the next frame will rise.
  uint64_t NextVblankDot() const { return s_.frame_dot + FrameDots() + 1; }
  /// First dot at which the hit flag differs from its current value, or kNever.
  uint64_t NextHitChangeDot();

  /// To be called after other code has replaced the state.
  void ForgetPredictions();

  /// 8 KiB of CHR RAM; empty for cartridges with CHR ROM.
  std::vector<uint8_t>& chr_ram() { return chr_ram_; }
  const std::vector<uint8_t>& chr_ram() const { return chr_ram_; }

 private:
  // The sprites that the evaluation on each line finds for the next line.
  struct LineSprites {
    uint8_t count[256 + 16];  // all sprites in range; those from 240 on unused
    uint64_t in_row[32];  // those that touch each eight lines of the picture
    bool crowded;         // some line has eight or more
  };

  bool Rendering() const { return s_.mask & 0x18; }
  uint32_t DotSkipped() const;
  uint32_t FrameDots() const;
  uint32_t Line0() const;
  /// The dot that runs next; a line of kVisibleLines or more: it is not seen.
  struct Place {
    uint32_t line, dot;
  };
  Place Now() const;
  int SpriteHeight() const { return s_.ctrl & 0x20 ? 16 : 8; }

  void RunTo(uint32_t stop);
  void RaiseVblank();
  void RunVisibleDots(uint32_t from, uint32_t to);
  void StepLines(uint16_t* v, int lines) const;
  void IncrementY(uint16_t* v) const;
  void CopyX(uint16_t* v) const {
    *v = static_cast<uint16_t>((*v & ~0x041F) | (s_.t & 0x041F));
  }

  uint32_t PredictHit() const;
  uint32_t HitOnLine(int line, int first_x, uint16_t v) const;
  uint32_t PredictOverflow();
  uint32_t OverflowOnLine(int line) const;
  void FindSprites();

  // ppu_draw.cc
  struct LinesOut;
  void RunLines(int line, int lines);
  void FindRepeated(int line, int end);
  bool IsRepeated(int band, bool was_known);
  static bool IsSame(const Bands::Band& now, const Bands::Band& last);
  bool IsPlain(const Bands::Band& band) const;
  void DrawLines(int line, int count);
  /// Of the line at a place; 0 at its end, too.
  static int PixelsSoFar(const Place& now);
  void DrawSegment(int line, int x_end);
  void DrawAndCopy(int line, int count, int x_begin, int x_end);
  void DrawTo(const LinesOut& out, int line, int count);
  void DrawBackground(uint8_t* const* lines, int count, const uint8_t* colours);
  void FillLines(uint8_t* const* lines, int count, int plane) const;
  void FindColours();
  void FindRowTiles();
  void ReadRow(uint8_t* names, uint8_t* attributes) const;
  void DrawSprites(int line, int count, const LinesOut& out);
  uint64_t SpritesDrawn(int line) const;
  void DrawWrappedSprites(const LinesOut& out);
  void DrawSprite(const uint8_t* sprite, const uint8_t* row, int step, int k,
                  int end, const LinesOut& out);
  uint64_t PutBehind(uint64_t shown, unsigned x, int k, int plane) const;
  uint64_t BackgroundEntries(unsigned x, int row) const;

  void FindWrapped();
  void SetFineX(uint8_t fine_x);
  const uint8_t* TileRow(unsigned address, unsigned attribute) const {
    return tiles_ + (address >> 4) * kTileBytes +
           attribute * kTileAttributeBytes + (address & 7) * 8;
  }
  unsigned SpriteRowAddress(const uint8_t* sprite, int row) const;

  uint8_t ReadStatus(uint64_t cycle);
  uint8_t ReadData(uint64_t cycle);
  void WriteControl(uint8_t value, uint64_t dot);
  void WriteData(uint8_t value);
  void IncrementVramAddress();
  void SetAddress(uint16_t address);
  uint8_t ReadVideo(unsigned address) const;
  unsigned NametableIndex(unsigned address) const;
  static unsigned PaletteIndex(unsigned address);
  void DriveLatch(uint8_t value, uint8_t bits, uint64_t cycle);
  uint8_t LatchAt(uint64_t cycle) const;

  PpuState& s_;
  const uint8_t* chr_;
  const uint8_t* tiles_;
  bool vertical_mirroring_;
  const bool nes_py_;  // Timing::kNesPy
  std::vector<uint8_t> chr_ram_;
  std::vector<uint8_t> chr_ram_tiles_;
  Canvas* canvas_ = nullptr;
  int drawn_ = 0;  // pixels of a line that has begun, with a canvas

  // Derived from the state, discarded when it changes, never saved.
  bool hit_known_ = false;
  bool overflow_known_ = false;
  bool sprites_known_ = false;
  bool colours_known_ = false;
  bool row_known_ = false;
  uint32_t hit_ = 0;
  uint32_t overflow_ = 0;
  uint32_t row_key_ = 0;
  // The colour of each palette entry, and the byte it is written as in each
  // plane.
  uint8_t entries_[32] = {};
  uint8_t colours_[Canvas::kMostPlanes][32] = {};
  // The current row of tiles: the offset of each decoded tile from row_base_,
  // for nine groups of four columns; row_first_ is the first visible tile.
  const uint8_t* row_base_ = nullptr;
  unsigned row_first_ = 0;
  uint16_t row_tiles_[36] = {};
  LineSprites sprites_ = {};
};

}  // namespace nes
