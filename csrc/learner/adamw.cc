// AdamW and clipping, tensor by tensor.
#include "learner/adamw.h"

#include <cmath>

#include "learner/vector_kernels.h"

namespace learner {

void AdamwStep(cpu::Path path, std::span<const AdamwTensor> tensors,
               const AdamwOptions& options) {
  const VectorKernels& kernels = VectorKernelsFor(path);
  for (const AdamwTensor& tensor : tensors) {
    const float step = *tensor.step += 1.0f;
    const double first = 1.0 - std::pow(options.beta1, step);
    const double second = 1.0 - std::pow(options.beta2, step);
    const AdamwFactors factors = {
        .keep = static_cast<float>(1.0 - options.lr * options.weight_decay),
        .first = static_cast<float>(1.0 - options.beta1),
        .second = static_cast<float>(1.0 - options.beta2),
        .rate = static_cast<float>(options.lr / first),
        .correction = static_cast<float>(1.0 / std::sqrt(second)),
        .eps = static_cast<float>(options.eps)};
    kernels.adamw(tensor.gradients, factors, tensor.size, tensor.means,
                  tensor.squares, tensor.weights);
  }
}

float ClipNorm(cpu::Path path, std::span<const Gradients> gradients,
               float max_norm) {
  constexpr int kSums = 64;
  const VectorKernels& kernels = VectorKernelsFor(path);
  double total = 0;
  for (const Gradients& some : gradients) {
    float sums[kSums] = {};
    kernels.add_squares(some.values, some.size, sums);
    for (const float sum : sums) total += sum;
  }
  const float norm = static_cast<float>(std::sqrt(total));
  const float factor = max_norm / (norm + 1e-6f);
  if (factor >= 1.0f) return norm;  // a NaN norm makes all gradients NaN
  for (const Gradients& some : gradients) {
    kernels.scale(factor, some.size, some.values);
  }
  return norm;
}

}  // namespace learner
