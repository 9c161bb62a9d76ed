// Compares the encoders' vector paths with the portable path, bit by bit, and
// the portable path with plain loops. Buffers have exactly their size, so
// AddressSanitizer detects accesses outside them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "encoders/bfloat16.h"
#include "encoders/cnn.h"
#include "encoders/kernels.h"
#include "encoders/tiles.h"

namespace {

using cpu::Name;
using cpu::Path;
using cpu::Supports;
using encoders::CnnBackward;
using encoders::CnnForward;
using encoders::CnnGradients;
using encoders::CnnShape;
using encoders::CnnWeights;
using encoders::DotTask;
using encoders::Finish;
using encoders::FromBf16;
using encoders::kCodeSize;
using encoders::Kernels;
using encoders::KernelsFor;
using encoders::kLanes;
using encoders::kPaths;
using encoders::kThingBytes;
using encoders::kThingNumbers;
using encoders::kTileBytes;
using encoders::kTileCodes;
using encoders::kTileRows;
using encoders::kTileSide;
using encoders::RoundToBf16;
using encoders::TilesBackward;
using encoders::TilesForward;
using encoders::TilesShape;
using encoders::TilesWeights;
using encoders::TrunkShape;
using encoders::ValidCodes;

// Not a vector, which may reserve more memory than requested.
template <typename T>
struct Buffer {
  explicit Buffer(int64_t count)
      : size(count), data(std::make_unique<T[]>(count)) {}
  T* get() const { return data.get(); }
  T& operator[](int64_t i) const { return data[i]; }

