// The encoder of tiles, block by block, and its table.
#include "encoders/tiles.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "encoders/bfloat16.h"

namespace encoders {

namespace {

constexpr int kKernel = 3;
constexpr int kTaps = kKernel * kKernel;
constexpr int kStride = 2;
// The cells have a border with an additional code, whose rows of the table are
// zeros.
constexpr int kBorder = kTileCodes;
constexpr int kTableCodes = kTileCodes + 1;
constexpr int kGridWidth = kTileSide + 2;
constexpr int kGridCells = kGridWidth * (kTileRows + 2);
constexpr int kThingCodes = kThings * kCodeSize;
constexpr int kMotion = kThings * (kCodeSize + kThingNumbers);

// Embedding and weights rounded to bfloat16, as the sums use them.
struct Rounded {
  std::vector<float> codes;  // (32, 8)
  std::vector<float> conv;   // (taps, 8, channels)
};

Rounded RoundWeights(const TilesShape& shape, const TilesWeights& weights) {
  Rounded result;
  result.codes.resize(kTileCodes * kCodeSize);
  for (size_t i = 0; i < result.codes.size(); ++i) {
    result.codes[i] = FromBf16(RoundToBf16(weights.codes[i]));
  }
  const int channels = shape.channels1;
  result.conv.resize(static_cast<size_t>(kTaps) * kCodeSize * channels);
  const float* from = weights.conv;
  for (int c = 0; c < channels; ++c) {
    for (int e = 0; e < kCodeSize; ++e) {
      for (int tap = 0; tap < kTaps; ++tap) {
        result.conv[(tap * kCodeSize + e) * channels + c] =
            FromBf16(RoundToBf16(*from++));
      }
    }
  }
  return result;
}

TableTask MakeTask(const TilesShape& shape, const uint8_t* grid) {
  const TrunkShape trunk = shape.trunk();
  return {.grid = grid,
          .grid_width = kGridWidth,
          .height = trunk.height,
          .width = trunk.width,
          .stride = kStride,
          .kernel = kKernel,
          .codes = kTableCodes,
          .code_size = kCodeSize,
          .channels = shape.channels1};
}

// Copies the cells of a frame into the border.
void FillGrid(const uint8_t* frame, uint8_t* grid) {
  for (int y = 0; y < kTileRows; ++y) {
    std::memcpy(grid + (y + 1) * kGridWidth + 1, frame + y * kTileSide,
                kTileSide);
  }
}

const uint8_t* Things(const uint8_t* frame) {
  return frame + kTileRows * kTileSide;
}

// Spreads a thing over the four cells around it, as near_maps in tiles.py does.
// x and y are pixels from the middle of the first cell; shares are 64ths as
// bfloat16. Larger positive numbers have larger bits.
void AddNear(int x, int y, const uint16_t* shares, const int* place,
             uint16_t* more) {
  const int column = x >> 3, right = x & (kNearCell - 1);
  const int row = y >> 3, down = y & (kNearCell - 1);
  const auto add = [&](int r, int c, int share) {
    if (r < 0 || r >= kNearSide || c < 0 || c >= kNearSide) return;
    uint16_t& cell = more[place[r * kNearSide + c]];
    cell = std::max(cell, shares[share]);
  };
  const int left = kNearCell - right, up = kNearCell - down;
  add(row, column, up * left);
  add(row, column + 1, up * right);
  add(row + 1, column, down * left);
  add(row + 1, column + 1, down * right);
}

// Adds the maps of enemies and dangers near Mario; `place` is the place of the
// first cell.
void AddNearMaps(const uint8_t* things, const uint16_t* shares,
                 const int* place, uint16_t* more) {
  const auto number = [&](int thing, int column) {
    return static_cast<int8_t>(things[thing * kThingBytes + column]);
  };
  for (int t = 1; t < kThings; ++t) {
    const int code = things[t * kThingBytes];
    if (code != kEnemy && code != kDanger) continue;
    const int* map = place;
    for (const int frames : kFramesAhead) {
      // Speeds are in 1/16 pixel per frame.
      const int x =
          number(t, 1) + ((number(t, 3) - number(0, 3)) * frames >> 4);
      const int y =
          number(t, 2) + ((number(t, 4) - number(0, 4)) * frames >> 4);
      AddNear(x - kNearLeft, y - kNearTop, shares, map, more);
      map += kNearSide * kNearSide;
    }
  }
}

}  // namespace

TrunkShape TilesShape::trunk() const {
  return {.channels = channels1,
          .height = (kTileRows + 2 - kKernel) / kStride + 1,
          .width = (kTileSide + 2 - kKernel) / kStride + 1,
          .kernel_height = 3,
          .kernel_width = 4,
          .stride = 2,
          .out_channels = channels2,
          .extra = kMotion + kNear,
          .features = features};
}

bool TilesShape::Valid() const {
  return channels1 > 0 && channels2 > 0 && features > 0 &&
         channels1 % kLanes == 0 && channels2 % kLanes == 0 &&
         features % kLanes == 0;
}

bool ValidCodes(int64_t rows, const uint8_t* frames) {
  uint8_t most = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* frame = frames + r * kTileBytes;
    for (int i = 0; i < kTileRows * kTileSide; ++i) {
      most = std::max(most, frame[i]);
    }
    for (int i = 0; i < kThings; ++i) {
      most = std::max(most, Things(frame)[i * kThingBytes]);
    }
  }
  return most < kTileCodes;
}

