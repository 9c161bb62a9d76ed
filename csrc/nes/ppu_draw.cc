// Draws rows of tiles, with sprites over them, onto a canvas; see ppu.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "nes/opcodes.h"
#include "nes/ppu.h"

#if defined(CPU_X86)
#include <emmintrin.h>
#endif

namespace nes {
namespace {

constexpr uint64_t kOnes = 0x0101010101010101u;
constexpr uint8_t kBehind = 0x20;
constexpr uint8_t kFlipped = 0x40;

// Bytes of a line with the free space that DrawTiles needs.
constexpr int kLineWithMargins = Canvas::kMargin + simd::kTilesInLine * 8;

// A bit for each of the 64 sprites whose y is below 240.
uint64_t SpritesOnScreen(const uint8_t* oam) {
  uint64_t bits = 0;
#if defined(CPU_X86)
  const __m128i low = _mm_set1_epi32(0xFF), last = _mm_set1_epi8(-17);  // 239
  for (int i = 0; i < 4; ++i) {
    __m128i y[4];
    for (int k = 0; k < 4; ++k) {
      y[k] = _mm_and_si128(
          low, _mm_loadu_si128(
                   reinterpret_cast<const __m128i*>(oam + i * 64 + k * 16)));
    }
    const __m128i all = _mm_packus_epi16(_mm_packs_epi32(y[0], y[1]),
                                         _mm_packs_epi32(y[2], y[3]));
    const int mask =
        _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(all, last), all));
    bits |= static_cast<uint64_t>(mask) << (16 * i);
  }
#else
  for (int i = 0; i < 64; ++i) bits |= uint64_t{oam[i * 4] < 240} << i;
#endif
  return bits;
}

// For two attributes of two bits: the offsets of four tiles, 16 bits each.
constexpr auto kAttributeOffsets = [] {
  std::array<uint64_t, 16> offsets{};
  for (unsigned i = 0; i < 16; ++i) {
    offsets[i] = ((i & 3) | uint64_t{i >> 2} << 32) *
                 (uint64_t{kTileAttributeBytes} * 0x10001);
  }
  return offsets;
}();

// $FF in the byte of every opaque pixel, whose colour, the two low bits of a
// palette entry, is not 0.
constexpr uint64_t OpaqueMask(uint64_t entries) {
  return ((entries | entries >> 1) & kOnes) * 0xFF;
}

// $FF in the bytes, of eight pixels from x on, that are not in the leftmost
// eight of the line.
uint64_t BesideLeftEdge(unsigned x) {
  static constexpr uint8_t kBytes[16] = {
      0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
  return Load8(kBytes + std::min(x, 8u));
}

}  // namespace

/// The memory for the lines of a row of tiles.
struct Ppu::LinesOut {
  uint8_t* at[Canvas::kMostPlanes][8];
};

// Runs whole lines; lines that show the same row of tiles are drawn together.
void Ppu::RunLines(int line, int lines) {
  if (canvas_ == nullptr) {
    if (Rendering()) StepLines(&s_.v, lines);
    return;
  }
  const int end = line + lines;
  if (canvas_->before != nullptr) FindRepeated(line, end);
  const bool* wanted = canvas_->wanted;
  while (line < end) {
    int count = end - line;
    if (wanted != nullptr && !wanted[line]) {
      const bool* next = std::find(wanted + line, wanted + end, true);
      count = static_cast<int>(next - wanted) - line;
      canvas_->Finished(line, line + count);
    } else {
      // After this line, x of v is that of t.
      const bool alone = Rendering() && ((s_.v ^ s_.t) & 0x041F) != 0;
      count = alone ? 1 : std::min(count, 8 - (s_.v >> 12 & 7));
      while (wanted != nullptr && !wanted[line + count - 1]) --count;
      DrawLines(line, count);
    }
    if (Rendering()) StepLines(&s_.v, count);
    line += count;
  }
}

// Finds the bands of whole lines that are as in the picture before.
void Ppu::FindRepeated(int line, int end) {
  const uint16_t v = s_.v;
  uint32_t repeated = 0;
  while (line < end) {
    const int band = line / 8;
    const int next = std::min(end, band * 8 + 8);
    const uint32_t bit = 1u << band;
    const bool was_known = canvas_->before->known & bit;
    canvas_->before->known &= ~bit;
    if (next - line == 8 && IsRepeated(band, was_known)) repeated |= bit;
    if (Rendering()) StepLines(&s_.v, next - line);
    line = next;
  }
  s_.v = v;
  if (repeated != 0) canvas_->Repeated(repeated);
}