  int64_t size;
  std::unique_ptr<T[]> data;
};

template <typename T>
bool Same(const Buffer<T>& a, const Buffer<T>& b) {
  return a.size == b.size &&
         std::memcmp(a.get(), b.get(), a.size * sizeof(T)) == 0;
}

using Random = std::mt19937;

Buffer<float> Normal(int64_t count, float scale, Random* random) {
  std::normal_distribution<float> normal(0.0f, scale);
  Buffer<float> result(count);
  for (int64_t i = 0; i < count; ++i) result[i] = normal(*random);
  return result;
}

Buffer<float> Integers(int64_t count, Random* random) {
  Buffer<float> result(count);
  for (int64_t i = 0; i < count; ++i) {
    result[i] = static_cast<float>(static_cast<int>((*random)() % 3) - 1);
  }
  return result;
}

// Sizes of the weights: the first convolution's, its bias, then the trunk's.
std::vector<int64_t> Sizes(const TrunkShape& trunk, int64_t first) {
  return {
      first,
      trunk.channels,
      static_cast<int64_t>(trunk.out_channels) * trunk.channels * trunk.taps(),
      trunk.out_channels,
      static_cast<int64_t>(trunk.features) * trunk.inputs(),
      trunk.features};
}

using Floats = std::vector<Buffer<float>>;

struct Results {
  Buffer<uint16_t> maps, x;
  Buffer<float> y;
  Floats gradients;
};

void ExpectSame(const Results& got, const Results& want,
                const std::string& what) {
  EXPECT_TRUE(Same(got.maps, want.maps)) << what;
  EXPECT_TRUE(Same(got.x, want.x)) << what;
  EXPECT_TRUE(Same(got.y, want.y)) << what;
  for (size_t i = 0; i < want.gradients.size(); ++i) {
    EXPECT_TRUE(Same(got.gradients[i], want.gradients[i]))
        << what << ", gradient " << i;
  }
}

Results Room(const TrunkShape& trunk, int64_t rows,
             const std::vector<int64_t>& sizes) {
  Results results{Buffer<uint16_t>(rows * trunk.map()),
                  Buffer<uint16_t>(rows * trunk.inputs()),
                  Buffer<float>(rows * trunk.features),
                  {}};
  for (const int64_t size : sizes) results.gradients.emplace_back(size);
  return results;
}

Results RunCnn(const CnnShape& shape, Path path, int64_t rows,
               const Buffer<uint8_t>& pixels, const Floats& w,
               const Buffer<float>& dy) {
  const int64_t window = shape.channels * shape.kernel1 * shape.kernel1;
  Results r =
      Room(shape.trunk(), rows, Sizes(shape.trunk(), shape.channels1 * window));
  const CnnWeights weights{
      w[0].get(), w[1].get(), {w[2].get(), w[3].get(), w[4].get(), w[5].get()}};
  const Floats& g = r.gradients;
  const CnnGradients gradients{
      g[0].get(), g[1].get(), {g[2].get(), g[3].get(), g[4].get(), g[5].get()}};
  CnnForward(shape, path, rows, pixels.get(), weights, r.maps.get(), r.x.get(),
             r.y.get());
  CnnBackward(shape, path, rows, pixels.get(), weights, r.maps.get(), r.x.get(),
              r.y.get(), dy.get(), gradients);
  Buffer<float> alone(r.y.size);
  CnnForward(shape, path, rows, pixels.get(), weights, nullptr, nullptr,
             alone.get());
  EXPECT_TRUE(Same(alone, r.y)) << Name(path);
  return r;
}

Floats CnnWeightsFor(const CnnShape& shape, Random* random) {
  const int64_t window = shape.channels * shape.kernel1 * shape.kernel1;
  Floats weights;
  for (const int64_t size : Sizes(shape.trunk(), shape.channels1 * window)) {
    weights.push_back(Normal(size, 0.1f, random));
  }
  return weights;
}

Buffer<uint8_t> Pixels(int64_t count, Random* random) {
  Buffer<uint8_t> pixels(count);
  for (int64_t i = 0; i < count; ++i) {
    pixels[i] = (*random)() % 2 ? 144 : static_cast<uint8_t>((*random)());
  }
  return pixels;
}

constexpr CnnShape kSmall{.channels = 4,
                          .height = 40,
                          .width = 40,
                          .kernel1 = 4,
                          .stride1 = 4,
                          .channels1 = 16,
                          .kernel2 = 3,
                          .stride2 = 2,
                          .channels2 = 32,
                          .features = 128};

TEST(Encoders, PathsOfPixelsAreEqual) {
  Random random(1);
  CnnShape wide = kSmall;  // odd numbers of blocks, overlapping windows
  wide.height = 36;
  wide.channels = 3;
  wide.kernel1 = 8;
  wide.stride1 = 3;
  wide.channels1 = 48;
  wide.channels2 = 16;
  wide.features = 80;
  CnnShape least = kSmall;  // one position everywhere
  least.channels = 1;
  least.height = least.width = 4;
  least.kernel2 = 1;
  least.channels2 = least.features = 16;
  for (const CnnShape& shape : {kSmall, wide, least}) {
    ASSERT_TRUE(shape.Valid());
    for (const int64_t rows : {1, 2, 33}) {
      const auto weights = CnnWeightsFor(shape, &random);
      const auto pixels =
          Pixels(rows * shape.channels * shape.height * shape.width, &random);
      const auto dy = Normal(rows * shape.features, 0.01f, &random);
      const Results want =
          RunCnn(shape, Path::kScalar, rows, pixels, weights, dy);
      for (const Path path : kPaths) {
        if (!Supports(path)) continue;
        ExpectSame(RunCnn(shape, path, rows, pixels, weights, dy), want,
                   std::string(Name(path)) + ", rows " + std::to_string(rows));
      }
    }
  }
}

TEST(Encoders, PathsOfTilesAreEqual) {
  Random random(2);
  for (const TilesShape& shape :
       {TilesShape{16, 32, 128}, TilesShape{48, 16, 80}}) {
    ASSERT_TRUE(shape.Valid());
    const TrunkShape trunk = shape.trunk();
    for (const int64_t rows : {1, 9, 34}) {
      auto sizes = Sizes(trunk, shape.channels1 * kCodeSize * 9);
      sizes.push_back(kTileCodes * kCodeSize);
      Floats w;
      for (const int64_t size : sizes) w.push_back(Normal(size, 0.2f, &random));
      const auto scales = Normal(kThingNumbers, 0.1f, &random);
      Buffer<uint8_t> frames(rows * kTileBytes);
      for (int64_t i = 0; i < frames.size; ++i) {
        const int64_t at = i % kTileBytes - kTileRows * kTileSide;
        const bool number = at >= 0 && at % kThingBytes != 0;
        frames[i] = static_cast<uint8_t>(random() % (number ? 256 : 32));
      }
      EXPECT_TRUE(ValidCodes(rows, frames.get()));
      const auto dy = Normal(rows * shape.features, 0.01f, &random);
      const TilesWeights weights{
          w[6].get(),
          w[0].get(),
          w[1].get(),
          scales.get(),
          {w[2].get(), w[3].get(), w[4].get(), w[5].get()}};
      const auto run = [&](Path path) {
        Results r = Room(trunk, rows, sizes);
        const Floats& g = r.gradients;
        TilesForward(shape, path, rows, frames.get(), weights, r.maps.get(),
                     r.x.get(), r.y.get());
        TilesBackward(shape, path, rows, frames.get(), weights, r.maps.get(),
                      r.x.get(), r.y.get(), dy.get(),
                      {g[6].get(),
                       g[0].get(),
                       g[1].get(),
                       {g[2].get(), g[3].get(), g[4].get(), g[5].get()}});
        Buffer<float> alone(r.y.size);
        TilesForward(shape, path, rows, frames.get(), weights, nullptr, nullptr,
                     alone.get());
        EXPECT_TRUE(Same(alone, r.y)) << Name(path);
        return r;
      };
      const Results want = run(Path::kScalar);
      for (const Path path : kPaths) {
        if (Supports(path)) ExpectSame(run(path), want, Name(path));
      }
    }
  }
}

float Rounded(double value) {
  return FromBf16(RoundToBf16(static_cast<float>(value)));
}

// A convolution without padding of (channels, height, width), all as PyTorch
// has them: calls visit(output, weight, input) for every product.
template <typename Visit>
void ForProducts(int channels, int height, int width, int kernel, int stride,
                 int outputs, const Visit& visit) {
  const int rows = (height - kernel) / stride + 1;
  const int columns = (width - kernel) / stride + 1;
  for (int o = 0; o < outputs; ++o) {
    for (int y = 0; y < rows; ++y) {
      for (int x = 0; x < columns; ++x) {
        for (int c = 0; c < channels; ++c) {
          for (int i = 0; i < kernel; ++i) {
            for (int j = 0; j < kernel; ++j) {
              visit((o * rows + y) * columns + x,
                    ((o * channels + c) * kernel + i) * kernel + j,
                    (c * height + y * stride + i) * width + x * stride + j);
            }
          }
        }
      }
    }
  }
}

// Weights, inputs and gradients are small integers, so that every sum is exact
// in any order.
TEST(Encoders, EqualsPlainLoopsOverIntegers) {
  Random random(3);
  const CnnShape& s = kSmall;
  const TrunkShape trunk = s.trunk();
  const int64_t rows = 3;
  const int picture = s.channels * s.height * s.width;
  const int positions1 = trunk.height * trunk.width;
  const int positions2 = trunk.positions();
  Floats w;
  const auto sizes = Sizes(trunk, s.channels1 * s.channels * 16);
  for (const int64_t size : sizes) w.push_back(Integers(size, &random));
  Buffer<uint8_t> pixels(rows * picture);
  const uint8_t levels[] = {80, 144, 208};  // -1, 0 and 1
  for (int64_t i = 0; i < pixels.size; ++i) pixels[i] = levels[random() % 3];
  const auto dy = Integers(rows * s.features, &random);

  Floats want;
  for (const int64_t size : sizes) want.emplace_back(size);
  Buffer<float> y(rows * s.features);
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> in(picture);
    for (int i = 0; i < picture; ++i) {
      in[i] = (pixels[row * picture + i] - 144) / 64.0;
    }
    std::vector<double> first(trunk.map()), d_first(first.size());
    std::vector<double> second(trunk.flat()), d_second(second.size());
    for (size_t i = 0; i < first.size(); ++i) first[i] = w[1][i / positions1];
    ForProducts(s.channels, s.height, s.width, s.kernel1, s.stride1,
                s.channels1,
                [&](int o, int k, int i) { first[o] += w[0][k] * in[i]; });
    for (double& value : first) value = Rounded(std::max(0.0, value));
    for (size_t i = 0; i < second.size(); ++i) second[i] = w[3][i / positions2];
    ForProducts(trunk.channels, trunk.height, trunk.width, s.kernel2, s.stride2,
                s.channels2,
                [&](int o, int k, int i) { second[o] += w[2][k] * first[i]; });
    for (double& value : second) value = Rounded(std::max(0.0, value));
    for (int f = 0; f < s.features; ++f) {
      double sum = w[5][f];
      for (int i = 0; i < trunk.flat(); ++i) {
        sum += w[4][f * trunk.flat() + i] * second[i];
      }
      y[row * s.features + f] = static_cast<float>(std::max(0.0, sum));
      const double d = sum > 0 ? dy[row * s.features + f] : 0.0f;
      want[5][f] += static_cast<float>(d);
      for (int i = 0; i < trunk.flat(); ++i) {
        want[4][f * trunk.flat() + i] += static_cast<float>(d * second[i]);
        d_second[i] += d * w[4][f * trunk.flat() + i];
      }
    }
    for (size_t i = 0; i < second.size(); ++i) {
      d_second[i] = second[i] != 0 ? Rounded(d_second[i]) : 0.0;
      want[3][i / positions2] += static_cast<float>(d_second[i]);
    }
    ForProducts(trunk.channels, trunk.height, trunk.width, s.kernel2, s.stride2,
                s.channels2, [&](int o, int k, int i) {
                  want[2][k] += static_cast<float>(d_second[o] * first[i]);
                  d_first[i] += d_second[o] * w[2][k];
                });
    for (size_t i = 0; i < first.size(); ++i) {
      d_first[i] = first[i] != 0 ? Rounded(d_first[i]) : 0.0;
      want[1][i / positions1] += static_cast<float>(d_first[i]);
    }
    ForProducts(s.channels, s.height, s.width, s.kernel1, s.stride1,
                s.channels1, [&](int o, int k, int i) {
                  want[0][k] += static_cast<float>(d_first[o] * in[i]);
                });
  }

