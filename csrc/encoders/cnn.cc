// The encoder of pixels, block by block.
#include "encoders/cnn.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "encoders/bfloat16.h"

namespace encoders {

namespace {

// Returns where the windows of a picture begin in its planes.
std::vector<int32_t> PictureWindows(const CnnShape& shape) {
  const TrunkShape trunk = shape.trunk();
  std::vector<int32_t> at;
  for (int y = 0; y < trunk.height; ++y) {
    for (int x = 0; x < trunk.width; ++x) {
      at.push_back((y * shape.width + x) * shape.stride1);
    }
  }
  return at;
}

// Returns where the rows of a window begin.
std::vector<int32_t> PictureWindowRows(const CnnShape& shape) {
  std::vector<int32_t> at;
  for (int c = 0; c < shape.channels; ++c) {
    for (int y = 0; y < shape.kernel1; ++y) {
      at.push_back((c * shape.height + y) * shape.width);
    }
  }
  return at;
}

int Window(const CnnShape& shape) {
  return shape.channels * shape.kernel1 * shape.kernel1;
}

// Packs weights as (blocks of outputs, pairs, 16).
std::unique_ptr<float[]> PackPictureWeights(const Kernels& kernels,
                                            const CnnShape& shape,
                                            const float* weights) {
  const int window = Window(shape);
  const int pairs = shape.channels1 * window / 2;
  const auto words = Scratch<uint32_t>(pairs);
  uint32_t* to = words.get();
  for (int block = 0; block < shape.channels1; block += kLanes) {
    for (int k = 0; k < window; k += 2) {
      for (int l = 0; l < kLanes; ++l) {
        const float* from = weights + (block + l) * window + k;
        *to++ = RoundPair(from[0], from[1]);
      }
    }
  }
  auto result = ScratchPairs(kernels, pairs);
  kernels.packed(words.get(), pairs, result.get());
  return result;
}

}  // namespace

TrunkShape CnnShape::trunk() const {
  return {.channels = channels1,
          .height = (height - kernel1) / stride1 + 1,
          .width = (width - kernel1) / stride1 + 1,
          .kernel_height = kernel2,
          .kernel_width = kernel2,
          .stride = stride2,
          .out_channels = channels2,
          .extra = 0,
          .features = features};
}

bool CnnShape::Valid() const {
  const bool positive = channels > 0 && stride1 > 0 && stride2 > 0 &&
                        channels1 > 0 && channels2 > 0 && features > 0;
  if (!positive || (kernel1 != 4 && kernel1 != 8) || kernel2 < 1) return false;
  if (height < kernel1 || width < kernel1) return false;
  const TrunkShape second = trunk();
  return second.height >= kernel2 && second.width >= kernel2 &&
         channels * height * width % kLanes == 0 && channels1 % kLanes == 0 &&
         channels2 % kLanes == 0 && features % kLanes == 0;
}

void CnnForward(const CnnShape& shape, Path path, int64_t rows,
                const uint8_t* pixels, const CnnWeights& weights,
                uint16_t* maps, uint16_t* x, float* y) {
  const Kernels& kernels = KernelsFor(path);
  const TrunkShape trunk_shape = shape.trunk();
  const TrunkForward trunk(trunk_shape, weights.trunk, kernels);
  const auto packed = PackPictureWeights(kernels, shape, weights.conv);
  const std::vector<float> bias = FlushedBias(weights.bias, shape.channels1);
  const std::vector<int32_t> at = PictureWindows(shape);
  const std::vector<int32_t> segments = PictureWindowRows(shape);
  std::vector<int32_t> to(at.size());
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<int32_t>(i) * shape.channels1;
  }
  const int picture = shape.channels * shape.height * shape.width;
  const auto planes = Scratch<float>(picture);  // of operands
  const int group = TrunkForward::GroupRows(trunk_shape);
  const int64_t map = trunk_shape.map();
  const int64_t inputs = trunk_shape.inputs();
  std::unique_ptr<uint16_t[]> own_maps;
  std::unique_ptr<uint16_t[]> own_x;
  if (maps == nullptr) own_maps = Scratch<uint16_t>(group * map);
  if (x == nullptr) own_x = Scratch<uint16_t>(kBlockRows * inputs);

