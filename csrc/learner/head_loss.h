// The two heads of an actor-critic on rows of features: decisions, and PPO's
// loss with its gradients.
//
// trainer/models/heads.py and trainer/learn/losses.py have the same computation
// in PyTorch: logits = policy f + bias; value = mean + deviation (value f +
// bias) of the row's level (PopArt; mean 0 and deviation 1 without it); loss =
// policy term + value_coef * critic's term - entropy_coef * entropy. The loops
// are plain float32 code whose sums have a fixed order. For a fixed division of
// the rows among threads, results are equal on every machine, except for the C
// library's exp and log.
#pragma once

#include <cstddef>
#include <cstdint>

namespace learner {

struct HeadShape {
  int features;  ///< a multiple of 16
  int actions;
  int levels;  ///< outputs of the critic
};

struct HeadWeights {
  const float* policy;  ///< (actions, features)
  const float* policy_bias;
  const float* value;  ///< (levels, features)
  const float* value_bias;
  const float* mean;       ///< (levels,) of PopArt; null: 0
  const float* deviation;  ///< (levels,); null: 1
};

/// Decides on rows: evaluates the heads and samples actions.
///
/// The action of a row is the one with the greatest p / noise, where p is its
/// probability; with Exp(1)-distributed noise that is a sample of p. Without
/// noise the action is 0.
///
/// @param levels (count,); levels beyond the last output use that output.
/// @param noise (count, actions), or null.
/// @param records (count, DecisionBytes(actions)): for each row, the action
///     and the version as int64, the value and the logits as float32, and the
///     value again if that makes whole words.
/// @throws std::out_of_range a level is negative.
void Decide(const HeadShape& shape, const HeadWeights& weights, int64_t count,
            const float* features, const int64_t* levels, const float* noise,
            int64_t version, std::byte* records);

/// The bytes of a decision's record: whole words of 8.
constexpr int64_t DecisionBytes(int actions) {
  const int64_t bytes = 2 * 8 + 4 + 4 * int64_t{actions};
  return bytes + bytes % 8;
}

struct HeadGradients {
  float* policy;
  float* policy_bias;
  float* value;
  float* value_bias;
};

struct LossOptions {
  float clip_range;
  float value_coef;
  float entropy_coef;
  bool huber;      ///< the critic's loss; else squares
  bool normalise;  ///< the advantages of a minibatch
};

/// The targets of rows: `Targets` of trainer/learn/losses.py, flattened.
struct Targets {
  const int64_t* actions;
  const int64_t* levels;
  const float* log_mu;
  const float* advantages;
  const float* values;
  const float* weights;  ///< 0: the row does not count
  const float* scales;   ///< divisors of the critic's errors
};

/// Rows of a minibatch, as indices into the targets.
struct Minibatch {
  const int64_t* rows;
  int64_t size;
};

/// Weighted means over the rows of a minibatch.
struct LossTerms {
  double total = 0;  ///< the minimised value: the loss times the mean weight
  double policy = 0, value = 0, entropy = 0, kl = 0, clipped = 0;
};

/// Computes the loss of rows first to first + count of a minibatch, and its
/// gradients.
///
/// The losses and gradients of the parts of a minibatch add up to those of the
/// whole minibatch: weights are normalised over the minibatch, and with
/// `normalise` its advantages get mean 0 and deviation 1.
///
/// @throws std::out_of_range an action or a level is out of range; levels
/// beyond
///     the last output use that output.
/// @param features (count, features) of these rows.
/// @param d_features (count, features) is written.
/// @param gradients are written.
LossTerms HeadLoss(const HeadShape& shape, const HeadWeights& weights,
                   const LossOptions& options, const Targets& targets,
                   const Minibatch& minibatch, int64_t first, int64_t count,
                   const float* features, float* d_features,
                   const HeadGradients& gradients);

}  // namespace learner
