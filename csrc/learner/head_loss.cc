// The heads and the loss, row by row.
#include "learner/head_loss.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "learner/vector_kernels.h"

namespace learner {

namespace {

// Computes kLanes sums in parallel, then adds them in a fixed order.
float Dot(const float* a, const float* b, int size) {
  float sums[kLanes] = {};
  for (int i = 0; i < size; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) sums[l] += a[i + l] * b[i + l];
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) sums[l] += sums[l + width];
  }
  return sums[0];
}

// Adds factor * x to y.
void AddScaled(float factor, const float* x, int size, float* y) {
  for (int i = 0; i < size; ++i) y[i] += factor * x[i];
}

// Writes the logits of a row.
void Logits(const HeadShape& shape, const HeadWeights& weights,
            const float* features, float* logits) {
  for (int a = 0; a < shape.actions; ++a) {
    const int64_t row = static_cast<int64_t>(a) * shape.features;
    logits[a] = Dot(weights.policy + row, features, shape.features) +
                weights.policy_bias[a];
  }
}

// Returns the value of a row at the output of its level.
float Value(const HeadShape& shape, const HeadWeights& weights, int64_t level,
            const float* features) {
  const float value =
      Dot(weights.value + level * shape.features, features, shape.features) +
      weights.value_bias[level];
  if (weights.mean == nullptr) return value;
  return value * weights.deviation[level] + weights.mean[level];
}

// Turns logits into log-probabilities.
void LogSoftmax(float* logits, int size) {
  const float largest = *std::max_element(logits, logits + size);
  float sum = 0;
  for (int i = 0; i < size; ++i) sum += std::exp(logits[i] - largest);
  const float shift = largest + std::log(sum);
  for (int i = 0; i < size; ++i) logits[i] -= shift;
}

// The numbers that normalise the rows of a minibatch.
struct Normal {
  double weight;    // divides the weight of a row
  double mean = 0;  // of the advantages
  double deviation = 1;
  double mean_weight;
};

Normal NormalOf(const Targets& targets, const Minibatch& minibatch,
                bool advantages) {
  double sum = 0;
  for (int64_t i = 0; i < minibatch.size; ++i) {
    sum += targets.weights[minibatch.rows[i]];
  }
  Normal normal{.weight = std::max(sum, 1e-8),
                .mean_weight = sum / static_cast<double>(minibatch.size)};
  if (!advantages) return normal;
  double mean = 0;
  for (int64_t i = 0; i < minibatch.size; ++i) {
    const int64_t row = minibatch.rows[i];
    mean += targets.weights[row] / normal.weight * targets.advantages[row];
  }
  double variance = 0;
  for (int64_t i = 0; i < minibatch.size; ++i) {
    const int64_t row = minibatch.rows[i];
    const double apart = targets.advantages[row] - mean;
    variance += targets.weights[row] / normal.weight * apart * apart;
  }
  normal.mean = mean;
  normal.deviation = std::sqrt(variance) + 1e-8;
  return normal;
}

struct Row {
  int64_t action, level;
  float log_mu, advantage, value, weight, scale;
};

// Evaluates a row and adds its gradients times `factor`; scratch is (2 *
// actions,).
void AddRow(const HeadShape& shape, const HeadWeights& weights,
            const LossOptions& options, const Row& target, float factor,
            const float* features, float* scratch, float* d_features,
            const HeadGradients& gradients, LossTerms& terms) {
  const int size = shape.features;
  float* log_probs = scratch;
  float* d_logits = scratch + shape.actions;
  Logits(shape, weights, features, log_probs);
  LogSoftmax(log_probs, shape.actions);
  const int64_t level = target.level;
  const float* value_weights = weights.value + level * size;
  const float deviation = weights.deviation ? weights.deviation[level] : 1.0f;
  const float value = Value(shape, weights, level, features);

  float entropy = 0;
  for (int a = 0; a < shape.actions; ++a) {
    entropy -= std::exp(log_probs[a]) * log_probs[a];
  }
  const float log_pi = log_probs[target.action];
  const float log_ratio = log_pi - target.log_mu;
  const float ratio = std::exp(log_ratio);
  const float bounded =
      std::clamp(ratio, 1.0f - options.clip_range, 1.0f + options.clip_range);
  const float free_gain = ratio * target.advantage;
  const float gain = std::min(free_gain, bounded * target.advantage);
  // The negative derivative of the policy term by log pi(a): 0 if the clipped
  // gain is smaller.
  const float slope = free_gain <= gain ? free_gain : 0.0f;
  if (ratio != bounded) terms.clipped += target.weight;
  const float error = (value - target.value) / target.scale;
  const float size_of_error = std::abs(error);
  const bool linear = options.huber && size_of_error >= 1.0f;
  const float critic = linear ? size_of_error - 0.5f : 0.5f * error * error;
  terms.policy -= target.weight * gain;
  terms.value += target.weight * critic;
  terms.entropy += target.weight * entropy;
  terms.kl += target.weight * (std::expm1(log_ratio) - log_ratio);

  // d log pi(a) / d logits = onehot(a) - pi;  dH / d logits = -pi (log pi + H).
  const float pull = factor * target.weight * slope;
  const float spread = factor * target.weight * options.entropy_coef;
  for (int a = 0; a < shape.actions; ++a) {
    d_logits[a] =
        std::exp(log_probs[a]) * (pull + spread * (log_probs[a] + entropy));
  }
  d_logits[target.action] -= pull;
  const float direction = linear ? (error > 0.0f ? 1.0f : -1.0f) : error;
  const float d_value = factor * target.weight * options.value_coef *
                        direction / target.scale * deviation;

  std::fill_n(d_features, size, 0.0f);
  for (int a = 0; a < shape.actions; ++a) {
    const int64_t row = static_cast<int64_t>(a) * size;
    AddScaled(d_logits[a], weights.policy + row, size, d_features);
    AddScaled(d_logits[a], features, size, gradients.policy + row);
    gradients.policy_bias[a] += d_logits[a];
  }
  AddScaled(d_value, value_weights, size, d_features);
  AddScaled(d_value, features, size, gradients.value + level * size);
  gradients.value_bias[level] += d_value;
}