  DotTask task{};
  task.x = planes.get();
  task.at = at.data();
  task.segments = segments.data();
  task.segment_count = static_cast<int>(segments.size());
  task.segment_pairs = shape.kernel1 / 2;
  task.weights = packed.get();
  task.bias = bias.data();
  task.positions = static_cast<int>(at.size());
  task.blocks = shape.channels1 / kLanes;
  task.finish = Finish::kReluRound;
  task.to = to.data();
  for (int64_t block = 0; block < rows; block += kBlockRows) {
    const int count =
        static_cast<int>(std::min<int64_t>(kBlockRows, rows - block));
    uint16_t* block_x = x ? x + block * inputs : own_x.get();
    for (int first = 0; first < count; first += group) {
      const int some = std::min(group, count - first);
      uint16_t* some_maps =
          maps ? maps + (block + first) * map : own_maps.get();
      for (int r = 0; r < some; ++r) {
        kernels.centre(pixels + (block + first + r) * picture, picture,
                       planes.get());
        task.out16 = some_maps + r * map;
        kernels.dot(task);
      }
      trunk.Convolve(some, some_maps, block_x + first * inputs);
    }
    trunk.Linear(count, block_x, y + block * shape.features);
  }
}

void CnnBackward(const CnnShape& shape, Path path, int64_t rows,
                 const uint8_t* pixels, const CnnWeights& weights,
                 const uint16_t* maps, const uint16_t* x, const float* y,
                 const float* dy, const CnnGradients& gradients) {
  const Kernels& kernels = KernelsFor(path);
  const TrunkShape trunk_shape = shape.trunk();
  TrunkBackward trunk(trunk_shape, weights.trunk, kernels);
  const std::vector<int32_t> at = PictureWindows(shape);
  const std::vector<int32_t> segments = PictureWindowRows(shape);
  const int window = Window(shape);
  std::vector<float> d_conv(static_cast<size_t>(window) * shape.channels1);
  std::vector<float> d_bias(shape.channels1);
  const int picture = shape.channels * shape.height * shape.width;
  const auto planes = ScratchPairs(kernels, picture);
  const int64_t map = trunk_shape.map();
  const int64_t inputs = trunk_shape.inputs();
  const auto d_pairs = ScratchPairs(kernels, map);
  const int group = TrunkForward::GroupRows(trunk_shape);

  OuterTask task{};
  task.x = planes.get();
  task.at = at.data();
  task.steps = static_cast<int>(at.size());
  task.segments = segments.data();
  task.segment_count = static_cast<int>(segments.size());
  task.segment_length = shape.kernel1;
  task.d = d_pairs.get();
  task.blocks = shape.channels1 / kLanes;
  task.out = d_conv.data();
  for (int64_t block = 0; block < rows; block += kBlockRows) {
    const int count =
        static_cast<int>(std::min<int64_t>(kBlockRows, rows - block));
    trunk.Linear(count, x + block * inputs, y + block * shape.features,
                 dy + block * shape.features, nullptr);
    for (int first = 0; first < count; first += group) {
      const int some = std::min(group, count - first);
      const uint16_t* d_map =
          trunk.Convolve(first, some, maps + (block + first) * map);
      for (int r = 0; r < some; r += 2) {
        const uint8_t* now = pixels + (block + first + r) * picture;
        // The partner of a single last row has no gradient, so its pixels do
        // not matter.
        kernels.centre_pairs(now, r + 1 < some ? now + picture : now, picture,
                             planes.get());
        kernels.packed_pairs(d_map + r * map, d_map + (r + 1) * map,
                             static_cast<int>(map), d_pairs.get());
        kernels.outer(task);
        kernels.sum_pairs(d_pairs.get(), task.steps, task.blocks,
                          d_bias.data());
      }
    }
  }
  for (int c = 0; c < shape.channels1; c += kLanes) {
    kernels.transpose(d_conv.data() + c, shape.channels1, window,
                      gradients.conv + static_cast<int64_t>(c) * window,
                      window);
  }
  std::copy(d_bias.begin(), d_bias.end(), gradients.bias);
  trunk.Finish(gradients.trunk);
}

}  // namespace encoders
