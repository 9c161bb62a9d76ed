// Checks of an iNES image, decoding of its tiles, its hash.
#include "nes/cartridge.h"

#include <cstring>
#include <stdexcept>

#include "nes/cpu.h"
#include "nes/translation.h"

namespace nes {
namespace {

constexpr size_t kHeaderBytes = 16;
constexpr size_t kTrainerBytes = 512;
constexpr size_t kPrgBytes = 32 * 1024;
constexpr size_t kPrgUnit = 16 * 1024;
constexpr size_t kChrBytes = 8 * 1024;

[[noreturn]] void Refuse(const std::string& what) {
  throw std::invalid_argument("not a usable NES cartridge: " + what);
}

// "iNES" headers of the 1990s carry a signature in bytes 7-15, which must not
// be read as a mapper number (NESdev "INES", "Variant comparison").
int MapperNumber(std::span<const uint8_t> header) {
  const bool nes2 = (header[7] & 0x0C) == 0x08;
  bool dirty = false;
  for (size_t i = 12; i < 16; ++i) dirty |= header[i] != 0;
  int mapper = header[6] >> 4;
  if (nes2 || !dirty) mapper |= header[7] & 0xF0;
  if (nes2) mapper |= (header[8] & 0x0F) << 8;
  return mapper;
}

}  // namespace

void DecodeTileRow(const uint8_t* chr, int row, uint8_t* tile) {
  const uint8_t low = chr[row];
  const uint8_t high = chr[row + 8];
  for (int attribute = 0; attribute < 4; ++attribute) {
    uint8_t* out = tile + attribute * kTileAttributeBytes + row * 8;
    for (int x = 0; x < 8; ++x) {
      const int colour = (low >> (7 - x) & 1) | (high >> (7 - x) & 1) << 1;
      out[x] = static_cast<uint8_t>(colour ? attribute * 4 + colour : 0);
    }
  }
}

void DecodeTiles(const uint8_t* chr, uint8_t* tiles) {
  for (int tile = 0; tile < 512; ++tile) {
    for (int row = 0; row < 8; ++row) {
      DecodeTileRow(chr + tile * 16, row, tiles + tile * kTileBytes);
    }
  }
}

Cartridge::Cartridge() = default;
Cartridge::~Cartridge() = default;

Translation* Cartridge::translation(Timing timing) const {
  LazyTranslation& lazy = translations_[static_cast<size_t>(timing)];
  std::call_once(lazy.once, [&] {
    lazy.made = Translation::Make({prg(), timing == Timing::kNesPy});
  });
  return lazy.made.get();
}

std::shared_ptr<const Cartridge> Cartridge::Parse(
    std::span<const uint8_t> ines) {
  if (ines.size() < kHeaderBytes || std::memcmp(ines.data(), "NES\x1A", 4)) {
    Refuse("no iNES header (the file must begin with 'NES' and 1A); " +
           std::to_string(ines.size()) + " bytes given");
  }
  const int mapper = MapperNumber(ines);
  if (mapper != 0) {
    Refuse("mapper " + std::to_string(mapper) +
           "; only mapper 0 (NROM) is supported");
  }
  const size_t prg_units = ines[4];
  const size_t chr_units = ines[5];
  if (prg_units != 1 && prg_units != 2) {
    Refuse(std::to_string(prg_units) + " PRG banks of 16 KiB; NROM has 1 or 2");
  }
  if (chr_units > 1) {
    Refuse(std::to_string(chr_units) + " CHR banks of 8 KiB; NROM has 0 or 1");
  }
  size_t offset = kHeaderBytes + (ines[6] & 0x04 ? kTrainerBytes : 0);
  const size_t needed = offset + prg_units * kPrgUnit + chr_units * kChrBytes;
  if (ines.size() < needed) {
    Refuse("truncated: " + std::to_string(ines.size()) +
           " bytes given, the header asks for " + std::to_string(needed));
  }

  std::shared_ptr<Cartridge> cartridge(new Cartridge);
  cartridge->mirroring_ =
      ines[6] & 1 ? Mirroring::kVertical : Mirroring::kHorizontal;
  cartridge->prg_.resize(kPrgBytes + 4);
  for (size_t i = 0; i < cartridge->prg_.size(); ++i) {
    cartridge->prg_[i] = ines[offset + i % (prg_units * kPrgUnit)];
  }
  cartridge->dispatch_.resize(kPrgBytes);
  FindDispatch(cartridge->prg_.data(), cartridge->dispatch_.data());
  offset += prg_units * kPrgUnit;
  cartridge->has_chr_ram_ = chr_units == 0;
  cartridge->chr_.resize(kChrBytes);
  if (chr_units == 1) {
    std::memcpy(cartridge->chr_.data(), ines.data() + offset, kChrBytes);
  }
  cartridge->tiles_.resize(512 * kTileBytes);
  DecodeTiles(cartridge->chr_.data(), cartridge->tiles_.data());

  uint64_t hash = Fnv1a({cartridge->prg_.data(), kPrgBytes});
  hash = Fnv1a(cartridge->chr_, hash);
  const uint8_t wiring[] = {
      static_cast<uint8_t>(cartridge->mirroring_ == Mirroring::kVertical),
      static_cast<uint8_t>(cartridge->has_chr_ram_)};
  cartridge->hash_ = Fnv1a(wiring, hash);
  return cartridge;
}

}  // namespace nes
