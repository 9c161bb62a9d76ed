#include "mario/rewards.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace mario {

namespace {

// gym-super-mario-bros: smb_env.py of 7.4.0 and 9.1.0.
constexpr int kRewardLimit = 15;  // of a frame
constexpr int kLargestStep = 5;   // a larger change of x is a jump of the map
constexpr int kDeathPenalty = -25;
// 9.1.0 only.
constexpr int kHundredths = 100;  // a point of the score pays one hundredth
constexpr int kPerCoin = 5;
constexpr int kPerPowerLevel = 5;
constexpr int kForCompletion = 50;
// The scale of the reward "progress" if reward_scale is 0.
constexpr double kProgressScale = 0.1;
// The coin counter restarts at 100; a fall by more than this is such a restart.
constexpr int kLargestCoinLoss = 50;
constexpr int kCoinsPerRound = 100;

// A new best position counts for at most this many pixels per frame, so that a
// pipe to a later page of the same room gives no large reward.
constexpr int kLargestGain = 15;
// A wrong pass moves the player back by four pages.
constexpr int kLoopBackPages = 3;

constexpr int kMaxTime = RamView::LargestNumber(ram::kTimeDigits);
constexpr int kMaxScore = RamView::LargestNumber(ram::kScoreDigits);
constexpr int kMaxCoins = RamView::LargestNumber(ram::kCoinDigits);
constexpr int kMaxX = 65535;
constexpr int kMaxPower = 2;

bool InRange(int32_t value, int32_t low, int32_t high) {
  return low <= value && value <= high;
}

int NewCoins(int coins, int coins_last) {
  int gain = coins - coins_last;
  if (gain < -kLargestCoinLoss) gain += kCoinsPerRound;
  return std::max(0, gain);
}

// Fill in the parts of the three rewards; each function returns the sum.

double ClassicParts(const StepStats& stats, RewardParts* parts) {
  parts->progress = static_cast<float>(stats.dx);
  parts->clock = static_cast<float>(stats.ticks);
  parts->death = static_cast<float>(kDeathPenalty * stats.deaths);
  return static_cast<double>(stats.dx + stats.ticks +
                             kDeathPenalty * stats.deaths);
}

double ProgressParts(const Config& config, double scale, const StepStats& stats,
                     RewardParts* parts) {
  const auto part = [scale](double weight, int64_t amount) {
    return static_cast<float>(scale * weight * static_cast<double>(amount));
  };
  parts->progress = part(config.reward_progress, stats.room_gain);
  parts->clock = part(config.reward_clock, -stats.ticks);
  parts->death = part(config.reward_death, stats.deaths);
  parts->score = part(config.reward_score, stats.points);
  parts->coins = part(config.reward_coins, stats.coins);
  parts->step = part(config.reward_step, 1);
  parts->flag = part(config.reward_flag, stats.flags);
  parts->wrong_pass = part(config.reward_wrong_pass, stats.wrong_passes);
  return parts->progress + parts->clock + parts->death + parts->score +
         parts->step + parts->flag + parts->wrong_pass + parts->coins;
}

double V9Parts(const StepStats& stats, RewardParts* parts) {
  const int coins = kPerCoin * stats.coins;
  const int powerup = kPerPowerLevel * stats.power_levels;
  const int flag = kForCompletion * stats.completions;
  const int death = kDeathPenalty * stats.deaths;
  const int64_t units =
      stats.episode_gain + stats.ticks + coins + powerup + flag + death;
  parts->progress = static_cast<float>(stats.episode_gain);
  parts->clock = static_cast<float>(stats.ticks);
  parts->score =
      static_cast<float>(static_cast<double>(stats.points) / kHundredths);
  parts->coins = static_cast<float>(coins);
  parts->powerup = static_cast<float>(powerup);
  parts->flag = static_cast<float>(flag);
  parts->death = static_cast<float>(death);
  return static_cast<double>(kHundredths * units + stats.points) / kHundredths;
}

void Multiply(float factor, RewardParts* parts) {
  for (float* part : {&parts->progress, &parts->clock, &parts->death,
                      &parts->score, &parts->step, &parts->flag,
                      &parts->wrong_pass, &parts->coins, &parts->powerup}) {
    *part *= factor;
  }
}

}  // namespace

double NaturalScale(RewardKind kind) {
  return kind == RewardKind::kProgress ? kProgressScale : 1.0;
}

RewardKind ParseReward(const std::string& name) {
  if (name == "classic") return RewardKind::kClassic;
  if (name == "progress") return RewardKind::kProgress;
  if (name == "v9") return RewardKind::kV9;
  throw std::invalid_argument("reward='" + name +
                              "' is not possible; choose classic, progress or "
                              "v9");
}

int BestPositions::Update(uint32_t room, int x, bool* is_new_room) {
  if (count == 0 || key[current] != room) {
    int found = 0;
    const int known = std::min(count, kRooms);
    while (found < known && key[found] != room) ++found;
    if (found == known) {
      // Replaces the oldest room; no game has this many rooms.
      found = count % kRooms;
      key[found] = room;
      best[found] = x;
      ++count;
      *is_new_room = true;
    }
    current = found;
  }
  const int gain = x - best[current];
  if (gain <= 0) return 0;
  best[current] = x;
  return gain;
}

