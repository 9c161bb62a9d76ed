// A step of Muon on one hidden matrix, in place.
//
// trainer/learn/optim.py describes Muon and has the same step in PyTorch. Here
// the products of the squares x x^T need half the work: all of them are
// polynomials of one symmetric matrix, so they are symmetric too, and the part
// right of the diagonal is a copy.
#pragma once

#include <cstdint>

#include "cpu/path.h"

namespace learner {

/// A hidden matrix and its arrays: contiguous float32, (rows, columns) each.
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

/// Returns the scratch size of `MuonStep` for a matrix of this shape, in
/// floats.
int64_t MuonScratch(int64_t rows, int64_t columns);

/// Updates weights and momentum.
///
/// @param scratch `MuonScratch` floats, overwritten.
void MuonStep(cpu::Path path, const MuonMatrix& matrix,
              const MuonOptions& options, float* scratch);

}  // namespace learner