// Whether a band, which begins at v, is as in the picture before, where it may
// have been known; remembers it for the next picture.
bool Ppu::IsRepeated(int band, bool was_known) {
  // After the first line, x of v is that of t.
  if (!(s_.mask & 0x08) || s_.v >> 12 != 0 || ((s_.v ^ s_.t) & 0x041F) != 0 ||
      !chr_ram_.empty()) {
    return false;
  }
  if (s_.mask & 0x10) {
    if (!sprites_known_) FindSprites();
    if (sprites_.in_row[band] != 0) return false;
  }
  Bands::Band now = {};
  ReadRow(now.names, now.attributes);
  now.settings = static_cast<uint8_t>((s_.mask & 0x0F) | (s_.ctrl & 0x10));
  now.scroll = static_cast<uint8_t>((s_.v & 3) * 8 + s_.fine_x);
  if (!colours_known_) FindColours();
  std::memcpy(now.colours, entries_, sizeof(now.colours));
  Bands::Band& last = canvas_->before->band[band];
  canvas_->before->known |= 1u << band;
  if (was_known && IsSame(now, last)) {
    std::memcpy(last.colours, now.colours, sizeof(now.colours));
    return true;
  }
  now.plain = IsPlain(now);
  last = now;
  return false;
}

// Whether two bands show the same.
bool Ppu::IsSame(const Bands::Band& now, const Bands::Band& last) {
  uint64_t other = 0;
  for (int i = 0; i < 48; i += 8) {
    other |= Load8(now.names + i) ^ Load8(last.names + i);
  }
  if (other != 0 || (now.scroll != last.scroll && !last.plain)) return false;
  const uint8_t *const a = now.colours, *const b = last.colours;
  if (std::memcmp(a, b, sizeof(now.colours)) == 0) return true;
  for (const uint8_t two : now.attributes) {
    for (const int at : {(two & 3) * 4, (two >> 2) * 4}) {
      if (std::memcmp(a + at, b + at, 4) != 0) return false;
    }
  }
  return true;
}

// Whether a band is of one tile, and that of one colour.
bool Ppu::IsPlain(const Bands::Band& band) const {
  const uint8_t name = band.names[0], palettes = band.attributes[0];
  for (const uint8_t other : band.names) {
    if (other != name) return false;
  }
  const uint8_t* tile = tiles_ + ((s_.ctrl & 0x10u) * 16 + name) * kTileBytes;
  for (int i = 1; i < kTileAttributeBytes; ++i) {
    if (tile[i] != tile[0]) return false;
  }
  if (tile[0] == 0) return true;  // transparent
  for (const uint8_t other : band.attributes) {
    if (other != palettes) return false;
  }
  return (palettes & 3) == palettes >> 2;
}

void Ppu::DrawLines(int line, int count) {
  if (!canvas_->has_margins) {
    DrawAndCopy(line, count, 0, kLineWidth);
  } else {
    LinesOut out;
    for (int plane = 0; plane < canvas_->planes; ++plane) {
      for (int k = 0; k < count; ++k) {
        out.at[plane][k] = canvas_->at(plane, line + k);
      }
    }
    DrawTo(out, line, count);
  }
  canvas_->Finished(line, line + count);
}

int Ppu::PixelsSoFar(const Place& now) {
  const bool within =
      now.line < kVisibleLines && now.dot > 0 && now.dot <= kLineWidth;
  return within ? static_cast<int>(now.dot) - 1 : 0;
}

void Ppu::DrawSoFar() {
  if (canvas_ == nullptr) return;
  const Place now = Now();
  const int pixels = PixelsSoFar(now);
  if (pixels != 0) DrawSegment(static_cast<int>(now.line), pixels);
}

// Draws a line from the drawn pixels on. No register that changes it has been
// written since then.
void Ppu::DrawSegment(int line, int x_end) {
  const int x_begin = drawn_;
  drawn_ = x_end % kLineWidth;
  if (x_begin == x_end) return;
  if (canvas_->before != nullptr) canvas_->before->known &= ~(1u << line / 8);
  if (canvas_->wanted == nullptr || canvas_->wanted[line]) {
    DrawAndCopy(line, 1, x_begin, x_end);
  }
  if (x_end == kLineWidth) canvas_->Finished(line, line + 1);
}

