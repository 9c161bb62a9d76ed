// Two small random generators, both plain data, so that snapshots contain them:
// one for the task's own draws, and NumPy's legacy generator, because
// numpy.random.RandomState decides the order of RandomStages for a seed.
#pragma once

#include <bit>
#include <cstdint>

namespace mario {

/// xoshiro256++ (Blackman and Vigna, "Scrambled Linear Pseudorandom Number
/// Generators", 2021), seeded by splitmix64.
struct Random {
  uint64_t s[4];

  void Seed(uint64_t seed) {
    for (uint64_t& word : s) {
      seed += 0x9E3779B97F4A7C15u;
      uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
      word = z ^ (z >> 31);
    }
  }

  uint64_t Next() {
    const uint64_t result = std::rotl(s[0] + s[3], 23) + s[0];
    const uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = std::rotl(s[3], 45);
    return result;
  }

  /// Uniform in [0, bound), without bias: draws above the largest multiple of
  /// `bound` are discarded.
  uint32_t Below(uint32_t bound) {
    const uint64_t limit = (uint64_t{1} << 32) / bound * bound;
    uint64_t draw = Next() >> 32;
    while (draw >= limit) draw = Next() >> 32;
    return static_cast<uint32_t>(draw % bound);
  }

  /// Uniform in [0, 1), a multiple of 2^-53.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  /// True with probability `threshold` / 2^53.
  bool Chance(uint64_t threshold) { return (Next() >> 11) < threshold; }
};

/// numpy.random.RandomState(seed): MT19937 (Matsumoto and Nishimura, 1998)
/// and its bounded integers (a mask and rejection on 32-bit draws).
struct LegacyRandomState {
  uint32_t key[624];
  uint32_t position;

  void Seed(uint32_t seed) {
    for (uint32_t i = 0; i < 624; ++i) {
      key[i] = seed;
      seed = 1812433253u * (seed ^ (seed >> 30)) + i + 1;
    }
    position = 624;
  }

  /// False for a position that no sequence of draws leads to.
  bool IsValid() const { return position <= 624; }

  uint32_t Next() {
    if (position == 624) Twist();
    uint32_t y = key[position++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680u;
    y ^= (y << 15) & 0xEFC60000u;
    return y ^ (y >> 18);
  }

  /// randint(low, high): uniform in [low, high).
  int RandInt(int low, int high) {
    const uint32_t range = static_cast<uint32_t>(high - low - 1);
    if (range == 0) return low;  // NumPy draws nothing here
    const uint32_t mask = ~uint32_t{0} >> std::countl_zero(range);
    uint32_t draw = Next() & mask;
    while (draw > range) draw = Next() & mask;
    return low + static_cast<int>(draw);
  }

 private:
  void Twist() {
    for (uint32_t i = 0; i < 624; ++i) {
      const uint32_t y =
          (key[i] & 0x80000000u) | (key[(i + 1) % 624] & 0x7FFFFFFFu);
      key[i] = key[(i + 397) % 624] ^ (y >> 1) ^ (y & 1 ? 0x9908B0DFu : 0u);
    }
    position = 0;
  }
};

}  // namespace mario