  for (const Path path : kPaths) {
    if (!Supports(path)) continue;
    const Results got = RunCnn(s, path, rows, pixels, w, dy);
    EXPECT_TRUE(Same(got.y, y)) << Name(path);
    for (size_t i = 0; i < want.size(); ++i) {
      for (int64_t k = 0; k < want[i].size; ++k) {  // -0 equals 0
        ASSERT_EQ(got.gradients[i][k], want[i][k])
            << Name(path) << ", gradient " << i << " at " << k;
      }
    }
  }
}

TEST(Encoders, PathsRoundAllKindsOfNumbers) {
  Random random(4);
  constexpr int kCount = 1 << 16;
  Buffer<float> values(kCount);
  const float special[] = {0.0f,
                           -0.0f,
                           0x1p-55f,
                           0x1.fffffep-56f,
                           -0x1p-55f,
                           0x1p-140f,
                           1.00390625f,  // between two, the lower one even
                           1.01171875f,  // the upper one
                           0x1.fffffep127f,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < kCount; ++i) {
    const uint32_t bits = random();
    std::memcpy(&values[i], &bits, sizeof(bits));
  }
  std::copy(std::begin(special), std::end(special), values.get());
  Buffer<uint16_t> active(kCount);
  for (int i = 0; i < kCount; ++i) active[i] = i % 5 != 4;
  for (const Path path : kPaths) {
    if (!Supports(path)) continue;
    Buffer<uint16_t> got(kCount);
    KernelsFor(path).keep_active(values.get(), active.get(), kCount, got.get());
    for (int i = 0; i < kCount; ++i) {
      const uint16_t want = active[i] ? RoundToBf16(values[i]) : 0;
      ASSERT_EQ(got[i], want) << Name(path) << " rounds " << values[i];
    }
  }
  EXPECT_EQ(FromBf16(RoundToBf16(1.00390625f)), 1.0f);
  EXPECT_EQ(FromBf16(RoundToBf16(1.01171875f)), 1.015625f);
  EXPECT_EQ(RoundToBf16(0x1.fffffep-56f), 0);
  EXPECT_EQ(FromBf16(RoundToBf16(0x1p-55f)), 0x1p-55f);
  EXPECT_TRUE(std::isnan(FromBf16(RoundToBf16(special[11]))));
}