// For parts of lines, and for a canvas without free space beside its lines.
void Ppu::DrawAndCopy(int line, int count, int x_begin, int x_end) {
  uint8_t lines[Canvas::kMostPlanes * 8][kLineWithMargins];
  LinesOut out;
  for (int plane = 0; plane < canvas_->planes; ++plane) {
    for (int k = 0; k < count; ++k) {
      out.at[plane][k] = lines[plane * 8 + k] + Canvas::kMargin;
    }
  }
  DrawTo(out, line, count);
  for (int plane = 0; plane < canvas_->planes; ++plane) {
    for (int k = 0; k < count; ++k) {
      std::memcpy(canvas_->at(plane, line + k) + x_begin,
                  out.at[plane][k] + x_begin,
                  static_cast<size_t>(x_end - x_begin));
    }
  }
}

// Draws whole lines of the current row of tiles, from the line that v points to
// on.
void Ppu::DrawTo(const LinesOut& out, int line, int count) {
  const bool background = s_.mask & 0x08;
  if (!colours_known_) FindColours();
  if (background) FindRowTiles();
  for (int plane = 0; plane < canvas_->planes; ++plane) {
    if (background) {
      DrawBackground(out.at[plane], count, colours_[plane]);
    } else {
      FillLines(out.at[plane], count, plane);
    }
  }
  if (!(s_.mask & 0x10)) return;
  if (!sprites_known_) FindSprites();
  DrawSprites(line, count, out);
  if (line == 0 && s_.wrapped != 0) [[unlikely]]
    DrawWrappedSprites(out);
}

void Ppu::FindColours() {
  const uint8_t visible = s_.mask & 0x01 ? 0x30 : 0x3F;
  for (int i = 0; i < 32; ++i)
    entries_[i] = s_.palette[i & 3 ? i : 0] & visible;
  for (int plane = 0; plane < canvas_->planes; ++plane) {
    for (int i = 0; i < 32; ++i) {
      colours_[plane][i] = canvas_->Write(plane, entries_[i]);
    }
  }
  colours_known_ = true;
}

// Draws lines without a background.
void Ppu::FillLines(uint8_t* const* lines, int count, int plane) const {
  uint8_t colour = colours_[plane][0];
  // While v points into the palette and rendering is off, the colour at v is
  // shown.
  if (!Rendering() && !nes_py_ && (s_.v & 0x3F00) == 0x3F00) {
    const uint8_t visible = s_.mask & 0x01 ? 0x30 : 0x3F;
    colour = canvas_->Write(plane, s_.palette[PaletteIndex(s_.v)] & visible);
  }
  for (int k = 0; k < count; ++k) std::memset(lines[k], colour, kLineWidth);
}

void Ppu::DrawBackground(uint8_t* const* lines, int count,
                         const uint8_t* colours) {
  uint8_t unseen[kLineWithMargins];
  const int first = s_.v >> 12 & 7;
  uint8_t* out[8];
  std::fill_n(out, 8, unseen + Canvas::kMargin - s_.fine_x);
  for (int k = 0; k < count; ++k) out[first + k] = lines[k] - s_.fine_x;
  for (int begin = 0; begin < 8; begin += 4) {
    if (begin + 4 <= first || begin >= first + count) continue;
    simd::DrawTiles(row_base_ + begin * 8, row_tiles_ + row_first_, colours,
                    out + begin);
  }
  if (s_.mask & 0x02) return;
  for (int k = 0; k < count; ++k) Store8(lines[k], kOnes * colours[0]);
}

// Finds the tiles of a line, enough for any fine scroll; they are the same for
// the eight lines of a row of tiles.
void Ppu::FindRowTiles() {
  const unsigned table = (s_.ctrl & 0x10u) << 8;
  const uint32_t key = (s_.v & 0x0FFFu) | table << 4;
  if (row_known_ && key == row_key_) return;
  row_key_ = key;
  row_known_ = true;
  row_base_ = tiles_ + (table >> 4) * kTileBytes;
  row_first_ = s_.v & 3u;
  uint8_t names[40], attributes[9];
  ReadRow(names, attributes);
  for (unsigned i = 0; i < 9; ++i) {
    uint64_t four = Load8(names + i * 4) & 0xFFFFFFFF;
    four = (four | four << 16) & 0x0000FFFF0000FFFF;
    four = (four | four << 8) & 0x00FF00FF00FF00FF;  // 16 bits each
    const uint64_t offsets =
        four * kTileBytes + kAttributeOffsets[attributes[i]];
    std::memcpy(row_tiles_ + i * 4, &offsets, sizeof(offsets));
  }
}