void FrameCounter::Begin(const RamView& view) {
  positions.Clear();
  if (view.in_control()) {
    bool is_new_room = false;
    positions.Update(view.room_key(), view.x_in_room(), &is_new_room);
  }
  x_last = view.x();
  x_best = view.x();
  time_last = view.time();
  score_last = view.score();
  coins_last = view.coins();
  page_last = static_cast<uint8_t>(view.page());
  loop_command_last = static_cast<uint8_t>(view.loop_command());
  loop_correct_last = static_cast<uint8_t>(view.loop_correct());
  loop_pass_last = static_cast<uint8_t>(view.loop_pass());
  power_last = static_cast<uint8_t>(view.status());
  flag_last = 0;
  completed = 0;
}

void FrameCounter::Count(const RamView& view, StepStats* stats) {
  const int x = view.x();
  int dx = x - x_last;
  x_last = x;
  if (dx < -kLargestStep || dx > kLargestStep) dx = 0;

  int gain = std::max(0, x - x_best);
  x_best += gain;
  if (gain > kLargestStep) gain = 0;

  const int time = view.time();
  const int ticks = std::min(0, time - time_last);
  time_last = time;

  const int score = view.score();
  const int points = std::max(0, score - score_last);
  score_last = score;

  const int coins = view.coins();
  const int new_coins = NewCoins(coins, coins_last);
  coins_last = coins;

  const int levels = view.status() - power_last;
  power_last = static_cast<uint8_t>(view.status());

  const bool flag = view.flag_get();
  const bool completion = flag && !completed;
  completed |= flag;

  const bool death = view.dying() || view.dead();
  const int penalty = death ? kDeathPenalty : 0;

  stats->dx += dx;
  stats->episode_gain += gain;
  stats->ticks += ticks;
  stats->points += points;
  stats->coins += new_coins;
  stats->power_levels += levels;
  stats->flags += flag && !flag_last;
  stats->completions += completion;
  stats->deaths += death;
  flag_last = flag;

  stats->classic +=
      std::clamp(dx + ticks + penalty, -kRewardLimit, kRewardLimit);
  const int units = gain + ticks + kPerCoin * new_coins +
                    kPerPowerLevel * levels + penalty +
                    (completion ? kForCompletion : 0);
  stats->v9_hundredths += static_cast<int>(std::clamp<int64_t>(
      int64_t{kHundredths} * units + points, -kHundredths * kRewardLimit,
      kHundredths * kRewardLimit));

  if (view.in_control()) {
    bool is_new_room = false;
    const int room_gain =
        positions.Update(view.room_key(), view.x_in_room(), &is_new_room);
    stats->room_gain += std::min(room_gain, kLargestGain);
    stats->progressed |= room_gain > 0 || is_new_room;
  }
  stats->wrong_passes += SeeWrongPass(view);
}

// "ProcLoopCommand" of the game: at a check of a maze the game resets the loop
// command to 0 and moves the player back by four pages if he is on the wrong
// lane. World 7 counts three such checks (all, and those passed on the right
// lane) and moves the player back after the third if one was wrong.
bool FrameCounter::SeeWrongPass(const RamView& view) {
  const int correct = loop_correct_last;
  const int pass = loop_pass_last;
  const bool checked = loop_command_last != 0 && view.loop_command() == 0;
  const bool thrown_back = page_last - view.page() >= kLoopBackPages;
  loop_command_last = static_cast<uint8_t>(view.loop_command());
  loop_correct_last = static_cast<uint8_t>(view.loop_correct());
  loop_pass_last = static_cast<uint8_t>(view.loop_pass());
  page_last = static_cast<uint8_t>(view.page());
  if (!checked) return false;
  if (view.loop_pass() > pass) return view.loop_correct() == correct;
  // The counters are 0 again after a check of worlds 4 and 8, or after the
  // third check of world 7, whose earlier wrong checks (pass > correct) have
  // been reported already.
  return thrown_back && pass == correct;
}

bool FrameCounter::IsPlausible() const {
  constexpr int32_t kMaxRooms = std::numeric_limits<int32_t>::max() / 2;
  if (!InRange(positions.count, 0, kMaxRooms)) return false;
  const int known = std::min(positions.count, BestPositions::kRooms);
  if (!InRange(positions.current, 0, std::max(known - 1, 0))) return false;
  const bool positions_good =
      std::all_of(positions.best, positions.best + known,
                  [](int32_t best) { return InRange(best, 0, kMaxX); });
  return positions_good && InRange(x_last, 0, kMaxX) &&
         InRange(x_best, 0, kMaxX) && InRange(time_last, 0, kMaxTime) &&
         InRange(score_last, 0, kMaxScore) &&
         InRange(coins_last, 0, kMaxCoins) && power_last <= kMaxPower &&
         flag_last <= 1 && completed <= 1;
}

float SumReward(RewardKind kind, const Config& config, const StepStats& stats,
                RewardParts* parts) {
  *parts = RewardParts{};
  const bool weighted = kind == RewardKind::kProgress;
  const double scale =
      config.reward_scale == 0 ? NaturalScale(kind) : config.reward_scale;
  double unclipped = 0;
  double sum = 0;
  switch (kind) {
    case RewardKind::kClassic:
      unclipped = ClassicParts(stats, parts);
      sum = stats.classic;
      break;
    case RewardKind::kProgress:
      unclipped = sum = ProgressParts(config, scale, stats, parts);
      break;
    case RewardKind::kV9:
      unclipped = V9Parts(stats, parts);
      sum = stats.v9_hundredths / double{kHundredths};
      break;
  }
  if (!weighted && scale != 1) {
    Multiply(static_cast<float>(scale), parts);
    unclipped *= scale;
    sum *= scale;
  }
  if (config.reward_clip) sum = (sum > 0) - (sum < 0);
  parts->clipped = static_cast<float>(sum - unclipped);
  return static_cast<float>(sum);
}

}  // namespace mario
