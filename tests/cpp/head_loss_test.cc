// Tests the heads and PPO's loss: compares parts with the whole, on buffers of
// exactly their size. tests/trainer/test_fused.py compares gradients with
// PyTorch's.
#include "learner/head_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
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

// A record as the trainer's store reads it.
struct Decision {
  int64_t action, version;
  float value;
  Floats logits;
};

std::vector<Decision> DecisionsOf(const Case& c, const float* noise) {
  const int64_t bytes = learner::DecisionBytes(kActions);
  std::vector<int64_t> words(kRows * bytes / 8 + 1, -5);
  learner::Decide({kFeatures, kActions, kLevels},
                  {c.policy.data(), c.policy_bias.data(), c.value.data(),
                   c.value_bias.data(), c.mean.data(), c.deviation.data()},
                  kRows, c.features.data(), c.levels.data(), noise, 9,
                  reinterpret_cast<std::byte*>(words.data()));
  EXPECT_EQ(words.back(), -5);  // nothing behind the records
  std::vector<Decision> decisions;
  for (int row = 0; row < kRows; ++row) {
    const int64_t* record = words.data() + row * bytes / 8;
    const auto* floats = reinterpret_cast<const float*>(record + 2);
    decisions.push_back({record[0], record[1], floats[0],
                         Floats(floats + 1, floats + 1 + kActions)});
  }
  return decisions;
}

TEST(DecideTest, EvaluatesTheHeadsAndTakesTheLeastNoise) {
  const Case c;
  Floats noise(kRows * kActions, 1e6f);
  for (int row = 0; row < kRows; ++row) {
    noise[static_cast<size_t>(row * kActions + row % kActions)] = 1e-6f;
  }
  const std::vector<Decision> decisions = DecisionsOf(c, noise.data());
  for (int row = 0; row < kRows; ++row) {
    const Decision& decision = decisions[static_cast<size_t>(row)];
    EXPECT_EQ(decision.action, row % kActions);
    EXPECT_EQ(decision.version, 9);
    const float* features = c.features.data() + row * kFeatures;
    for (int a = 0; a < kActions; ++a) {
      double logit = c.policy_bias[static_cast<size_t>(a)];
      for (int i = 0; i < kFeatures; ++i) {
        logit += double{c.policy[static_cast<size_t>(a * kFeatures + i)]} *
                 features[i];
      }
      EXPECT_NEAR(decision.logits[static_cast<size_t>(a)], logit, 1e-5);
    }
    const auto level = static_cast<size_t>(
        std::min<int64_t>(c.levels[static_cast<size_t>(row)], kLevels - 1));
    double value = c.value_bias[level];
    for (int i = 0; i < kFeatures; ++i) {
      value += double{c.value[level * kFeatures + static_cast<size_t>(i)]} *
               features[i];
    }
    EXPECT_NEAR(decision.value, value * c.deviation[level] + c.mean[level],
                1e-5);
  }
}

TEST(DecideTest, WithoutNoiseThereAreValuesOnly) {
  const Case c;
  const Floats noise(kRows * kActions, 1.0f);
  const std::vector<Decision> all = DecisionsOf(c, noise.data());
  const std::vector<Decision> values = DecisionsOf(c, nullptr);
  for (size_t row = 0; row < all.size(); ++row) {
    EXPECT_EQ(values[row].action, 0);
    EXPECT_EQ(values[row].value, all[row].value);
    // With equal noise the most probable action wins.
    const Floats& logits = all[row].logits;
    EXPECT_EQ(all[row].action,
              std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
}

TEST(DecideTest, RefusesANegativeLevel) {
  Case c;
  c.levels[3] = -1;
  EXPECT_THROW(DecisionsOf(c, nullptr), std::out_of_range);
}

}  // namespace
