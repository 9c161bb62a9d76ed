// A step of Muon on one hidden matrix, in place.
//
// trainer/learn/optim.py says what Muon is and has the same in PyTorch. Here
// the products of the squares x x^T are half as much work: all of them are
// polynomials of one symmetric matrix, so they are symmetric too, and what is
// right of their diagonal is a copy.
#pragma once

#include <cstdint>

#include "encoders/cpu_path.h"

namespace learner {

/// A hidden matrix: (rows, columns) float32 without gaps, each.
struct MuonMatrix {
  int64_t rows;
  int64_t columns;
  float* weights;
  const float* gradients;
  float* momentum;
};

struct MuonOptions {
  float lr;
  float momentum;  ///< decay of the mean gradient
  float weight_decay;
};

/// Floats that `MuonStep` works on, for a matrix of this shape.
int64_t MuonScratch(int64_t rows, int64_t columns);

/// Moves weights and momentum.
///
/// @param scratch of `MuonScratch` floats, written.
void MuonStep(encoders::Path path, const MuonMatrix& matrix,
              const MuonOptions& options, float* scratch);

}  // namespace learner