// Returns the action with the greatest probability / noise.
int64_t Choose(const float* logits, const float* noise, int size) {
  const float largest = *std::max_element(logits, logits + size);
  int64_t best = 0;
  float greatest = -1;
  for (int a = 0; a < size; ++a) {
    const float score = std::exp(logits[a] - largest) / noise[a];
    if (score > greatest) {
      greatest = score;
      best = a;
    }
  }
  return best;
}

}  // namespace

void Decide(const HeadShape& shape, const HeadWeights& weights, int64_t count,
            const float* features, const int64_t* levels, const float* noise,
            int64_t version, std::byte* records) {
  const int64_t bytes = DecisionBytes(shape.actions);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t level = std::min<int64_t>(levels[i], shape.levels - 1);
    if (level < 0) {
      throw std::out_of_range("a row has level " + std::to_string(level));
    }
    const float* row = features + i * shape.features;
    auto* words = reinterpret_cast<int64_t*>(records + i * bytes);
    auto* value = reinterpret_cast<float*>(words + 2);
    float* logits = value + 1;
    Logits(shape, weights, row, logits);
    *value = Value(shape, weights, level, row);
    if (shape.actions % 2 == 0) logits[shape.actions] = *value;
    words[0] = noise == nullptr
                   ? 0
                   : Choose(logits, noise + i * shape.actions, shape.actions);
    words[1] = version;
  }
}

LossTerms HeadLoss(const HeadShape& shape, const HeadWeights& weights,
                   const LossOptions& options, const Targets& targets,
                   const Minibatch& minibatch, int64_t first, int64_t count,
                   const float* features, float* d_features,
                   const HeadGradients& gradients) {
  const int64_t size = shape.features;
  std::fill_n(gradients.policy, shape.actions * size, 0.0f);
  std::fill_n(gradients.policy_bias, shape.actions, 0.0f);
  std::fill_n(gradients.value, shape.levels * size, 0.0f);
  std::fill_n(gradients.value_bias, shape.levels, 0.0f);
  const Normal normal = NormalOf(targets, minibatch, options.normalise);
  std::vector<float> scratch(2 * shape.actions);
  LossTerms terms;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = minibatch.rows[first + i];
    const Row target{
        .action = targets.actions[row],
        .level = std::min<int64_t>(targets.levels[row], shape.levels - 1),
        .log_mu = targets.log_mu[row],
        .advantage = static_cast<float>(
            (targets.advantages[row] - normal.mean) / normal.deviation),
        .value = targets.values[row],
        .weight = static_cast<float>(targets.weights[row] / normal.weight),
        .scale = targets.scales[row]};
    if (target.action < 0 || target.action >= shape.actions ||
        target.level < 0) {
      throw std::out_of_range("a row has action " +
                              std::to_string(target.action) + " and level " +
                              std::to_string(target.level));
    }
    AddRow(shape, weights, options, target,
           static_cast<float>(normal.mean_weight), features + i * size,
           scratch.data(), d_features + i * size, gradients, terms);
  }
  terms.total =
      normal.mean_weight * (terms.policy + options.value_coef * terms.value -
                            options.entropy_coef * terms.entropy);
  return terms;
}

}  // namespace learner
