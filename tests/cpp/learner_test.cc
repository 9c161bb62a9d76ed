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

#include "learner/adamw.h"
#include "learner/muon.h"
#include "learner/vector_kernels.h"

namespace {

using cpu::Name;
using cpu::Path;
using cpu::Supports;

constexpr Path kPaths[] = {Path::kScalar, Path::kAvx2, Path::kAvx512,
                           Path::kAvx512Bf16};

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

struct Adamw {
  Floats weights, means, squares;
  float step = 4;
};

Adamw AfterAdamw(Path path, Adamw state, const Floats& gradients) {
  const learner::AdamwTensor tensor = {
      .size = static_cast<int64_t>(gradients.size()),
      .weights = state.weights.data(),
      .gradients = gradients.data(),
      .means = state.means.data(),
      .squares = state.squares.data(),
      .step = &state.step};
  learner::AdamwStep(path, {&tensor, 1},
                     {.lr = 0.01,
                      .weight_decay = 0.5,
                      .eps = 1e-3,
                      .beta1 = 0.9,
                      .beta2 = 0.999});
  return state;
}

TEST(AdamwTest, IsEqualOnAllPaths) {
  for (const int size : {1, 7, 16, 33}) {
    Adamw before = {Random(size, 1), Random(size, 2), Random(size, 3)};
    for (float& square : before.squares) square *= square;
    const Floats gradients = Random(size, 4);
    const Adamw scalar = AfterAdamw(Path::kScalar, before, gradients);
    EXPECT_EQ(scalar.step, 5.0f);
    for (const Path path : kPaths) {
      if (!Supports(path)) continue;
      const Adamw got = AfterAdamw(path, before, gradients);
      EXPECT_TRUE(SameBits(got.weights, scalar.weights)) << Name(path);
      EXPECT_TRUE(SameBits(got.means, scalar.means)) << Name(path);
      EXPECT_TRUE(SameBits(got.squares, scalar.squares)) << Name(path);
    }
  }
}

float Clip(Path path, float max_norm, Floats& a, Floats& b) {
  const learner::Gradients gradients[] = {
      {static_cast<int64_t>(a.size()), a.data()},
      {static_cast<int64_t>(b.size()), b.data()}};
  return learner::ClipNorm(path, gradients, max_norm);
}

TEST(ClipNormTest, IsOverAllTensorsAndEqualOnAllPaths) {
  for (const int size : {1, 63, 64, 200}) {
    const Floats first = Random(size, 1);
    const Floats second = Random(5, 2);
    double sum = 0;
    for (const float value : first) sum += value * value;
    for (const float value : second) sum += value * value;
    const float norm = static_cast<float>(std::sqrt(sum));
    Floats scalar = first;
    Floats rest = second;
    EXPECT_NEAR(Clip(Path::kScalar, 0.5f * norm, scalar, rest), norm, 1e-6);
    EXPECT_NEAR(scalar[0], 0.5f * first[0], 1e-6);
    EXPECT_NEAR(rest[4], 0.5f * second[4], 1e-6);
    for (const Path path : kPaths) {
      if (!Supports(path)) continue;
      Floats a = first;
      Floats b = second;
      EXPECT_NEAR(Clip(path, 2 * norm, a, b), norm, 1e-6);
      EXPECT_TRUE(SameBits(a, first)) << "nothing is scaled up";
      Clip(path, 0.5f * norm, a, b);
      EXPECT_TRUE(SameBits(a, scalar)) << Name(path) << ", " << size;
      EXPECT_TRUE(SameBits(b, rest)) << Name(path) << ", " << size;
    }
  }
}

TEST(ClipNormTest, WhatIsNotANumberReachesAllGradients) {
  for (const Path path : kPaths) {
    if (!Supports(path)) continue;
    Floats a = {1.0f, std::numeric_limits<float>::quiet_NaN()};
    Floats b = {1.0f};
    EXPECT_TRUE(std::isnan(Clip(path, 1.0f, a, b)));
    EXPECT_TRUE(std::isnan(a[0]) && std::isnan(b[0]));
  }
}

}  // namespace
