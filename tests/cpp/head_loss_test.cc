// Tests the heads and PPO's loss: compares parts with the whole, on buffers of
// exactly their size. tests/trainer/test_fused.py compares gradients with
// PyTorch's.
#include "learner/head_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

namespace {

constexpr int kFeatures = 16, kActions = 3, kLevels = 2, kRows = 7;

using Floats = std::vector<float>;

// A network's heads, rows of features and their targets.
struct Case {
  Floats policy, policy_bias, value, value_bias;
  Floats mean = {0.5f, -1.0f}, deviation = {2.0f, 0.5f};
  Floats features;
  std::vector<int64_t> actions = {0, 1, 2, 0, 1, 2, 1};
  std::vector<int64_t> levels = {0, 1, 0, 1, 1, 0, 9};
  Floats log_mu, advantages, values;
  Floats weights = {1, 1, 0, 0.5f, 1, 2, 1}, scales = {2, 0.5f, 2, 1, 1, 3, 1};
  std::vector<int64_t> rows;
  learner::LossOptions options = {.clip_range = 0.2f,
                                  .value_coef = 0.7f,
                                  .entropy_coef = 0.3f,
                                  .huber = true,
                                  .normalise = true};

  Case() : rows(kRows) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    const auto fill = [&](Floats& to, int size, float scale) {
      to.resize(size);
      for (float& x : to) x = scale * normal(random);
    };
    fill(policy, kActions * kFeatures, 0.3f);
    fill(policy_bias, kActions, 0.3f);
    fill(value, kLevels * kFeatures, 0.3f);
    fill(value_bias, kLevels, 0.3f);
    fill(features, kRows * kFeatures, 1.0f);
    fill(log_mu, kRows, 0.1f);
    for (float& x : log_mu) x -= 1.1f;  // about a third
    fill(advantages, kRows, 1.0f);
    fill(values, kRows, 2.0f);
    std::iota(rows.begin(), rows.end(), 0);
  }
};

struct Result {
  learner::LossTerms terms;
  Floats policy, policy_bias, value, value_bias, features;
};

Result Evaluate(const Case& c, int64_t first = 0, int64_t count = kRows) {
  Result r{.terms = {},
           .policy = Floats(kActions * kFeatures, NAN),
           .policy_bias = Floats(kActions, NAN),
           .value = Floats(kLevels * kFeatures, NAN),
           .value_bias = Floats(kLevels, NAN),
           .features = Floats(count * kFeatures, NAN)};
  const Floats features(c.features.begin() + first * kFeatures,
                        c.features.begin() + (first + count) * kFeatures);
  r.terms = learner::HeadLoss(
      {kFeatures, kActions, kLevels},
      {c.policy.data(), c.policy_bias.data(), c.value.data(),
       c.value_bias.data(), c.mean.data(), c.deviation.data()},
      c.options,
      {c.actions.data(), c.levels.data(), c.log_mu.data(), c.advantages.data(),
       c.values.data(), c.weights.data(), c.scales.data()},
      {c.rows.data(), static_cast<int64_t>(c.rows.size())}, first, count,
      features.data(), r.features.data(),
      {r.policy.data(), r.policy_bias.data(), r.value.data(),
       r.value_bias.data()});
  return r;
}

TEST(HeadLossTest, PartsAddUpToTheWhole) {
  const Case c;
  const Result whole = Evaluate(c), a = Evaluate(c, 0, 3),
               b = Evaluate(c, 3, 4);
  EXPECT_NEAR(whole.terms.total, a.terms.total + b.terms.total, 1e-6);
  EXPECT_NEAR(whole.terms.clipped, a.terms.clipped + b.terms.clipped, 1e-6);
  for (size_t i = 0; i < whole.policy.size(); ++i) {
    EXPECT_NEAR(whole.policy[i], a.policy[i] + b.policy[i], 1e-6);
  }
  for (int i = 0; i < 3 * kFeatures; ++i) {
    EXPECT_EQ(whole.features[i], a.features[i]);
  }
}

TEST(HeadLossTest, RowsWithoutWeightHaveNoGradient) {
  Case c;
  const Result r = Evaluate(c);
  const Floats third(r.features.begin() + 2 * kFeatures,
                     r.features.begin() + 3 * kFeatures);
  EXPECT_EQ(third, Floats(kFeatures, 0.0f));
  c.weights.assign(kRows, 0.0f);
  EXPECT_EQ(Evaluate(c).features, Floats(kRows * kFeatures, 0.0f));
}

TEST(HeadLossTest, ImpossibleActionsAndLevelsAreRefused) {
  Case c;
  c.actions[4] = kActions;
  EXPECT_THROW(Evaluate(c), std::out_of_range);
  c.actions[4] = -1;
  EXPECT_THROW(Evaluate(c), std::out_of_range);
  c.actions[4] = 0;
  c.levels[0] = -1;
  EXPECT_THROW(Evaluate(c), std::out_of_range);
}

}  // namespace
