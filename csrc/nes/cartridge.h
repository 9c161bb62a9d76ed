// iNES parsing. A Cartridge is immutable and shared by every console that
// plays it; it holds the ROM bytes and the tiles decoded to one byte a pixel.
// Only mapper 0 (NROM) exists here. Source: NESdev "INES", "NROM".
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nes {

enum class Mirroring : uint8_t { kHorizontal, kVertical };

class Cartridge {
 public:
  /// Parses an iNES image. Throws std::invalid_argument that says what was
  /// found and what is allowed (bad magic, truncated file, mapper other than
  /// 0, PRG other than 16 or 32 KiB, CHR other than 0 or 8 KiB).
  static std::shared_ptr<const Cartridge> Parse(std::span<const uint8_t> ines);

  /// 32 KiB as seen at $8000-$FFFF (16 KiB images stand there twice), followed
  /// by four bytes that repeat its start, so that a 4-byte read never overruns.
  const uint8_t* prg() const { return prg_.data(); }
  /// 8 KiB of pattern tables; empty image (all 0) when the cartridge has RAM.
  const uint8_t* chr() const { return chr_.data(); }
  bool has_chr_ram() const { return has_chr_ram_; }
  Mirroring mirroring() const { return mirroring_; }
  /// FNV-1a over PRG, CHR and mirroring: the identity kept in save states.
  uint64_t hash() const { return hash_; }
  /// 8 bytes (one per pixel, values 0-3) for each row of each of 512 tiles:
  /// row r of tile t at tiles()[(t * 8 + r) * 8]. ROM tiles only.
  const uint8_t* tiles() const { return tiles_.data(); }

 private:
  Cartridge() = default;

  std::vector<uint8_t> prg_;
  std::vector<uint8_t> chr_;
  std::vector<uint8_t> tiles_;
  uint64_t hash_ = 0;
  Mirroring mirroring_ = Mirroring::kHorizontal;
  bool has_chr_ram_ = false;
};

}  // namespace nes
