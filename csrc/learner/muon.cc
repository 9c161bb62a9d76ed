// Muon: orthogonalises momentum block by block.
#include "learner/muon.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "learner/vector_kernels.h"

namespace learner {

namespace {

// The same coefficients as in trainer/learn/optim.py, which names their
// sources.
constexpr float kLinear = 3.4445f;
constexpr float kCubic = -4.7750f;
constexpr float kQuintic = 2.0315f;
constexpr int kIterations = 5;
constexpr int64_t kBlock = 128;

constexpr int64_t Padded(int64_t size) {
  return (size + kLanes - 1) / kLanes * kLanes;
}

// Floats between rows: an odd number of cache lines, because otherwise the
// columns of a matrix would share few sets of the cache.
constexpr int64_t Stride(int64_t size) {
  return (Padded(size) / kLanes | 1) * kLanes;
}

constexpr int64_t kSquareStride = Stride(kBlock);
constexpr int64_t kSquare = kBlock * kSquareStride;

// One block: at most 128 rows, or as many columns of a tall matrix.
class Block {
 public:
  Block(const VectorKernels& kernels, int64_t rows, int64_t columns, bool tall,
        float* scratch)
      : kernels_(kernels),
        rows_(rows),
        columns_(columns),
        tall_(tall),
        side_(static_cast<int>(Padded(tall ? columns : rows))),
        stride_(Stride(columns)) {
    for (float** part : {&square_, &factor_, &product_, &spare_}) {
      *part = scratch;
      scratch += kSquare;
    }
    direction_ = scratch;
  }

  // Computes the direction x, padded with zeros to multiples of 16.
  void Prepare(const float* gradients, float* momentum, int64_t step,
               float share) {
    for (int64_t i = 0; i < Padded(rows_); ++i) {
      float* row = direction_ + i * stride_;
      std::fill_n(row, Padded(columns_), 0.0f);
      if (i < rows_) {
        kernels_.direction(gradients + i * step, share, columns_,
                           momentum + i * step, row);
      }
    }
  }

  // Computes the product of the iterations' factors for x / (|x| + 1e-7).
  // Returns 1 / (|x| + 1e-7).
  float Iterate() {
    Square();
    const int64_t side = tall_ ? columns_ : rows_;
    float sum = 0;
    for (int64_t i = 0; i < side; ++i) sum += square_[i * kSquareStride + i];
    const float scale = 1.0f / (std::sqrt(sum) + 1e-7f);
    for (int64_t i = 0; i < side; ++i) {
      kernels_.scale(scale * scale, side_, square_ + i * kSquareStride);
    }
    for (int i = 0; i < kIterations; ++i) {
      Multiply(square_, square_, factor_);
      for (int64_t r = 0; r < side; ++r) {
        float* row = factor_ + r * kSquareStride;
        kernels_.combine(row, kQuintic, square_ + r * kSquareStride, kCubic,
                         side_, row);
        row[r] += kLinear;
      }
      if (i + 1 < kIterations) {
        Multiply(factor_, square_, spare_);
        Multiply(factor_, spare_, square_);
      }
      if (i == 0) {
        std::memcpy(product_, factor_, side_ * kSquareStride * sizeof(float));
      } else {
        Multiply(factor_, product_, spare_);
        std::swap(product_, spare_);
      }
    }
    return scale;
  }

  // Applies the product to x and updates the weights.
  void Descend(float* weights, int64_t step, float keep, float rate) {
    float* part = factor_;  // (128, 32) of the result
    for (int64_t i = 0; i < rows_; i += kBlock) {
      const int64_t rows = std::min(kBlock, rows_ - i);
      if (tall_) TransposeRows(i, Padded(rows));
      for (int64_t j = 0; j < columns_; j += kPart) {
        const int64_t columns = std::min(kPart, columns_ - j);
        kernels_.product({.a = tall_ ? square_ : product_,
                          .a_stride = kSquareStride,
                          .b = (tall_ ? product_ : direction_) + j,
                          .b_stride = tall_ ? kSquareStride : stride_,
                          .out = part,
                          .out_stride = kPart,
                          .depth = static_cast<int>(tall_ ? columns_ : rows_),
                          .rows = static_cast<int>(Padded(rows)),
                          .columns = static_cast<int>(Padded(columns)),
                          .lower = false,
                          .add = false});
        for (int64_t r = 0; r < rows; ++r) {
          kernels_.descend(part + r * kPart, keep, rate, columns,
                           weights + (i + r) * step + j);
        }
      }
    }
  }

