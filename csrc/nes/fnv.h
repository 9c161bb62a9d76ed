// FNV-1a, 64 bits: the hash by which saves identify a ROM and a set of options.
// Source: Fowler, Noll, Vo and Eastlake, "The FNV Non-Cryptographic Hash
// Algorithm", RFC 9923.
#pragma once

#include <cstdint>
#include <span>

namespace nes {

constexpr uint64_t kFnvOffsetBasis = 0xCBF29CE484222325;
constexpr uint64_t kFnvPrime = 0x100000001B3;

/// Returns the hash of `bytes`, or continues `hash` with `bytes`.
inline uint64_t Fnv1a(std::span<const uint8_t> bytes,
                      uint64_t hash = kFnvOffsetBasis) {
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * kFnvPrime;
  return hash;
}

}  // namespace nes
