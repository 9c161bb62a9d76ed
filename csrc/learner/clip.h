// Clipping of gradients by their norm, as torch.nn.utils.clip_grad_norm_ does.
#pragma once

#include <cstdint>
#include <span>

namespace learner {

struct Numbers {
  float* values;
  int64_t size;
};

/// Multiplies all numbers by max_norm / (norm + 1e-6) if that is below 1, and
/// returns their norm before. Sums have a fixed order, so results are equal on
/// every machine.
float ClipNorm(std::span<const Numbers> gradients, float max_norm);

}  // namespace learner