void TilesForward(const TilesShape& shape, Path path, int64_t rows,
                  const uint8_t* frames, const TilesWeights& weights,
                  uint16_t* maps, uint16_t* x, float* y) {
  const Kernels& kernels = KernelsFor(path);
  const TrunkShape trunk_shape = shape.trunk();
  const TrunkForward trunk(trunk_shape, weights.trunk, kernels);
  const Rounded rounded = RoundWeights(shape, weights);
  const std::vector<float> bias = FlushedBias(weights.bias, shape.channels1);
  // Fills in each extra input at the place where it is kept.
  const int extra = trunk_shape.extra;
  std::vector<int> place(extra);
  for (int i = 0; i < extra; ++i) place[i] = ExtraPlace(i, extra);
  std::vector<uint16_t> codes(kTileCodes * kCodeSize);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = RoundToBf16(weights.codes[i]);
  }
  std::vector<uint16_t> numbers(kThingNumbers * 256);
  for (int i = 0; i < kThingNumbers; ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      numbers[i * 256 + byte] =
          RoundToBf16(static_cast<int8_t>(byte) * weights.scales[i]);
    }
  }
  uint16_t shares[kNearCell * kNearCell + 1];
  for (int i = 0; i <= kNearCell * kNearCell; ++i) {
    shares[i] = RoundToBf16(static_cast<float>(i) / (kNearCell * kNearCell));
  }
  uint8_t grid[kGridCells];
  std::memset(grid, kBorder, sizeof(grid));
  const TableTask task = MakeTask(shape, grid);
  // (taps, 33, channels): the term that a code under a tap adds.
  const auto table = Scratch<float>(kTaps * kTableCodes * shape.channels1);
  kernels.table_make(task, rounded.codes.data(), rounded.conv.data(),
                     table.get());
  const int group = TrunkForward::GroupRows(trunk_shape);
  const int64_t map = trunk_shape.map();
  const int64_t inputs = trunk_shape.inputs();
  std::unique_ptr<uint16_t[]> own_maps;
  std::unique_ptr<uint16_t[]> own_x;
  if (maps == nullptr) own_maps = Scratch<uint16_t>(group * map);
  if (x == nullptr) own_x = Scratch<uint16_t>(kBlockRows * inputs);

  for (int64_t block = 0; block < rows; block += kBlockRows) {
    const int count =
        static_cast<int>(std::min<int64_t>(kBlockRows, rows - block));
    uint16_t* block_x = x ? x + block * inputs : own_x.get();
    for (int first = 0; first < count; first += group) {
      const int some = std::min(group, count - first);
      uint16_t* some_maps =
          maps ? maps + (block + first) * map : own_maps.get();
      for (int r = 0; r < some; ++r) {
        const uint8_t* frame = frames + (block + first + r) * kTileBytes;
        FillGrid(frame, grid);
        kernels.table_sum(task, table.get(), bias.data(), some_maps + r * map);
        uint16_t* more = block_x + (first + r) * inputs + trunk_shape.flat();
        std::fill(more, more + extra, uint16_t{0});
        for (int t = 0; t < kThings; ++t) {
          const uint8_t* thing = Things(frame) + t * kThingBytes;
          for (int e = 0; e < kCodeSize; ++e) {
            more[place[t * kCodeSize + e]] = codes[thing[0] * kCodeSize + e];
          }
          for (int i = 0; i < kThingNumbers; ++i) {
            more[place[kThingCodes + t * kThingNumbers + i]] =
                numbers[i * 256 + thing[1 + i]];
          }
        }
        AddNearMaps(Things(frame), shares, &place[kMotion], more);
      }
      trunk.Convolve(some, some_maps, block_x + first * inputs);
    }
    trunk.Linear(count, block_x, y + block * shape.features);
  }
}

