// The encoder of pixels: a convolution of uint8 pictures, and the trunk.
#pragma once

#include <cstdint>

#include "encoders/trunk.h"

namespace encoders {

struct CnnShape {
  int channels, height, width;  ///< of the pictures
  int kernel1, stride1, channels1;
  int kernel2, stride2, channels2;
  int features;

  TrunkShape trunk() const;
  /// Whether the kernels support this shape.
  bool Valid() const;
};

struct CnnWeights {
  const float* conv;  ///< (channels1, channels, kernel1, kernel1)
  const float* bias;
  TrunkWeights trunk;
};

struct CnnGradients {
  float* conv;
  float* bias;
  TrunkGradients trunk;
};

/// Computes features from pictures.
///
/// @param pixels (rows, channels, height, width).
/// @param maps (rows, trunk.map()) bfloat16 after the first convolution, for
///     the backward pass; null: not kept.
/// @param x (rows, trunk.inputs()) bfloat16 after the second convolution; null:
///     not kept.
/// @param y (rows, features).
void CnnForward(const CnnShape& shape, Path path, int64_t rows,
                const uint8_t* pixels, const CnnWeights& weights,
                uint16_t* maps, uint16_t* x, float* y);

/// Computes the gradients of all weights from the gradients of the features,
/// dy.
void CnnBackward(const CnnShape& shape, Path path, int64_t rows,
                 const uint8_t* pixels, const CnnWeights& weights,
                 const uint16_t* maps, const uint16_t* x, const float* y,
                 const float* dy, const CnnGradients& gradients);

}  // namespace encoders
