// Compares the vector paths of the optimiser's native steps with the portable
// path, on buffers of exactly their size. tests/trainer/test_native_steps.py
// compares them with PyTorch's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "learner/muon.h"
#include "learner/vector_kernels.h"

namespace {

using cpu::Name;
using cpu::Path;
using cpu::Supports;

constexpr Path kPaths[] = {Path::kScalar, Path::kNeon, Path::kAvx2,
                           Path::kAvx512, Path::kAvx512Bf16};

using Floats = std::vector<float>;

Floats Random(int64_t size, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  Floats values(size);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

// A matrix before or after a step.
struct State {
  Floats weights, momentum;
};

constexpr learner::MuonOptions kOptions = {
    .lr = 0.5f, .momentum = 0.75f, .weight_decay = 0.125f};

State Stepped(Path path, int64_t rows, int64_t columns, State state,
              const Floats& gradients) {
  // The initial contents of the scratch must not matter.
  Floats scratch(learner::MuonScratch(rows, columns),
                 std::numeric_limits<float>::quiet_NaN());
  learner::MuonStep(path,
                    {.rows = rows,
                     .columns = columns,
                     .weights = state.weights.data(),
                     .gradients = gradients.data(),
                     .momentum = state.momentum.data()},
                    kOptions, scratch.data());
  return state;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Wide and tall; below, at and above the blocks of 16, 32 and 128.
constexpr std::pair<int, int> kShapes[] = {
    {1, 1},     {1, 9},     {9, 1},    {6, 40},   {40, 6},
    {15, 31},   {16, 32},   {17, 33},  {33, 17},  {48, 50},
    {32, 144},  {144, 32},  {130, 47}, {47, 130}, {96, 97},
    {129, 140}, {140, 129}, {20, 300}, {300, 20}};

TEST(MuonTest, IsEqualOnAllPaths) {
  for (const auto& [rows, columns] : kShapes) {
    const int64_t size = static_cast<int64_t>(rows) * columns;
    const State before = {Random(size, 1), Random(size, 2)};
    const Floats gradients = Random(size, 3);
    const State scalar =
        Stepped(Path::kScalar, rows, columns, before, gradients);
    for (const Path path : kPaths) {
      if (!Supports(path)) continue;
      const State got = Stepped(path, rows, columns, before, gradients);
      EXPECT_TRUE(SameBits(got.weights, scalar.weights))
          << Name(path) << ", " << rows << " x " << columns;
      EXPECT_TRUE(SameBits(got.momentum, scalar.momentum)) << Name(path);
    }
  }
}

TEST(MuonTest, WithoutGradientsWeightsOnlyDecay) {
  for (const Path path : kPaths) {
    if (!Supports(path)) continue;
    const State before = {Random(3 * 20, 1), Floats(3 * 20)};
    const State after = Stepped(path, 3, 20, before, Floats(3 * 20));
    for (int i = 0; i < 3 * 20; ++i) {
      EXPECT_EQ(after.weights[i], 0.9375f * before.weights[i]) << Name(path);
    }
    EXPECT_TRUE(SameBits(after.momentum, before.momentum)) << Name(path);
  }
}

}  // namespace