TEST(Encoders, PathsAddProductsOfPairsInOneOrder) {
  // Large numbers that cancel: any other order gives other sums.
  Random random(5);
  constexpr int kPairs = 64;
  Buffer<uint16_t> x(2 * kPairs);
  Buffer<uint32_t> weights(kPairs * kLanes);
  const auto value = [&] {
    const int exponent = static_cast<int>(random() % 60) - 30;
    return RoundToBf16(
        std::ldexp(static_cast<float>(random() % 512) - 256.0f, exponent));
  };
  for (int i = 0; i < 2 * kPairs; ++i) x[i] = value();
  for (int i = 0; i < kPairs * kLanes; ++i) {
    weights[i] = value() | (static_cast<uint32_t>(value()) << 16);
  }
  const int32_t zero = 0;
  for (const Path path : kPaths) {
    if (!Supports(path)) continue;
    const Kernels& kernels = KernelsFor(path);
    Buffer<float> operands(2 * kPairs);
    Buffer<float> packed(kPairs * kLanes * kernels.pair_floats);
    kernels.packed(weights.get(), kPairs * kLanes, packed.get());
    Buffer<float> got(kLanes);
    DotTask task{};
    task.x = kernels.operands(x.get(), 2 * kPairs, operands.get());
    task.at = task.segments = task.to = &zero;
    task.segment_count = task.positions = task.blocks = 1;
    task.segment_pairs = kPairs;
    task.weights = packed.get();
    task.finish = Finish::kAdd;
    task.out32 = got.get();
    kernels.dot(task);
    for (int l = 0; l < kLanes; ++l) {
      float sum = 0.0f;
      for (int k = 0; k < kPairs; ++k) {
        const uint32_t pair = weights[k * kLanes + l];
        sum += FromBf16(x[2 * k + 1]) * FromBf16(pair >> 16);
        sum += FromBf16(x[2 * k]) * FromBf16(pair & 0xFFFF);
      }
      EXPECT_EQ(got[l], sum) << Name(path) << ", lane " << l;
    }
  }
}

