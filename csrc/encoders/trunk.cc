// Forward and backward pass of the trunk, and the layouts of its weights.
#include "encoders/trunk.h"

#include <algorithm>
#include <cstring>

#include "encoders/bfloat16.h"

namespace encoders {

namespace {

constexpr int32_t kNoOffset[] = {0};

// Returns where the windows begin in `rows` consecutive maps.
std::vector<int32_t> Windows(const TrunkShape& shape, int rows) {
  std::vector<int32_t> at;
  for (int r = 0; r < rows; ++r) {
    for (int y = 0; y < shape.out_height(); ++y) {
      for (int x = 0; x < shape.out_width(); ++x) {
        at.push_back(r * shape.map() +
                     (y * shape.width + x) * shape.stride * shape.channels);
      }
    }
  }
  return at;
}

// Returns where the rows of a window begin.
std::vector<int32_t> WindowRows(const TrunkShape& shape) {
  std::vector<int32_t> at;
  for (int y = 0; y < shape.kernel_height; ++y) {
    at.push_back(y * shape.width * shape.channels);
  }
  return at;
}

// Returns the first `count` multiples of `step`: the starts of consecutive
// rows.
std::vector<int32_t> Steps(int count, int step) {
  std::vector<int32_t> at(count);
  for (int i = 0; i < count; ++i) at[i] = i * step;
  return at;
}

// Fetches weights in the order of memory. Packing jumps between rows, and waits
// for each cache line of a network that was not used for a while.
void Fetch(const float* weights, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(float);
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(weights + i);
}

// Packs weights (outputs, channels, positions) as (blocks of outputs, pairs of
// (position, channel), 16). Rows have length `row` and are read from input
// `begin` on.
void PackForward(const Kernels& kernels, const float* weights, int64_t row,
                 int outputs, int channels, int positions, int64_t pairs,
                 float* to) {
  for (int block = 0; block < outputs / kLanes; ++block) {
    for (int c = 0; c < channels; c += 2) {
      kernels.pack(
          weights + block * kLanes * row + static_cast<int64_t>(c) * positions,
          row, positions, positions,
          to + (block * pairs + c / 2) * kLanes * kernels.pair_floats,
          static_cast<int64_t>(channels) / 2 * kLanes);
    }
  }
}

// Packs the same weights for the backward pass, which sums over outputs:
// (positions, blocks of channels, pairs of outputs, 16).
void PackBackward(const Kernels& kernels, const float* weights, int64_t row,
                  int outputs, int channels, int positions, float* to) {
  const int64_t block_words = static_cast<int64_t>(outputs) / 2 * kLanes;
  for (int block = 0; block < channels / kLanes; ++block) {
    for (int o = 0; o < outputs; o += 2) {
      kernels.pack(
          weights + o * row + static_cast<int64_t>(block) * kLanes * positions,
          positions, row, positions,
          to + (block * block_words + o / 2 * kLanes) * kernels.pair_floats,
          channels / kLanes * block_words);
    }
  }
}

// Reorders sums from (positions, channels, outputs) to (outputs, channels,
// positions).
void Unpack(const Kernels& kernels, const float* sums, int outputs,
            int channels, int positions, float* to, int64_t row) {
  for (int o = 0; o < outputs; o += kLanes) {
    for (int c = 0; c < channels; ++c) {
      kernels.transpose(sums + static_cast<int64_t>(c) * outputs + o,
                        static_cast<int64_t>(channels) * outputs, positions,
                        to + o * row + static_cast<int64_t>(c) * positions,
                        row);
    }
  }
}

}  // namespace

std::vector<float> FlushedBias(const float* bias, int size) {
  std::vector<float> result(bias, bias + size);
  for (float& value : result) value = FlushBias(value);
  return result;
}

int TrunkForward::GroupRows(const TrunkShape& shape) {
  // Enough positions that the remainder after the last whole tile costs little.
  return shape.positions() >= 16 ? 2 : 8;
}

TrunkForward::TrunkForward(const TrunkShape& shape, const TrunkWeights& weights,
                           const Kernels& kernels)
    : shape_(shape),
      kernels_(kernels),
      conv_(ScratchPairs(kernels, static_cast<int64_t>(shape.out_channels) *
                                      shape.channels * shape.taps() / 2)),
      linear_(ScratchPairs(
          kernels, static_cast<int64_t>(shape.features) * shape.inputs() / 2)),
      scratch_(Scratch<float>(std::max(kBlockRows * shape.inputs(),
                                       GroupRows(shape) * shape.map()))),
      conv_bias_(FlushedBias(weights.conv_bias, shape.out_channels)),
      linear_bias_(FlushedBias(weights.linear_bias, shape.features)),
      conv_at_(Windows(shape, GroupRows(shape))),
      conv_segments_(WindowRows(shape)),
      row_at_(Steps(kBlockRows, shape.inputs())),
      row_to_(Steps(kBlockRows, shape.features)) {
  for (int r = 0; r < GroupRows(shape); ++r) {
    for (int p = 0; p < shape.positions(); ++p) {
      conv_to_.push_back(r * shape.inputs() + p * shape.out_channels);
    }
  }
  Fetch(weights.linear, static_cast<int64_t>(shape.features) * shape.inputs());
  const int window = shape.channels * shape.taps();
  PackForward(kernels, weights.conv, window, shape.out_channels, shape.channels,
              shape.taps(), window / 2, conv_.get());
  const int64_t pairs = shape.inputs() / 2;
  PackForward(kernels, weights.linear, shape.inputs(), shape.features,
              shape.out_channels, shape.positions(), pairs, linear_.get());
  if (shape.extra != 0) {
    PackForward(kernels, weights.linear + shape.flat(), shape.inputs(),
                shape.features, 2, shape.extra / 2, pairs,
                linear_.get() + static_cast<int64_t>(shape.flat()) / 2 *
                                    kLanes * kernels.pair_floats);
  }
}

void TrunkForward::Convolve(int rows, const uint16_t* maps, uint16_t* x) const {
  DotTask task{};
  task.x = kernels_.operands(maps, rows * shape_.map(), scratch_.get());
  task.at = conv_at_.data();
  task.segments = conv_segments_.data();
  task.segment_count = shape_.kernel_height;
  task.segment_pairs = shape_.kernel_width * shape_.channels / 2;
  task.weights = conv_.get();
  task.bias = conv_bias_.data();
  task.positions = rows * shape_.positions();
  task.blocks = shape_.out_channels / kLanes;
  task.finish = Finish::kReluRound;
  task.to = conv_to_.data();
  task.out16 = x;
  kernels_.dot(task);
}

void TrunkForward::Linear(int rows, const uint16_t* x, float* y) const {
  DotTask task{};
  task.x = kernels_.operands(x, rows * shape_.inputs(), scratch_.get());
  task.at = row_at_.data();
  task.segments = kNoOffset;
  task.segment_count = 1;
  task.segment_pairs = shape_.inputs() / 2;
  task.weights = linear_.get();
  task.bias = linear_bias_.data();
  task.positions = rows;
  task.blocks = shape_.features / kLanes;
  task.finish = Finish::kRelu;
  task.to = row_to_.data();
  task.out32 = y;
  kernels_.dot(task);
}

TrunkBackward::TrunkBackward(const TrunkShape& shape,
                             const TrunkWeights& weights,
                             const Kernels& kernels)
    : shape_(shape),
      kernels_(kernels),
      conv_(ScratchPairs(kernels, static_cast<int64_t>(shape.out_channels) *
                                      shape.channels * shape.taps() / 2)),
      linear_(ScratchPairs(
          kernels, static_cast<int64_t>(shape.features) * shape.flat() / 2)),
      d_conv_(static_cast<size_t>(shape.out_channels) * shape.channels *
              shape.taps()),
      d_conv_bias_(shape.out_channels),
      d_linear_(static_cast<size_t>(shape.features) * shape.inputs()),
      d_linear_bias_(shape.features),
      dy_(Scratch<uint16_t>(kBlockRows * shape.features)),
      dx_(Scratch<uint16_t>(kBlockRows * shape.flat())),
      dy_pairs_(ScratchPairs(kernels, kBlockRows / 2 * shape.features)),
      dx_pairs_(ScratchPairs(kernels, shape.flat())),
      x_pairs_(ScratchPairs(kernels, kBlockRows / 2 * shape.inputs())),
      map_pairs_(ScratchPairs(kernels, shape.map())),
      zeros_(std::max(shape.map(), shape.inputs())),
      conv_at_(Windows(shape, 1)),
      conv_segments_(WindowRows(shape)),
      pair_at_(Steps(kBlockRows / 2, shape.inputs())) {
  const int group = TrunkForward::GroupRows(shape);
  scratch_ = Scratch<float>(
      std::max(kBlockRows * shape.features, group * shape.flat()));
  d_sums_ = Scratch<float>(static_cast<int64_t>(group) * shape.map());
  d_map_ = Scratch<uint16_t>(static_cast<int64_t>(group) * shape.map());
  dx_at_ = Steps(group * shape.positions(), shape.out_channels);
  tap_to_ = Windows(shape, group);
  PackBackward(kernels, weights.conv,
               static_cast<int64_t>(shape.channels) * shape.taps(),
               shape.out_channels, shape.channels, shape.taps(), conv_.get());
  PackBackward(kernels, weights.linear, shape.inputs(), shape.features,
               shape.out_channels, shape.positions(), linear_.get());
}

void TrunkBackward::KeepExtra(const TrunkWeights& weights, int extra_kept) {
  extra_kept_ = extra_kept;
  const int64_t row = shape_.inputs();
  const int64_t pairs = static_cast<int64_t>(extra_kept) * shape_.features / 2;
  const auto words = Scratch<uint32_t>(pairs);
  uint32_t* to = words.get();
  for (int block = 0; block < extra_kept; block += kLanes) {
    for (int f = 0; f < shape_.features; f += 2) {
      const float* from = weights.linear + f * row + shape_.flat() + block;
      for (int l = 0; l < kLanes; ++l)
        *to++ = RoundPair(from[l], from[l + row]);
    }
  }
  extra_ = ScratchPairs(kernels_, pairs);
  kernels_.packed(words.get(), static_cast<int>(pairs), extra_.get());
}

void TrunkBackward::Linear(int rows, const uint16_t* x, const float* y,
                           const float* dy, float* d_extra) {
  const int features = shape_.features;
  const int inputs = shape_.inputs();
  const int64_t unit = kernels_.pair_floats;
  kernels_.keep_positive(dy, y, rows * features, dy_.get());
  const int pairs = (rows + 1) / 2;
  if (rows % 2 != 0) {  // the last row's partner
    std::memset(dy_.get() + rows * features, 0, features * sizeof(uint16_t));
  }
  for (int p = 0; p < pairs; ++p) {
    const uint16_t* first = x + static_cast<int64_t>(2 * p) * inputs;
    const uint16_t* second = 2 * p + 1 < rows ? first + inputs : zeros_.data();
    kernels_.packed_pairs(dy_.get() + 2 * p * features,
                          dy_.get() + (2 * p + 1) * features, features,
                          dy_pairs_.get() + p * features * unit);
    kernels_.operand_pairs(first, second, inputs,
                           x_pairs_.get() + p * inputs * unit);
  }
  OuterTask outer{};
  outer.x = x_pairs_.get();
  outer.at = pair_at_.data();
  outer.steps = pairs;
  outer.segments = kNoOffset;
  outer.segment_count = 1;
  outer.segment_length = inputs;
  outer.d = dy_pairs_.get();
  outer.blocks = features / kLanes;
  outer.out = d_linear_.data();
  kernels_.outer(outer);
  kernels_.sum_pairs(dy_pairs_.get(), pairs, features / kLanes,
                     d_linear_bias_.data());

  std::vector<int32_t> at(rows);
  std::vector<int32_t> to(rows);
  std::vector<int32_t> active(rows);
  for (int r = 0; r < rows; ++r) at[r] = r * features;
  DotTask dot{};
  dot.x = kernels_.operands(dy_.get(), rows * features, scratch_.get());
  dot.at = at.data();
  dot.segments = kNoOffset;
  dot.segment_count = 1;
  dot.segment_pairs = features / 2;
  dot.positions = rows;
  dot.weights = linear_.get();
  dot.blocks = shape_.flat() / kLanes;
  dot.finish = Finish::kActive;
  dot.out16 = dx_.get();
  dot.active = x;
  for (int r = 0; r < rows; ++r) {
    to[r] = r * shape_.flat();
    active[r] = r * inputs;
  }
  dot.to = to.data();
  dot.active_at = active.data();
  kernels_.dot(dot);
  if (extra_kept_ != 0) {
    for (int r = 0; r < rows; ++r) to[r] = r * extra_kept_;
    std::memset(d_extra, 0, sizeof(float) * rows * extra_kept_);
    dot.weights = extra_.get();
    dot.blocks = extra_kept_ / kLanes;
    dot.finish = Finish::kAdd;
    dot.out32 = d_extra;
    kernels_.dot(dot);
  }
}

const uint16_t* TrunkBackward::Convolve(int first, int rows,
                                        const uint16_t* maps) {
  const int map = shape_.map();
  const int flat = shape_.flat();
  const uint16_t* dx = dx_.get() + static_cast<int64_t>(first) * flat;

  std::memset(d_sums_.get(), 0, sizeof(float) * rows * map);
  DotTask dot{};
  dot.x = kernels_.operands(dx, rows * flat, scratch_.get());
  dot.at = dx_at_.data();
  dot.segments = kNoOffset;
  dot.segment_count = 1;
  dot.segment_pairs = shape_.out_channels / 2;
  dot.positions = rows * shape_.positions();
  dot.blocks = shape_.channels / kLanes;
  dot.finish = Finish::kAdd;
  dot.to = tap_to_.data();
  const int64_t tap_words = static_cast<int64_t>(shape_.channels) *
                            shape_.out_channels / 2 * kernels_.pair_floats;
  for (int tap = 0; tap < shape_.taps(); ++tap) {
    dot.weights = conv_.get() + tap * tap_words;
    dot.out32 = d_sums_.get() + (tap / shape_.kernel_width * shape_.width +
                                 tap % shape_.kernel_width) *
                                    shape_.channels;
    kernels_.dot(dot);
  }
  kernels_.keep_active(d_sums_.get(), maps, rows * map, d_map_.get());
  if (rows % 2 != 0) {
    std::memset(d_map_.get() + rows * map, 0, map * sizeof(uint16_t));
  }

  OuterTask outer{};
  outer.x = map_pairs_.get();
  outer.at = conv_at_.data();
  outer.steps = shape_.positions();
  outer.segments = conv_segments_.data();
  outer.segment_count = shape_.kernel_height;
  outer.segment_length = shape_.kernel_width * shape_.channels;
  outer.d = dx_pairs_.get();
  outer.blocks = shape_.out_channels / kLanes;
  outer.out = d_conv_.data();
  for (int r = 0; r < rows; r += 2) {
    const bool both = r + 1 < rows;
    kernels_.packed_pairs(dx + r * flat,
                          both ? dx + (r + 1) * flat : zeros_.data(), flat,
                          dx_pairs_.get());
    kernels_.operand_pairs(maps + r * map,
                           both ? maps + (r + 1) * map : zeros_.data(), map,
                           map_pairs_.get());
    kernels_.outer(outer);
    kernels_.sum_pairs(dx_pairs_.get(), shape_.positions(),
                       shape_.out_channels / kLanes, d_conv_bias_.data());
  }
  return d_map_.get();
}

void TrunkBackward::Finish(const TrunkGradients& gradients) const {
  Unpack(kernels_, d_conv_.data(), shape_.out_channels, shape_.channels,
         shape_.taps(), gradients.conv,
         static_cast<int64_t>(shape_.channels) * shape_.taps());
  Unpack(kernels_, d_linear_.data(), shape_.features, shape_.out_channels,
         shape_.positions(), gradients.linear, shape_.inputs());
  if (shape_.extra != 0) {
    Unpack(kernels_,
           d_linear_.data() +
               static_cast<int64_t>(shape_.flat()) * shape_.features,
           shape_.features, 2, shape_.extra / 2,
           gradients.linear + shape_.flat(), shape_.inputs());
  }
  std::copy(d_conv_bias_.begin(), d_conv_bias_.end(), gradients.conv_bias);
  std::copy(d_linear_bias_.begin(), d_linear_bias_.end(),
            gradients.linear_bias);
}

}  // namespace encoders