// Reads the 36 tiles from column v & 28 on, which may reach into the second
// nametable, and their attributes, two bits for two tiles.
void Ppu::ReadRow(uint8_t* names, uint8_t* attributes) const {
  const unsigned row = s_.v >> 5 & 31, x = s_.v & 28;
  const unsigned shift = (row & 2) << 1;
  uint8_t all_names[64], all_attributes[16];
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned base = (s_.v ^ i << 10) & 0x0C00u;
    const uint8_t* table = s_.nametable + NametableIndex(0x2000u | base);
    std::memcpy(all_names + i * 32, table + row * 32, 32);
    std::memcpy(all_attributes + i * 8, table + 0x3C0 + (row >> 2) * 8, 8);
  }
  std::memcpy(names, all_names + x, 36);
  Store8(attributes, Load8(all_attributes + x / 4) >> shift & kOnes * 15);
  attributes[8] = all_attributes[x / 4 + 8] >> shift & 15;
}

void Ppu::FindSprites() {
  sprites_ = {};
  const auto height = static_cast<unsigned>(SpriteHeight());
  for (uint64_t left = SpritesOnScreen(s_.oam); left != 0; left &= left - 1) {
    const int i = std::countr_zero(left);
    const unsigned y = s_.oam[i * 4];
    for (unsigned line = y; line < y + height; line += 8) {
      uint8_t* const counts = sprites_.count + line;  // one byte per line
      Store8(counts, Load8(counts) + kOnes);
      sprites_.in_row[(line + 1) / 8] |= uint64_t{1} << i;
    }
    sprites_.in_row[(y + height) / 8] |= uint64_t{1} << i;
  }
  uint64_t eight_or_more = 0;  // bit 7 of each byte
  for (int line = 0; line < 240; line += 8) {
    eight_or_more |= Load8(sprites_.count + line) + kOnes * (0x80 - 8);
  }
  sprites_.crowded = eight_or_more & kOnes << 7;
  sprites_known_ = true;
}

// Draws the sprites that the evaluation on the line before each line has found.
void Ppu::DrawSprites(int line, int count, const LinesOut& out) {
  const int end = line + count, height = SpriteHeight();
  uint64_t left = sprites_.in_row[line >> 3] | sprites_.in_row[(end - 1) >> 3];
  // From the last to the first, because earlier sprites cover later ones.
  while (left != 0) {
    const int i = 63 - std::countl_zero(left);
    left ^= uint64_t{1} << i;
    const uint8_t* sprite = s_.oam + i * 4;
    const int step = sprite[2] & 0x80 ? -8 : 8;  // from row to row
    for (int part = 0; part < height; part += 8) {
      const int top = sprite[0] + 1 + part;
      const int first = std::max(line, top), last = std::min(end, top + 8);
      if (first >= last) continue;
      const uint8_t* row =
          TileRow(SpriteRowAddress(sprite, first - top + part), sprite[2] & 3u);
      if (!sprites_.crowded) {
        DrawSprite(sprite, row, step, first - line, last - line, out);
        continue;
      }
      for (int at = first; at < last; ++at, row += step) {
        if (sprites_.count[at - 1] <= 8 || SpritesDrawn(at) >> i & 1) {
          DrawSprite(sprite, row, step, at - line, at - line + 1, out);
        }
      }
    }
  }
}

// The first eight sprites in range of a line, as bits.
uint64_t Ppu::SpritesDrawn(int line) const {
  uint64_t drawn = 0, left = sprites_.in_row[line >> 3];
  for (int found = 0; found < 8 && left != 0; left &= left - 1) {
    const int i = std::countr_zero(left), row = line - 1 - s_.oam[i * 4];
    if (row < 0 || row >= SpriteHeight()) continue;
    drawn |= uint64_t{1} << i;
    ++found;
  }
  return drawn;
}

