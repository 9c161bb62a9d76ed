// The last part of all encoders: a convolution of maps with channels last,
// ReLU, and a linear layer with ReLU over the output and, with tiles, further
// inputs.
//
// Rows are processed in blocks. The intermediate values of a block stay in the
// cache, and its rows share each load of the linear layer's weights. Weights
// and gradients are laid out as in PyTorch, (outputs, inputs, height, width).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "encoders/kernels.h"

namespace encoders {

inline constexpr int kBlockRows = 32;

/// Allocates uninitialised memory.
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

/// The place of extra input i: extra inputs are kept in pairs (i, i + half).
inline int ExtraPlace(int i, int extra) {
  return i < extra / 2 ? 2 * i : 2 * (i - extra / 2) + 1;
}

/// Allocates n packed pairs or pairs of operands.
inline std::unique_ptr<float[]> ScratchPairs(const Kernels& kernels,
                                             int64_t n) {
  return Scratch<float>(n * kernels.pair_floats);
}

std::vector<float> FlushedBias(const float* bias, int size);

class TrunkForward {
 public:
  TrunkForward(const TrunkShape& shape, const TrunkWeights& weights,
               const Kernels& kernels);

  /// How many rows a call of Convolve should get.
  static int GroupRows(const TrunkShape& shape);

  /// Convolves maps (rows, height, width, channels) into the first parts of x,
  /// which is (rows, inputs); at most GroupRows rows.
  void Convolve(int rows, const uint16_t* maps, uint16_t* x) const;
  /// Computes y (rows, features) from x (rows, inputs); at most kBlockRows
  /// rows.
  void Linear(int rows, const uint16_t* x, float* y) const;

 private:
  TrunkShape shape_;
  const Kernels& kernels_;
  std::unique_ptr<float[]> conv_, linear_;  // packed
  std::unique_ptr<float[]> scratch_;
  std::vector<float> conv_bias_, linear_bias_;
  std::vector<int32_t> conv_at_, conv_to_, conv_segments_;
  std::vector<int32_t> row_at_, row_to_;
};

class TrunkBackward {
 public:
  TrunkBackward(const TrunkShape& shape, const TrunkWeights& weights,
                const Kernels& kernels);

  /// Begins a block of at most kBlockRows rows with the linear layer. d_extra,
  /// (rows, extra_kept) float32, gets the gradient of the first extra_kept
  /// extra inputs, in their own order; extra_kept is what `KeepExtra` was
  /// given.
  void Linear(int rows, const uint16_t* x, const float* y, const float* dy,
              float* d_extra);
  /// Processes the convolution of rows first to first + rows of the block.
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
  std::unique_ptr<float[]> conv_, linear_, extra_;  // packed
  std::vector<float> d_conv_, d_conv_bias_, d_linear_, d_linear_bias_;
  std::unique_ptr<uint16_t[]> dy_, dx_, d_map_;
  std::unique_ptr<float[]> dy_pairs_, dx_pairs_;  // packed
  std::unique_ptr<float[]> x_pairs_, map_pairs_;  // of operands
  std::unique_ptr<float[]> d_sums_, scratch_;
  std::vector<uint16_t> zeros_;
  std::vector<int32_t> conv_at_, conv_segments_, dx_at_, tap_to_, pair_at_;
};

}  // namespace encoders
