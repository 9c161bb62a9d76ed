// The loops of the encoders, one table of functions for each instruction set.
//
// A *pair* is a 32-bit word of two bfloat16. A product of pairs adds the upper
// product first and then the lower one, as VDPBF16PS does; each of the 16 lanes
// is a separate sum. So the order of every sum is fixed, and all paths give
// equal results. Counts without a comment are multiples of 16.
//
// Without AVX512_BF16, the innermost loops would have to widen bfloat16 to
// float32. So every path has its own form of what it multiplies, in memory of
// float: an *operand* is a bfloat16 or a float32, and 16 *packed* pairs are 16
// words, or the upper and then the lower values as 32 float32.
#pragma once

#include <cstdint>

#include "cpu/path.h"

namespace encoders {

using cpu::Path;

using cpu::kLanes;
/// Those with separate kernels.
inline constexpr Path kPaths[] = {Path::kScalar, Path::kNeon, Path::kAvx2,
                                  Path::kAvx512, Path::kAvx512Bf16};

/// What a kernel does with a sum.
enum class Finish : uint8_t {
  kRelu,       ///< out32 = max(0, sum)
  kReluRound,  ///< out16 = max(0, sum), rounded
  kActive,     ///< out16 = sum where `active` is not 0, else 0, rounded
  kAdd,        ///< out32 += sum; the sum begins with out32 in place of the bias
};

/// Matrix product with gathered rows: a row consists of equally long segments.
struct DotTask {
  const float* x;           ///< operands
  const int32_t* at;        ///< (positions,) where each begins in x
  const int32_t* segments;  ///< (segment_count,) from there
  int segment_count;
  int segment_pairs;     ///< pairs in each; even
  const float* weights;  ///< (blocks, pairs of all segments, 16) packed
  const float* bias;     ///< (16 * blocks,); null: zeros
  int positions;
  int blocks;  ///< of 16 outputs
  Finish finish;
  const int32_t* to;  ///< (positions,) where each begins in the output
  uint16_t* out16;
  float* out32;
  const uint16_t* active;    ///< bfloat16
  const int32_t* active_at;  ///< (positions,) where each begins in active
};

/// Sum of outer products: out[k][c] += x[at + k] * d[step][c], pair by pair.
struct OuterTask {
  const float* x;     ///< pairs of operands
  const int32_t* at;  ///< (steps,) where each begins in x
  int steps;
  const int32_t* segments;  ///< (segment_count,) from there
  int segment_count;
  int segment_length;  ///< pairs in each; a multiple of 4
  const float* d;      ///< (steps, 16 * blocks) packed pairs
  int blocks;
  float* out;  ///< (segment_count * segment_length, 16 * blocks)
};

/// For every position of a grid of codes, a sum of rows of a table.
struct TableTask {
  const uint8_t* grid;  ///< codes
  int grid_width;
  int height, width, stride;  ///< positions, and cells between them
  int kernel;                 ///< cells of a side
  int codes;      ///< rows of the table for each tap, with one of zeros
  int code_size;  ///< e: numbers that embed a code
  int channels;
};

struct Kernels {
  /// The memory of a packed pair, and of a pair of operands.
  int pair_floats;
  /// Computes (pixel - 144) / 64 of n pixels, which is exact, as operands.
  void (*centre)(const uint8_t* pixels, int n, float* out);
  /// The same as pairs of two pictures' pixels.
  void (*centre_pairs)(const uint8_t* first, const uint8_t* second, int n,
                       float* out);
  /// Returns n values, any number, as operands: themselves, or in `scratch`.
  const float* (*operands)(const uint16_t* values, int n, float* scratch);
  /// Writes n pairs of operands; n may be any number.
  void (*operand_pairs)(const uint16_t* first, const uint16_t* second, int n,
                        float* out);
  /// Packs n pairs.
  void (*packed)(const uint32_t* pairs, int n, float* out);
  /// Packs the pairs of n values each.
  void (*packed_pairs)(const uint16_t* first, const uint16_t* second, int n,
                       float* out);
  void (*dot)(const DotTask& task);
  void (*outer)(const OuterTask& task);
  /// sums[c] += both halves of d[step][c]; d is (steps, 16 * blocks).
  void (*sum_pairs)(const float* d, int steps, int blocks, float* sums);
  /// values where active is not 0, else 0, rounded.
  void (*keep_active)(const float* values, const uint16_t* active, int n,
                      uint16_t* out);
  /// gradients where the output of a ReLU is not 0, else 0, rounded.
  void (*keep_positive)(const float* gradients, const float* output, int n,
                        uint16_t* out);
  /// Pair j * to_stride + l of `to` = the pair of from[l * lane_stride + j] and
  /// the value pair_stride after it, rounded and packed, for 16 lanes l and any
  /// number of columns j.
  void (*pack)(const float* from, int64_t lane_stride, int64_t pair_stride,
               int columns, float* to, int64_t to_stride);
  /// to[l * lane_stride + j] = from[j * from_stride + l], for 16 lanes l and
  /// any number of columns j.
  void (*transpose)(const float* from, int64_t from_stride, int columns,
                    float* to, int64_t lane_stride);
  /// table[tap][code] = the sum over e of codes[code][e] * conv[tap][e], of
  /// rounded factors; the last code of each tap has zeros.
  void (*table_make)(const TableTask& task, const float* codes,
                     const float* conv, float* table);
  /// Computes the gradients of codes and conv from the gradient of the table;
  /// d_codes is (codes, e, 16) and must still be summed over its lanes.
  void (*table_gradients)(const TableTask& task, const float* codes,
                          const float* conv, const float* d_table,
                          float* d_codes, float* d_conv);
  /// out[position] = max(0, bias + table[tap][code] over the taps), rounded.
  void (*table_sum)(const TableTask& task, const float* table,
                    const float* bias, uint16_t* out);
  /// table[tap][code] += d[position], and bias += d[position].
  void (*table_scatter)(const TableTask& task, const uint16_t* d, float* table,
                        float* bias);
};

/// The path must be supported.
const Kernels& KernelsFor(Path path);

}  // namespace encoders