 private:
  static constexpr int64_t kPart = 32;

  // square = x x^T, or x^T x for a tall matrix.
  void Square() {
    const int64_t depth = tall_ ? rows_ : columns_;
    for (int64_t k = 0; k < depth; k += kBlock) {
      const int64_t some = std::min(kBlock, depth - k);
      const float* x = direction_ + k * stride_;
      int64_t stride = stride_;
      if (!tall_) {
        for (int64_t c = 0; c < Padded(some); c += kLanes) {
          kernels_.transpose(direction_ + k + c, stride_, side_,
                             spare_ + c * kSquareStride, kSquareStride);
        }
        x = spare_;
        stride = kSquareStride;
      }
      kernels_.product({.a = x,
                        .a_stride = stride,
                        .b = x,
                        .b_stride = stride,
                        .out = square_,
                        .out_stride = kSquareStride,
                        .depth = static_cast<int>(some),
                        .rows = side_,
                        .columns = side_,
                        .lower = true,
                        .add = k > 0});
    }
    Mirror(square_);
  }

  // out = a b, which commute.
  void Multiply(const float* a, const float* b, float* out) {
    kernels_.product({.a = a,
                      .a_stride = kSquareStride,
                      .b = b,
                      .b_stride = kSquareStride,
                      .out = out,
                      .out_stride = kSquareStride,
                      .depth = side_,
                      .rows = side_,
                      .columns = side_,
                      .lower = true,
                      .add = false});
    Mirror(out);
  }

  // Makes the square symmetric to the last bit. This is necessary: the
  // iterations increase any difference by a factor of 100 and more.
  void Mirror(float* square) {
    for (int c = 0; c < side_; c += kLanes) {
      float* block = square + c * kSquareStride + c;
      for (int i = 1; i < kLanes; ++i) {
        for (int j = 0; j < i; ++j) {
          block[j * kSquareStride + i] = block[i * kSquareStride + j];
        }
      }
      const int64_t below = c + kLanes;
      kernels_.transpose(square + below * kSquareStride + c, kSquareStride,
                         side_ - below, square + c * kSquareStride + below,
                         kSquareStride);
    }
  }

  // square_ = rows first to first + n of x, transposed.
  void TransposeRows(int64_t first, int64_t n) {
    for (int64_t c = 0; c < side_; c += kLanes) {
      kernels_.transpose(direction_ + first * stride_ + c, stride_, n,
                         square_ + c * kSquareStride, kSquareStride);
    }
  }

  const VectorKernels& kernels_;
  int64_t rows_, columns_;
  bool tall_;
  int side_;
  int64_t stride_;
  float *square_, *factor_, *product_, *spare_, *direction_;
};

}  // namespace

int64_t MuonScratch(int64_t rows, int64_t columns) {
  const bool tall = rows > columns;
  const int64_t block_rows = tall ? rows : std::min(rows, kBlock);
  const int64_t block_columns = tall ? std::min(columns, kBlock) : columns;
  return kLanes + 4 * kSquare + Padded(block_rows) * Stride(block_columns);
}

void MuonStep(cpu::Path path, const MuonMatrix& matrix,
              const MuonOptions& options, float* scratch) {
  const VectorKernels& kernels = VectorKernelsFor(path);
  // Starts at the beginning of a cache line.
  while (reinterpret_cast<uintptr_t>(scratch) % 64 != 0) ++scratch;
  const bool tall = matrix.rows > matrix.columns;
  const int64_t side = tall ? matrix.columns : matrix.rows;
  // Entries of a tall matrix of orthogonal columns are smaller.
  const float scale = tall ? std::sqrt(static_cast<float>(matrix.rows) /
                                       static_cast<float>(matrix.columns))
                           : 1.0f;
  for (int64_t first = 0; first < side; first += kBlock) {
    const int64_t some = std::min(kBlock, side - first);
    const int64_t at = tall ? first : first * matrix.columns;
    Block block(kernels, tall ? matrix.rows : some,
                tall ? some : matrix.columns, tall, scratch);
    block.Prepare(matrix.gradients + at, matrix.momentum + at, matrix.columns,
                  1.0f - options.momentum);
    const float normal = block.Iterate();
    block.Descend(matrix.weights + at, matrix.columns,
                  1.0f - options.lr * options.weight_decay,
                  options.lr * scale * normal);
  }
}

}  // namespace learner