TEST(Encoders, RefusesWhatThereIsNoCodeFor) {
  const auto valid = [](auto change) {
    CnnShape shape = kSmall;
    change(shape);
    return shape.Valid();
  };
  EXPECT_TRUE(valid([](CnnShape&) {}));
  EXPECT_FALSE(valid([](CnnShape& s) { s.channels1 = 24; }));
  EXPECT_FALSE(valid([](CnnShape& s) { s.channels2 = 0; }));
  EXPECT_FALSE(valid([](CnnShape& s) { s.features = 100; }));
  EXPECT_FALSE(valid([](CnnShape& s) { s.kernel1 = 3; }));
  EXPECT_FALSE(valid([](CnnShape& s) { s.stride1 = 0; }));
  EXPECT_FALSE(valid([](CnnShape& s) { s.height = 3; }));
  EXPECT_FALSE(valid([](CnnShape& s) { s.kernel2 = 11; }));
  EXPECT_FALSE(valid([](CnnShape& s) { s.channels = 1, s.width = 41; }));
  EXPECT_FALSE((TilesShape{16, 24, 128}.Valid()));
  Buffer<uint8_t> frames(2 * kTileBytes);
  EXPECT_TRUE(ValidCodes(2, frames.get()));
  frames[kTileBytes + kTileRows * kTileSide + 1] = 255;  // a number, no code
  EXPECT_TRUE(ValidCodes(2, frames.get()));
  frames[kTileBytes + 7] = 32;
  EXPECT_FALSE(ValidCodes(2, frames.get()));
}

}  // namespace