// Draws rows of a sprite's tile, which have a palette entry in each byte, onto
// the lines [k, end): eight pixels at once, one byte each. A sprite hides later
// sprites even where it is behind the background itself; there the background
// is drawn again.
void Ppu::DrawSprite(const uint8_t* sprite, const uint8_t* row, int step, int k,
                     int end, const LinesOut& out) {
  const unsigned x = sprite[3], attributes = sprite[2];
  const uint64_t seen = s_.mask & 0x04 ? ~uint64_t{0} : BesideLeftEdge(x);
  const int planes = canvas_->planes;
  for (; k < end; ++k, row += step) {
    uint64_t pixels = Load8(row);
    if (pixels == 0) continue;
    if (attributes & kFlipped) pixels = __builtin_bswap64(pixels);
    const uint64_t drawn = OpaqueMask(pixels) & seen;
    // 1 in each byte that has the first, the second or the third colour.
    const uint64_t low = pixels & kOnes, high = pixels >> 1 & kOnes;
    const uint64_t third = low & high;
    const uint64_t first = low ^ third, second = high ^ third;
    for (int plane = 0; plane < planes; ++plane) {
      const uint8_t* own = colours_[plane] + 16 + (attributes & 3) * 4;
      // No byte carries into the next byte, because each byte has one of the
      // three colours or 0.
      uint64_t shown = first * own[1] + second * own[2] + third * own[3];
      if (attributes & kBehind) [[unlikely]] {
        shown = PutBehind(shown, x, k, plane);
      }
      uint8_t* const to = out.at[plane][k] + x;
      Store8(to, (Load8(to) & ~drawn) | (shown & drawn));
    }
  }
}

// Returns eight pixels with the background, where it is opaque, before them.
__attribute__((noinline)) uint64_t Ppu::PutBehind(uint64_t shown, unsigned x,
                                                  int k, int plane) const {
  const uint64_t background = BackgroundEntries(x, (s_.v >> 12 & 7) + k);
  uint8_t bytes[8];
  Store8(bytes, background);
  for (uint8_t& byte : bytes) byte = colours_[plane][byte];
  const uint64_t covered = OpaqueMask(background);
  return (shown & ~covered) | (Load8(bytes) & covered);
}

// Returns the palette entries of the background in eight pixels from x on;
// entries beyond the right end of the line are undefined.
uint64_t Ppu::BackgroundEntries(unsigned x, int row) const {
  if (!(s_.mask & 0x08)) return 0;
  const unsigned at = x + s_.fine_x;
  const unsigned tile = at >> 3;
  uint8_t entries[16];
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned column = std::min(tile + i, simd::kTilesInLine - 1u);
    std::memcpy(entries + i * 8,
                row_base_ + row_tiles_[row_first_ + column] + row * 8, 8);
  }
  const uint64_t shown = Load8(entries + (at & 7));
  return s_.mask & 0x02 ? shown : shown & BesideLeftEdge(x);
}

// In nes-py the row of such a sprite is a negative remainder, so its bits also
// come from the tile before it.
__attribute__((noinline)) void Ppu::DrawWrappedSprites(const LinesOut& out) {
  const int height = SpriteHeight();
  for (int i = 63; i >= 0; --i) {
    if (!(s_.wrapped >> i & 1)) continue;
    const uint8_t* sprite = s_.oam + i * 4;
    int row = -((sprite[0] + 1) & 0xFF) % height;
    if (sprite[2] & 0x80) row ^= height - 1;
    int base = sprite[1] * 16 + ((s_.ctrl & 0x08) << 9);
    if (height == 16) {
      row = (row & 7) | (row & 8) << 1;
      base = (sprite[1] >> 1) * 32 | (sprite[1] & 1) << 12;
    }
    const auto plane = [this](int address) -> unsigned {
      address &= 0xFFFF;
      return address < 0x2000 ? chr_[address] : 0;
    };
    const unsigned low = plane(base + row), high = plane(base + row + 8);
    uint8_t entries[8];
    for (int x = 0; x < 8; ++x) {
      const unsigned colour = (low >> (7 - x) & 1) | (high >> (7 - x) & 1) << 1;
      entries[x] = static_cast<uint8_t>(
          colour == 0 ? 0 : colour | (sprite[2] & 3u) << 2);
    }
    DrawSprite(sprite, entries, 0, 0, 1, out);
  }
}

}  // namespace nes
