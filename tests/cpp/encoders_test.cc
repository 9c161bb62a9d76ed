// Compares the encoders' vector paths with the portable path, bit by bit.
// Buffers have exactly their size, so AddressSanitizer detects accesses outside
// them. tests/trainer/test_native_encoders.py compares them with PyTorch's.
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
