// Compares the vector paths of the optimiser's native steps with the portable
// path, on buffers of exactly their size, and all paths with plain loops in
// double.
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

// The iteration as published, x -> 3.4445 x - 4.775 x x^T x + 2.0315 (x x^T)^2
// x, on `side` rows of x from `first`, in double; a row of `x` is a vector.
using Matrix = std::vector<std::vector<double>>;

Matrix TimesTransposed(const Matrix& a, const Matrix& b) {
  Matrix out(a.size(), std::vector<double>(b.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      for (size_t k = 0; k < a[i].size(); ++k) out[i][j] += a[i][k] * b[j][k];
    }
  }
  return out;
}

Matrix Transposed(const Matrix& a) {
  Matrix out(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) out[j][i] = a[i][j];
  }
  return out;
}

void Orthogonalise(Matrix& x) {
  double sum = 0;
  for (const auto& row : x) {
    for (const double value : row) sum += value * value;
  }
  for (auto& row : x) {
    for (double& value : row) value /= std::sqrt(sum) + 1e-7;
  }
  for (int i = 0; i < 5; ++i) {
    const Matrix columns = Transposed(x);
    const Matrix square = TimesTransposed(x, x);
    const Matrix cube = TimesTransposed(square, columns);
    const Matrix fifth = TimesTransposed(square, Transposed(cube));
    for (size_t r = 0; r < x.size(); ++r) {
      for (size_t c = 0; c < x[r].size(); ++c) {
        x[r][c] = 3.4445 * x[r][c] - 4.775 * cube[r][c] + 2.0315 * fifth[r][c];
      }
    }
  }
}

State Expected(int64_t rows, int64_t columns, State state,
               const Floats& gradients) {
  const bool tall = rows > columns;
  Matrix x(rows, std::vector<double>(columns));
  for (int64_t i = 0; i < rows * columns; ++i) {
    float& average = state.momentum[i];
    average += 0.25f * (gradients[i] - average);
    x[i / columns][i % columns] = 0.75 * average + 0.25 * gradients[i];
  }
  if (tall) x = Transposed(x);
  Matrix result;
  for (size_t first = 0; first < x.size(); first += 128) {
    Matrix block(x.begin() + first,
                 x.begin() + std::min(x.size(), first + 128));
    Orthogonalise(block);
    result.insert(result.end(), block.begin(), block.end());
  }
  if (tall) result = Transposed(result);
  const double scale =
      tall ? std::sqrt(static_cast<double>(rows) / columns) : 1.0;
  for (int64_t i = 0; i < rows * columns; ++i) {
    state.weights[i] =
        static_cast<float>(state.weights[i] * (1 - 0.5 * 0.125) -
                           0.5 * scale * result[i / columns][i % columns]);
  }
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

TEST(MuonTest, IsTheIterationAsPublishedOnAllPaths) {
  for (const auto& [rows, columns] : kShapes) {
    const int64_t size = static_cast<int64_t>(rows) * columns;
    const State before = {Random(size, 1), Random(size, 2)};
    const Floats gradients = Random(size, 3);
    const State want = Expected(rows, columns, before, gradients);
    const State scalar =
        Stepped(Path::kScalar, rows, columns, before, gradients);
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_NEAR(scalar.weights[i], want.weights[i], 1e-4)
          << rows << " x " << columns << " at " << i;
      ASSERT_NEAR(scalar.momentum[i], want.momentum[i], 1e-6);
    }
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
