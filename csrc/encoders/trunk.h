// What all encoders end with: a convolution of maps with channels last, ReLU,
// and a linear layer with ReLU over its output and, with tiles, further inputs.
//
// Rows are processed in blocks, whose intermediate values stay in the cache and
// which share each load of the linear layer's weights. Weights and gradients
// are laid out as in PyTorch, (outputs, inputs, height, width).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "encoders/kernels.h"

namespace encoders {

inline constexpr int kBlockRows = 32;

/// Memory that nobody has written yet.
template <typename T>
std::unique_ptr<T[]> Scratch(int64_t size) {
  return std::unique_ptr<T[]>(new T[size]);
}

struct TrunkShape {
  int channels, height, width;  ///< of the map; channels a multiple of 16
  int kernel_height, kernel_width, stride;
  int out_channels;  ///< a multiple of 16
  int extra;         ///< further inputs of the linear layer; even
  int features;      ///< a multiple of 16

  int out_height() const { return (height - kernel_height) / stride + 1; }
  int out_width() const { return (width - kernel_width) / stride + 1; }
  int map() const { return channels * height * width; }
  int positions() const { return out_height() * out_width(); }
  int flat() const { return out_channels * positions(); }
  int inputs() const { return flat() + extra; }
  int taps() const { return kernel_height * kernel_width; }
};

struct TrunkWeights {
  const float* conv;  ///< (out_channels, channels, kernel)
  const float* conv_bias;
  const float* linear;  ///< (features, inputs)
  const float* linear_bias;
};

struct TrunkGradients {
  float* conv;
  float* conv_bias;
  float* linear;
  float* linear_bias;
};

/// Where extra input i lies among them: they are kept in pairs (i, i + half).
inline int ExtraPlace(int i, int extra) {
  return i < extra / 2 ? 2 * i : 2 * (i - extra / 2) + 1;
}

std::vector<float> FlushedBias(const float* bias, int size);

class TrunkForward {
 public:
  TrunkForward(const TrunkShape& shape, const TrunkWeights& weights,
               const Kernels& kernels);

  /// Rows that Convolve should be given at once.
  static int GroupRows(const TrunkShape& shape);

  /// Maps (rows, height, width, channels) to the first parts of x, which is
  /// (rows, inputs); at most GroupRows.
  void Convolve(int rows, const uint16_t* maps, uint16_t* x) const;
  /// x (rows, inputs) to y (rows, features); at most kBlockRows.
  void Join(int rows, const uint16_t* x, float* y) const;

 private:
  TrunkShape shape_;
  const Kernels& kernels_;
  std::unique_ptr<uint32_t[]> conv_, linear_;
  std::vector<float> conv_bias_, linear_bias_;
  std::vector<int32_t> conv_at_, conv_to_, conv_segments_;
  std::vector<int32_t> row_at_, row_to_;
};

class TrunkBackward {
 public:
  TrunkBackward(const TrunkShape& shape, const TrunkWeights& weights,
                const Kernels& kernels);

  /// Begins a block of at most kBlockRows rows: the linear layer. d_extra,
  /// (rows, extra_kept) float32, gets the gradient of the first extra_kept
  /// extra inputs, in their own order; extra_kept is what `KeepExtra` was
  /// given.
  void Join(int rows, const uint16_t* x, const float* y, const float* dy,
            float* d_extra);
  /// The convolution of rows first to first + rows of the block.
  /// Returns the gradient before the map's ReLU, rounded, (rows, map); one row
  /// more, of zeros, if rows is odd.
  const uint16_t* Convolve(int first, int rows, const uint16_t* maps);
  /// Asks for gradients of the first extra inputs; a multiple of 16.
  void KeepExtra(const TrunkWeights& weights, int extra_kept);
  /// Writes all gradients.
  void Finish(const TrunkGradients& gradients) const;

 private:
  TrunkShape shape_;
  const Kernels& kernels_;
  int extra_kept_ = 0;
  std::unique_ptr<uint32_t[]> conv_, linear_, extra_;
  std::vector<float> d_conv_, d_conv_bias_, d_linear_, d_linear_bias_;
  std::unique_ptr<uint16_t[]> dy_, dx_, d_map_;
  std::unique_ptr<uint32_t[]> dy_pairs_, x_pairs_, dx_pairs_, map_pairs_;
  std::unique_ptr<float[]> d_sums_;
  std::vector<uint16_t> zeros_;
  std::vector<int32_t> conv_at_, conv_segments_, dx_at_, tap_to_, pair_at_;
};

}  // namespace encoders
