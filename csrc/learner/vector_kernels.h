// The loops of the optimiser, one table of functions for each instruction set.
//
// Products and sums are fused (one rounding) on all paths, and every number of
// a result is one sum in the order of its terms. So all paths give equal
// results.
#pragma once

#include <cstdint>

#include "cpu/path.h"

namespace learner {

using cpu::kLanes;

/// The product of a transposed matrix and another matrix.
struct ProductTask {
  const float* a;    ///< (depth, rows)
  int64_t a_stride;  ///< between rows, as below
  const float* b;    ///< (depth, columns)
  int64_t b_stride;
  float* out;  ///< (rows, columns)
  int64_t out_stride;
  int depth;
  int rows;     ///< a multiple of 16
  int columns;  ///< a multiple of 16
  bool lower;   ///< leave blocks of 16 x 16 above the diagonal as they are
  bool add;     ///< the sums begin with what is in `out`
};

struct VectorKernels {
  void (*product)(const ProductTask& task);
  /// to[l * to_stride + i] = from[i * from_stride + l], for 16 l and n rows.
  /// n is a multiple of 16.
  void (*transpose)(const float* from, int64_t from_stride, int64_t n,
                    float* to, int64_t to_stride);
  /// out = alpha * square + beta * x, of n numbers, a multiple of 16.
  void (*combine)(const float* square, float alpha, const float* x, float beta,
                  int64_t n, float* out);
  /// Moves averages towards the gradients by `share`, and writes the averages
  /// that one more equal gradient would give (Nesterov).
  void (*direction)(const float* gradients, float share, int64_t n,
                    float* averages, float* out);
  /// weights = keep * weights - rate * step.
  void (*descend)(const float* step, float keep, float rate, int64_t n,
                  float* weights);
  void (*scale)(float factor, int64_t n, float* values);
};

/// The path must be supported.
const VectorKernels& VectorKernelsFor(cpu::Path path);

}  // namespace learner
