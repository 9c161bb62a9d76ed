// iNES parsing. A Cartridge is immutable and shared by every console that plays
// it; it holds the ROM bytes and the tiles decoded to one byte per pixel. Only
// mapper 0 (NROM) is supported. Source: NESdev "INES", "NROM".
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "nes/timing.h"

namespace nes {

// FNV-1a, 64 bits (RFC 9923): the hash by which saves identify a ROM and a set
// of options.
constexpr uint64_t kFnvOffsetBasis = 0xCBF29CE484222325;
constexpr uint64_t kFnvPrime = 0x100000001B3;

/// Returns the hash of `bytes`, or continues `hash` with `bytes`.
inline uint64_t Fnv1a(std::span<const uint8_t> bytes,
                      uint64_t hash = kFnvOffsetBasis) {
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * kFnvPrime;
  return hash;
}

/// A decoded tile: for each of the four attribute values, 8 rows of 8 bytes,
/// each byte the pixel's palette entry: 0 where transparent, otherwise
/// attribute * 4 + colour. Drawing a row of a tile is then one 8-byte copy.
constexpr int kTileBytes = 4 * 8 * 8;
constexpr int kTileAttributeBytes = 8 * 8;

/// Decodes row `row` of the 16-byte tile at `chr` for all four attributes.
void DecodeTileRow(const uint8_t* chr, int row, uint8_t* tile);
/// Decodes 8 KiB of pattern tables into 512 tiles.
void DecodeTiles(const uint8_t* chr, uint8_t* tiles);

enum class Mirroring : uint8_t { kHorizontal, kVertical };

class Translation;

class Cartridge {
 public:
  ~Cartridge();

  /// Parses an iNES image. Throws std::invalid_argument, which names the found
  /// and the allowed value (bad magic, truncated file, mapper other than 0, PRG
  /// other than 16 or 32 KiB, CHR other than 0 or 8 KiB).
  static std::shared_ptr<const Cartridge> Parse(std::span<const uint8_t> ines);

  /// The 32 KiB at $8000-$FFFF (16 KiB images appear there twice), followed by
  /// four bytes that repeat the start, so that a 4-byte read never overruns.
  const uint8_t* prg() const { return prg_.data(); }
  /// 32 KiB that the CPU's fast loop dispatches on (cpu.h, FindDispatch).
  const uint8_t* dispatch() const { return dispatch_.data(); }
  /// 8 KiB of pattern tables; all 0 if the cartridge has CHR RAM.
  const uint8_t* chr() const { return chr_.data(); }
  bool has_chr_ram() const { return has_chr_ram_; }
  Mirroring mirroring() const { return mirroring_; }
  /// FNV-1a over PRG, CHR and mirroring; save states identify the ROM by it.
  uint64_t hash() const { return hash_; }
  /// The CHR ROM decoded by DecodeTiles, kTileBytes for each of 512 tiles.
  const uint8_t* tiles() const { return tiles_.data(); }
  /// The program as machine code, made by the first call; nullptr if
  /// WhyNotTranslated returns a reason. Thread-safe.
  Translation* translation(Timing timing) const;

 private:
  Cartridge();

  struct LazyTranslation {
    std::once_flag once;
    std::unique_ptr<Translation> made;
  };

  std::vector<uint8_t> prg_;
  std::vector<uint8_t> dispatch_;
  std::vector<uint8_t> chr_;
  std::vector<uint8_t> tiles_;
  mutable std::array<LazyTranslation, 2> translations_;  // by Timing
  uint64_t hash_ = 0;
  Mirroring mirroring_ = Mirroring::kHorizontal;
  bool has_chr_ram_ = false;
};

}  // namespace nes
