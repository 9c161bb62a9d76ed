// AdamW on some tensors, in place, and the clipping of gradients.
//
// Does what torch.optim.AdamW and torch.nn.utils.clip_grad_norm_ do, for many
// small tensors in one call.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/path.h"

namespace learner {

/// A parameter of AdamW: contiguous float32.
struct AdamwTensor {
  int64_t size;
  float* weights;
  const float* gradients;
  float* means;    ///< of the gradients
  float* squares;  ///< means of their squares
  float* step;     ///< steps before this one; incremented
};

struct AdamwOptions {
  double lr;
  double weight_decay;
  double eps;
  double beta1;
  double beta2;
};

void AdamwStep(cpu::Path path, std::span<const AdamwTensor> tensors,
               const AdamwOptions& options);

struct Gradients {
  int64_t size;
  float* values;
};

/// Scales gradients down to a norm over all of them.
///
/// @return the norm before scaling.
float ClipNorm(cpu::Path path, std::span<const Gradients> gradients,
               float max_norm);

}  // namespace learner
