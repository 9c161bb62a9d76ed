// Catching up, predictions and registers; see ppu.h.
#include "nes/ppu.h"

#include <algorithm>
#include <cstring>

namespace nes {
namespace {

// Events of a frame, in dots from the start of line 241.
constexpr uint32_t kVblankRises = 1;
constexpr uint32_t kPreRender = DotsAfterVblank(kPreRenderLine);
constexpr uint32_t kFlagsFall = kPreRender + 1;
constexpr uint32_t kCopyX = kPreRender + 257;
constexpr uint32_t kCopyY = kPreRender + 304;
constexpr uint32_t kSkipDecided = kPreRender + 339;
// One less if a dot is skipped.
constexpr uint32_t kFirstLine = DotsAfterVblank(kLinesPerFrame);
// Dots within a line.
constexpr uint32_t kStepY = 256;
constexpr uint32_t kLineCopyX = 257;
constexpr uint32_t kEvaluationBegins = 65;
// Dots from x to the dot at which a program can read a hit in that pixel, which
// is drawn in dot x + 1; in nes-py there is no delay.
constexpr uint32_t kHitDelay = 2;
constexpr uint32_t kNesPyHitDelay = 1;

constexpr uint32_t kNone = ~uint32_t{0};

constexpr uint8_t kVblank = 0x80;
constexpr uint8_t kHit = 0x40;
constexpr uint8_t kSpriteOverflow = 0x20;

// An undriven register bus keeps its bits for about 0.6 s (NESdev "Open bus").
constexpr uint64_t kLatchCycles = 1'073'000;

constexpr uint16_t StepCoarseX(uint16_t v, unsigned tiles) {
  const unsigned coarse = (v & 31u) + tiles;
  const unsigned flip = coarse & 32 ? 0x0400 : 0;
  return static_cast<uint16_t>(((v & ~31u) | (coarse & 31)) ^ flip);
}

}  // namespace

Ppu::Ppu(const Cartridge& cartridge, PpuState* state, Timing timing)
    : s_(*state),
      chr_(cartridge.chr()),
      tiles_(cartridge.tiles()),
      vertical_mirroring_(cartridge.mirroring() == Mirroring::kVertical),
      nes_py_(timing == Timing::kNesPy) {
  if (cartridge.has_chr_ram()) {
    chr_ram_.resize(8192);
    chr_ram_tiles_.resize(512 * kTileBytes);
    chr_ = chr_ram_.data();
    tiles_ = chr_ram_tiles_.data();
  }
}

void Ppu::PowerOn() {
  s_ = {};
  s_.nmi_dot = kNever;
  s_.position = kFirstLine;
  ForgetPredictions();
}

void Ppu::PowerOnAsNesPy(uint64_t dot) {
  s_.position = kPreRender;
  s_.frame_dot = dot - 2 - kPreRender;
  s_.mask = 0x1E;
}

void Ppu::Reset() {
  s_.ctrl = s_.mask = 0;
  s_.w = s_.fine_x = s_.read_buffer = 0;
  s_.t = 0;
  s_.nmi_dot = kNever;
  ForgetPredictions();
}

void Ppu::ForgetPredictions() {
  hit_known_ = overflow_known_ = sprites_known_ = false;
  colours_known_ = row_known_ = false;
  if (!chr_ram_.empty()) DecodeTiles(chr_ram_.data(), chr_ram_tiles_.data());
}

// --- Time -------------------------------------------------------------------

uint32_t Ppu::DotSkipped() const {
  if (s_.position > kSkipDecided) return s_.dot_skipped;
  return s_.odd_frame && Rendering();
}

uint32_t Ppu::FrameDots() const { return kDotsPerFrame - DotSkipped(); }
uint32_t Ppu::Line0() const { return kFirstLine - DotSkipped(); }
Ppu::Place Ppu::Now() const {
  const uint32_t line0 = Line0();
  if (s_.position < line0) return {kVisibleLines, 0};
  return {(s_.position - line0) / kDotsPerLine,
          (s_.position - line0) % kDotsPerLine};
}

void Ppu::CatchUp(uint64_t dot) {
  // Nothing happens in the vertical blank, where most registers are written.
  if (dot < s_.frame_dot + s_.position) return;
  if (s_.position > kVblankRises && dot < s_.frame_dot + kFlagsFall) {
    s_.position = static_cast<uint32_t>(dot + 1 - s_.frame_dot);
    return;
  }
  while (s_.frame_dot + s_.position <= dot) {
    const uint64_t target = dot + 1 - s_.frame_dot;
    const uint32_t frame = FrameDots();
    RunTo(static_cast<uint32_t>(std::min<uint64_t>(target, frame)));
    if (s_.position < frame) return;
    s_.frame_dot += frame;
    s_.position = 0;
    s_.odd_frame ^= 1;
    s_.dot_skipped = 0;
    s_.hide_vblank = 0;
    hit_known_ = overflow_known_ = false;
  }
}

void Ppu::RaiseVblank() {
  if (s_.hide_vblank) return;
  s_.status |= kVblank;
  if (s_.ctrl & 0x80) s_.nmi_dot = s_.frame_dot + kVblankRises;
}

// Runs the dots [position, stop) of this frame; all registers are constant over
// them.
void Ppu::RunTo(uint32_t stop) {
  const uint32_t from = s_.position;
  const auto passes = [=](uint32_t event) {
    return from <= event && event < stop;
  };
  const uint32_t line0 = Line0();
  const uint32_t lines_end = line0 + kVisibleLines * kDotsPerLine;
  if (from < kFirstLine) {
    if (passes(kVblankRises)) RaiseVblank();
    if (passes(kFlagsFall)) s_.status = 0;
    if (passes(kSkipDecided)) s_.dot_skipped = s_.odd_frame && Rendering();
  }
  if (stop > line0 && from < lines_end) {
    // Both are computed from the registers before the lines run.
    if (!(s_.status & kHit)) {
      if (!hit_known_) hit_ = PredictHit();
      hit_known_ = true;
      if (hit_ < stop) s_.status |= kHit;
    }
    if (!(s_.status & kSpriteOverflow)) {
      if (!overflow_known_) overflow_ = PredictOverflow();
      overflow_known_ = true;
      if (overflow_ < stop) s_.status |= kSpriteOverflow;
    }
  }
  if (Rendering()) {
    if (passes(kCopyX)) CopyX(&s_.v);
    if (passes(kCopyY)) {
      s_.v = static_cast<uint16_t>((s_.v & 0x041F) | (s_.t & ~0x041F));
    }
  }
  if (stop > line0 && from < lines_end) {
    RunVisibleDots(std::max(from, line0) - line0,
                   std::min(stop, lines_end) - line0);
    if (nes_py_ && stop >= lines_end) FindWrapped();
  }
  s_.position = stop;
}

// Dots [from, to) of the visible lines, counted from line 0, dot 0.
void Ppu::RunVisibleDots(uint32_t from, uint32_t to) {
  while (from < to) {
    const auto line = static_cast<int>(from / kDotsPerLine);
    const uint32_t dot = from % kDotsPerLine;
    if (dot == 0 && to - from >= kDotsPerLine) {
      const uint32_t lines = (to - from) / kDotsPerLine;
      RunLines(line, static_cast<int>(lines));
      from += lines * kDotsPerLine;
      continue;
    }
    const uint32_t end = std::min(kDotsPerLine, dot + (to - from));
    if (canvas_ != nullptr && dot <= kLineWidth && end > kLineWidth) {
      DrawSegment(line, kLineWidth);
    }
    if (Rendering()) {
      if (dot <= kStepY && kStepY < end) IncrementY(&s_.v);
      if (dot <= kLineCopyX && kLineCopyX < end) CopyX(&s_.v);
    }
    from += end - dot;
  }
}

// `lines` whole lines of scrolling: y steps down in each, x is copied.
void Ppu::StepLines(uint16_t* v, int lines) const {
  if (lines == 0) return;
  const int y = (*v >> 5 & 31) * 8 + (*v >> 12);
  if (y >= 240 || lines > 240) {
    // Rows 30 and 31 are attribute bytes read as tiles, with rules of their
    // own.
    for (int i = 0; i < lines; ++i) IncrementY(v);
  } else {
    int next = y + lines;
    unsigned flip = 0;
    if (next >= 240) {
      next -= 240;
      flip = 0x0800;
    }
    *v = static_cast<uint16_t>(((*v & 0x0C1Fu) ^ flip) | (next & 7u) << 12 |
                               (next >> 3) << 5);
  }
  CopyX(v);
}

void Ppu::IncrementY(uint16_t* v) const {
  unsigned value = *v;
  if ((value & 0x7000) != 0x7000) {
    value += 0x1000;
  } else {
    value &= 0x0FFF;
    const unsigned row = value >> 5 & 31;
    if (row == 29) {
      value = (value & ~0x03E0u) ^ 0x0800;
    } else if (row == 31) {
      value &= ~0x03E0u;
    } else {
      value += 0x20;
    }
  }
  *v = static_cast<uint16_t>(value);
}

// --- Predictions ------------------------------------------------------------

uint64_t Ppu::NextHitChangeDot() {
  if (s_.status & kHit) {
    // In the vertical blank the flags fall later in this frame. After the fall,
    // a flag that rises stays set until the next frame, later than any event of
    // this frame.
    return s_.position <= kFlagsFall ? s_.frame_dot + kFlagsFall : kNever;
  }
  if (!hit_known_) hit_ = PredictHit();
  hit_known_ = true;
  return hit_ == kNone ? kNever : s_.frame_dot + hit_;
}

// The position at which sprite 0 will meet the background if no register is
// written from now on.
uint32_t Ppu::PredictHit() const {
  const int top = s_.oam[0] + 1;
  if ((s_.mask & 0x18) != 0x18 || top > 239) return kNone;
  const uint32_t line0 = Line0();

  // v on line `at`, the first line whose drawing is not finished.
  unsigned v = s_.position <= kCopyX ? s_.t & 0x041F : s_.v & 0x041F;
  v |= s_.position <= kCopyY ? s_.t & 0x7BE0 : s_.v & 0x7BE0;
  int at = 0;
  uint32_t dot = 0;
  if (s_.position > line0) {
    at = static_cast<int>((s_.position - line0) / kDotsPerLine);
    dot = (s_.position - line0) % kDotsPerLine;
    if (dot > kStepY) {
      ++at;
      if (dot == kLineCopyX) v = (v & ~0x041Fu) | (s_.t & 0x041F);
      dot = 0;
    }
  }

  auto line_v = static_cast<uint16_t>(v);
  const int last = std::min(239, s_.oam[0] + SpriteHeight());
  const int begin = std::max(at, top);
  StepLines(&line_v, begin - at);
  for (int line = begin; line <= last; ++line) {
    const int first_x = line == at && dot > 0 ? static_cast<int>(dot) - 1 : 0;
    const uint32_t hit = HitOnLine(line, first_x, line_v);
    if (hit != kNone) {
      return line0 + static_cast<uint32_t>(line) * kDotsPerLine + hit;
    }
    IncrementY(&line_v);
    CopyX(&line_v);
  }
  return kNone;
}

unsigned Ppu::SpriteRowAddress(const uint8_t* sprite, int row) const {
  const int height = SpriteHeight();
  if (sprite[2] & 0x80) row = height - 1 - row;
  if (height == 8) {
    return (s_.ctrl & 0x08u) << 9 | sprite[1] << 4u |
           static_cast<unsigned>(row);
  }
  const unsigned tile = (sprite[1] & 0xFEu) + (row >= 8);
  return (sprite[1] & 1u) << 12 | tile << 4 | (static_cast<unsigned>(row) & 7);
}

uint32_t Ppu::HitOnLine(int line, int first_x, uint16_t v) const {
  const uint8_t* sprite = s_.oam;
  const uint8_t* row =
      TileRow(SpriteRowAddress(sprite, line - sprite[0] - 1), 0);
  uint64_t pixels;
  std::memcpy(&pixels, row, sizeof(pixels));
  if (pixels == 0) return kNone;
  const bool clipped = (s_.mask & 0x06) != 0x06;
  for (int i = 0; i < 8; ++i) {
    const int x = sprite[3] + i;
    if (x >= 255) break;  // the last column never hits
    if (x < first_x || (clipped && x < 8)) continue;
    if (row[sprite[2] & 0x40 ? 7 - i : i] == 0) continue;
    const unsigned at = static_cast<unsigned>(x) + s_.fine_x;
    const uint16_t tile_v = StepCoarseX(v, at >> 3);
    const unsigned tile =
        s_.nametable[NametableIndex(0x2000u | (tile_v & 0x0FFF))];
    const unsigned address =
        (s_.ctrl & 0x10u) << 8 | tile << 4 | (v >> 12 & 7u);
    if (TileRow(address, 0)[at & 7] != 0) {
      return static_cast<uint32_t>(x) + (nes_py_ ? kNesPyHitDelay : kHitDelay);
    }
  }
  return kNone;
}

// nes-py evaluates the sprites of line 240 like those of any other line, but
// has no such line: these sprites are drawn on line 0 of the next frame.
void Ppu::FindWrapped() {
  s_.wrapped = 0;
  // The last eight or sixteen values of y up to 239 have equal high bits. A
  // sprite's four bytes are compared as one number, so that many sprites can be
  // compared at once; matches are rare.
  const uint8_t high_bits = s_.ctrl & 0x20 ? 0xF0 : 0xF8;
  const uint8_t mask_bytes[4] = {high_bits};
  const uint8_t wrapped_bytes[4] = {static_cast<uint8_t>(239 & high_bits)};
  uint32_t sprites[64], mask, wrapped;
  std::memcpy(sprites, s_.oam, sizeof(sprites));
  std::memcpy(&mask, mask_bytes, sizeof(mask));
  std::memcpy(&wrapped, wrapped_bytes, sizeof(wrapped));
  unsigned any = 0;
  for (const uint32_t sprite : sprites) any |= (sprite & mask) == wrapped;
  if (!any) return;
  for (int i = 0, found = 0; i < 64 && found < 8; ++i) {
    if ((sprites[i] & mask) != wrapped) continue;
    s_.wrapped |= uint64_t{1} << i;
    ++found;
  }
}

uint32_t Ppu::PredictOverflow() {
  if (!Rendering()) return kNone;
  if (!sprites_known_) FindSprites();
  if (!sprites_.crowded) return kNone;
  const uint32_t line0 = Line0();
  for (int line = 0; line < 240; ++line) {
    const uint32_t begin = line0 + static_cast<uint32_t>(line) * kDotsPerLine;
    if (begin + kStepY < s_.position || sprites_.count[line] < 8) continue;
    const uint32_t dot = OverflowOnLine(line);
    if (dot != kNone && begin + dot >= s_.position) return begin + dot;
  }
  return kNone;
}

// Sprite evaluation for the line after `line`: two dots for a sprite that is
// out of range, eight for a sprite that is copied. After the eighth sprite the
// search continues with a known hardware fault: it also steps through the
// sprite's bytes (NESdev "PPU sprite evaluation").
uint32_t Ppu::OverflowOnLine(int line) const {
  const int height = SpriteHeight();
  const auto in_range = [&](unsigned at) {
    const int row = line - s_.oam[at & 0xFF];
    return row >= 0 && row < height;
  };
  uint32_t dot = kEvaluationBegins;
  unsigned sprite = 0;
  for (int found = 0; found < 8; ++sprite) {
    if (sprite == 64) return kNone;
    const bool copied = in_range(sprite * 4);
    found += copied;
    dot += copied ? 8 : 2;
  }
  for (unsigned byte = 0; sprite < 64; ++sprite, byte = (byte + 1) & 3) {
    if (in_range(sprite * 4 + byte)) return dot + 1;
    dot += 2;
  }
  return kNone;
}

// --- Registers --------------------------------------------------------------

uint8_t Ppu::ReadRegister(unsigned address, uint64_t cycle) {
  CatchUp(DotOfAccess(cycle));
  switch (address & 7) {
    case 2:
      return ReadStatus(cycle);
    case 4:
      DriveLatch(s_.oam[s_.oam_addr], 0xFF, cycle);
      return s_.io_latch;
    case 7:
      return ReadData(cycle);
    default:
      return LatchAt(cycle);
  }
}

uint8_t Ppu::ReadStatus(uint64_t cycle) {
  const uint64_t since = DotOfAccess(cycle) - s_.frame_dot;
  // If the register is read just before the flag rises, the flag does not rise.
  // If it is read as the flag rises, or a dot later, the flag reads as set, but
  // the NMI does not occur. (nes-py does neither.)
  if (!nes_py_) {
    if (since == kVblankRises - 1) s_.hide_vblank = 1;
    if (since <= kVblankRises + 1 && s_.nmi_dot >= s_.frame_dot) {
      s_.nmi_dot = kNever;
    }
  }
  DriveLatch(s_.status, 0xE0, cycle);
  s_.status &= static_cast<uint8_t>(~kVblank);
  s_.w = 0;
  return LatchAt(cycle);
}

uint8_t Ppu::ReadData(uint64_t cycle) {
  const unsigned address = s_.v & 0x3FFF;
  DrawSoFar();
  if (address >= 0x3F00) {
    const uint8_t visible = s_.mask & 0x01 ? 0x30 : 0x3F;
    DriveLatch(s_.palette[PaletteIndex(address)] & visible, 0x3F, cycle);
    s_.read_buffer = ReadVideo(address - 0x1000);
  } else {
    DriveLatch(s_.read_buffer, 0xFF, cycle);
    s_.read_buffer = ReadVideo(address);
  }
  IncrementVramAddress();
  hit_known_ = false;
  return LatchAt(cycle);
}

void Ppu::WriteRegister(unsigned address, uint8_t value, uint64_t cycle) {
  const uint64_t dot = DotOfAccess(cycle);
  CatchUp(dot);
  DriveLatch(value, 0xFF, cycle);
  hit_known_ = false;
  switch (address & 7) {
    case 0:
      if ((s_.ctrl ^ value) & 0x38) DrawSoFar();
      WriteControl(value, dot);
      break;
    case 1:
      if (s_.mask != value) DrawSoFar();
      if ((s_.mask ^ value) & 0x01) colours_known_ = false;
      s_.mask = value;
      overflow_known_ = false;
      break;
    case 3:
      s_.oam_addr = value;
      break;
    case 4:
      DrawSoFar();
      // The unused bits of the attribute byte do not exist.
      s_.oam[s_.oam_addr] = (s_.oam_addr & 3) == 2 ? value & 0xE3 : value;
      ++s_.oam_addr;
      sprites_known_ = overflow_known_ = false;
      break;
    case 5:
      if (s_.w == 0) {
        s_.t = static_cast<uint16_t>((s_.t & ~0x001F) | value >> 3);
        if (s_.fine_x != (value & 7)) DrawSoFar();
        SetFineX(value & 7);
      } else {
        s_.t = static_cast<uint16_t>((s_.t & ~0x73E0) | (value & 7) << 12 |
                                     (value & 0xF8) << 2);
      }
      s_.w ^= 1;
      break;
    case 6:
      if (s_.w == 0) {
        s_.t = static_cast<uint16_t>((s_.t & 0x00FF) | (value & 0x3F) << 8);
      } else {
        s_.t = static_cast<uint16_t>((s_.t & 0xFF00) | value);
        DrawSoFar();
        SetAddress(s_.t);
      }
      s_.w ^= 1;
      break;
    case 7:
      DrawSoFar();
      WriteData(value);
      break;
    default:
      break;
  }
}

void Ppu::WriteControl(uint8_t value, uint64_t dot) {
  const uint8_t changed = s_.ctrl ^ value;
  s_.ctrl = value;
  s_.t = static_cast<uint16_t>((s_.t & ~0x0C00) | (value & 3) << 10);
  if (changed & 0x20) sprites_known_ = overflow_known_ = false;
  if (!(changed & 0x80)) return;
  if (nes_py_) return;  // it requests an NMI only when the flag rises
  if (value & 0x80) {
    const bool falling = dot + 1 == s_.frame_dot + kFlagsFall;
    if ((s_.status & kVblank) && !falling) s_.nmi_dot = dot;
  } else if (s_.nmi_dot != kNever && dot <= s_.nmi_dot + 1) {
    s_.nmi_dot = kNever;  // withdrawn before the CPU polled it
  }
}

// This PPU finds a tile by (x + fine x) / 8. nes-py steps to the next tile
// after each pixel with (x + fine x) % 8 == 7, so a change in the middle of a
// line may skip a tile: move v by that tile.
void Ppu::SetFineX(uint8_t fine_x) {
  const uint8_t before = s_.fine_x;
  s_.fine_x = fine_x;
  if (!nes_py_ || !Rendering()) return;
  const auto [line, dot] = Now();
  if (line >= kVisibleLines || dot > kStepY) return;
  const uint32_t x = std::max(dot, 1u) - 1;
  s_.v = StepCoarseX(s_.v, 64 + (x + before) / 8 - (x + fine_x) / 8);
}

// In the middle of a line, v is the address of the line's first tile here, but
// the program sets the address of the next tile: step back from the next tile
// to the first.
void Ppu::SetAddress(uint16_t address) {
  s_.v = address;
  if (!Rendering()) return;
  const auto [line, dot] = Now();
  if (line >= kVisibleLines || dot > kStepY) return;
  s_.v = StepCoarseX(address, 64 - (dot / 8 + 2));
}

void Ppu::IncrementVramAddress() {
  const bool drawing = Rendering() && s_.position >= kPreRender &&
                       s_.position < Line0() + kVisibleLines * kDotsPerLine;
  if (drawing) {
    s_.v = StepCoarseX(s_.v, 1);
    IncrementY(&s_.v);
  } else {
    s_.v = (s_.v + (s_.ctrl & 0x04 ? 32 : 1)) & 0x7FFF;
  }
}

void Ppu::WriteData(uint8_t value) {
  const unsigned address = s_.v & 0x3FFF;
  if (address >= 0x3F00) {
    s_.palette[PaletteIndex(address)] = value & 0x3F;
    colours_known_ = false;
  } else if (address >= 0x2000) {
    s_.nametable[NametableIndex(address)] = value;
    row_known_ = false;
  } else if (!chr_ram_.empty()) {
    chr_ram_[address] = value;
    const unsigned tile = address >> 4;
    DecodeTileRow(&chr_ram_[tile * 16], static_cast<int>(address & 7),
                  &chr_ram_tiles_[tile * kTileBytes]);
  }
  IncrementVramAddress();
}

void Ppu::WriteOam(const uint8_t* page, uint64_t cycle) {
  CatchUp(DotOfAccess(cycle));
  DrawSoFar();
  const unsigned first = 256u - s_.oam_addr;  // bytes up to the wrap
  std::memcpy(s_.oam + s_.oam_addr, page, first);
  std::memcpy(s_.oam, page + first, 256 - first);
  for (int i = 0; i < 256; i += 8) {
    constexpr uint8_t kBits[8] = {0xFF, 0xFF, 0xE3, 0xFF,
                                  0xFF, 0xFF, 0xE3, 0xFF};
    Store8(s_.oam + i, Load8(s_.oam + i) & Load8(kBits));
  }
  hit_known_ = overflow_known_ = sprites_known_ = false;
}

uint8_t Ppu::ReadVideo(unsigned address) const {
  return address < 0x2000 ? chr_[address]
                          : s_.nametable[NametableIndex(address)];
}

unsigned Ppu::NametableIndex(unsigned address) const {
  return vertical_mirroring_ ? address & (kNametableBytes - 1)
                             : (address & 0x03FF) | (address >> 1 & 0x0400);
}

// $3F10, $3F14, $3F18 and $3F1C are $3F00, $3F04, $3F08 and $3F0C.
unsigned Ppu::PaletteIndex(unsigned address) {
  return address & ((address & 3) == 0 ? 0x0Fu : 0x1Fu);
}

void Ppu::DriveLatch(uint8_t value, uint8_t bits, uint64_t cycle) {
  s_.io_latch = static_cast<uint8_t>((LatchAt(cycle) & ~bits) | (value & bits));
  if (bits & 0x1F) s_.latch_cycle[0] = cycle;
  if (bits & 0x20) s_.latch_cycle[1] = cycle;
  if (bits & 0xC0) s_.latch_cycle[2] = cycle;
}

uint8_t Ppu::LatchAt(uint64_t cycle) const {
  uint8_t kept = 0;
  if (cycle - s_.latch_cycle[0] < kLatchCycles) kept |= 0x1F;
  if (cycle - s_.latch_cycle[1] < kLatchCycles) kept |= 0x20;
  if (cycle - s_.latch_cycle[2] < kLatchCycles) kept |= 0xC0;
  return s_.io_latch & kept;
}

}  // namespace nes