void TilesBackward(const TilesShape& shape, Path path, int64_t rows,
                   const uint8_t* frames, const TilesWeights& weights,
                   const uint16_t* maps, const uint16_t* x, const float* y,
                   const float* dy, const TilesGradients& gradients) {
  const Kernels& kernels = KernelsFor(path);
  const TrunkShape trunk_shape = shape.trunk();
  TrunkBackward trunk(trunk_shape, weights.trunk, kernels);
  trunk.KeepExtra(weights.trunk, kThingCodes);
  const int channels = shape.channels1;
  std::vector<float> d_table(static_cast<size_t>(kTaps) * kTableCodes *
                             channels);
  std::vector<float> d_bias(channels);
  std::vector<float> d_codes(kTileCodes * kCodeSize);
  std::vector<float> d_things(kBlockRows * kThingCodes);
  uint8_t grid[kGridCells];
  std::memset(grid, kBorder, sizeof(grid));
  const TableTask task = MakeTask(shape, grid);
  const int group = TrunkForward::GroupRows(trunk_shape);
  const int64_t map = trunk_shape.map();
  const int64_t inputs = trunk_shape.inputs();

  for (int64_t block = 0; block < rows; block += kBlockRows) {
    const int count =
        static_cast<int>(std::min<int64_t>(kBlockRows, rows - block));
    trunk.Linear(count, x + block * inputs, y + block * shape.features,
                 dy + block * shape.features, d_things.data());
    for (int first = 0; first < count; first += group) {
      const int some = std::min(group, count - first);
      const uint16_t* d_map =
          trunk.Convolve(first, some, maps + (block + first) * map);
      for (int r = 0; r < some; ++r) {
        const uint8_t* frame = frames + (block + first + r) * kTileBytes;
        FillGrid(frame, grid);
        kernels.table_scatter(task, d_map + r * map, d_table.data(),
                              d_bias.data());
        const float* d = &d_things[(first + r) * kThingCodes];
        for (int t = 0; t < kThings; ++t) {
          const int code = Things(frame)[t * kThingBytes];
          for (int e = 0; e < kCodeSize; ++e) {
            d_codes[code * kCodeSize + e] += d[t * kCodeSize + e];
          }
        }
      }
    }
  }

  // Computes the gradients of codes and convolution from the gradient of the
  // table.
  const Rounded rounded = RoundWeights(shape, weights);
  std::vector<float> d_conv(rounded.conv.size());
  std::vector<float> d_lanes(d_codes.size() * kLanes);
  kernels.table_gradients(task, rounded.codes.data(), rounded.conv.data(),
                          d_table.data(), d_lanes.data(), d_conv.data());
  for (size_t i = 0; i < d_codes.size(); ++i) {
    for (int l = 0; l < kLanes; ++l) d_codes[i] += d_lanes[i * kLanes + l];
  }
  float* to = gradients.conv;
  for (int c = 0; c < channels; ++c) {
    for (int e = 0; e < kCodeSize; ++e) {
      for (int tap = 0; tap < kTaps; ++tap) {
        *to++ = d_conv[(tap * kCodeSize + e) * channels + c];
      }
    }
  }
  std::copy(d_codes.begin(), d_codes.end(), gradients.codes);
  std::copy(d_bias.begin(), d_bias.end(), gradients.bias);
  trunk.Finish(gradients.trunk);
}

}  // namespace encoders
