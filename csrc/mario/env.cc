// Steps, rewards, ends, info and observations of the task. What all
// environments share is in shared.cc, snapshots are in snapshot.cc.
#include "mario/env.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "nes/palette.h"

namespace mario {

namespace {

constexpr int kLastWorld = 8;
// The NROM conversion goes no further: the game stands still after 4-4.
constexpr int kLastWorldOfLostLevels = 4;

struct InfoField {
  const char* name;
  pool::DType dtype;
  size_t offset;
  double low;
  double high;
};

constexpr double kInt32Max = 2147483647.0;
constexpr double kFloatMax = 3.4028234663852886e38;

constexpr InfoField Int32(const char* name, size_t offset, double high) {
  return {name, pool::DType::kInt32, offset, 0, high};
}
constexpr InfoField Float(const char* name, size_t offset) {
  return {name, pool::DType::kFloat32, offset, -kFloatMax, kFloatMax};
}

constexpr InfoField kInfoFields[] = {
    Int32("info:coins", offsetof(Info, coins), kInt32Max),
    {"info:flag_get", pool::DType::kBool, offsetof(Info, flag_get), 0, 1},
    Int32("info:life", offsetof(Info, life), 255),
    Int32("info:score", offsetof(Info, score), kInt32Max),
    Int32("info:stage", offsetof(Info, stage), 256),
    {"info:status", pool::DType::kInt8, offsetof(Info, status), 0, 2},
    Int32("info:time", offsetof(Info, time), kInt32Max),
    Int32("info:world", offsetof(Info, world), 256),
    Int32("info:x_pos", offsetof(Info, x_pos), 65535),
    Int32("info:y_pos", offsetof(Info, y_pos), 510),
    Int32("info:area", offsetof(Info, area), 256),
    Int32("info:area_pointer", offsetof(Info, area_pointer), 127),
    Int32("info:best_x", offsetof(Info, best_x), 65535),
    Int32("info:loop", offsetof(Info, loop), 17 * 255),
    {"info:start", pool::DType::kInt32, offsetof(Info, start), -1, kInt32Max},
    {"info:wrong_pass", pool::DType::kBool, offsetof(Info, wrong_pass), 0, 1},
    {"info:end_reason", pool::DType::kInt8, offsetof(Info, end_reason), 0, 6},
    Float("info:reward_progress", offsetof(Info, reward.progress)),
    Float("info:reward_clock", offsetof(Info, reward.clock)),
    Float("info:reward_death", offsetof(Info, reward.death)),
    Float("info:reward_score", offsetof(Info, reward.score)),
    Float("info:reward_step", offsetof(Info, reward.step)),
    Float("info:reward_flag", offsetof(Info, reward.flag)),
    Float("info:reward_wrong_pass", offsetof(Info, reward.wrong_pass)),
    Float("info:reward_coins", offsetof(Info, reward.coins)),
    Float("info:reward_powerup", offsetof(Info, reward.powerup)),
    Float("info:reward_clipped", offsetof(Info, reward.clipped)),
};

}  // namespace

std::vector<pool::Field> Env::Fields(const Shared& shared) {
  std::vector<pool::Field> fields = shared.observation().Fields();
  for (const InfoField& field : kInfoFields) {
    fields.push_back({field.name, field.dtype, {}, field.low, field.high});
  }
  return fields;
}

std::vector<std::string> Env::FieldNames() {
  std::vector<std::string> names = {"obs"};
  for (const InfoField& field : kInfoFields) names.push_back(field.name);
  return names;
}

Env::Scratch::Scratch(const Shared& shared) : console(shared.cartridge()) {
  for (auto& picture : pixels) picture.resize(nes::kScreenPixels);
}

Env::Env(std::shared_ptr<const Shared> shared, int env_id, uint64_t seed)
    : shared_(std::move(shared)),
      env_id_(env_id),
      game_(shared_->cartridge(), env_id,
            shared_->observation().pictures() == 2),
      observation_(shared_->observation()) {
  Seed(seed);
}

void Env::Seed(uint64_t seed) {
  seed_ = seed;
  reseed_ = true;
}

int Env::ChooseStage() {
  const int count = static_cast<int>(shared_->stages().size());
  if (count == 0) return 0;
  if (!shared_->config().random_stages) return env_id_ % count;
  if (!shared_->config().stages.empty()) return stage_random_.RandInt(0, count);
  // Upstream draws world and stage one after the other.
  const int worlds = Target::Worlds(shared_->config().lost_levels);
  const int world = stage_random_.RandInt(1, worlds + 1);
  const int stage = stage_random_.RandInt(1, Target::kStages + 1);
  return (world - 1) * Target::kStages + stage - 1;
}

void Env::ApplySeed() {
  if (!reseed_) return;
  random_.Seed(seed_);
  stage_random_.Seed(static_cast<uint32_t>(seed_));
  reseed_ = false;
  episode_.plays_on = 0;
}

void Env::Reset(Scratch& scratch, const pool::StartSet* starts) {
  ApplySeed();
  if (starts != nullptr) {
    const int start = starts->Pick(random_.Uniform());
    if (start < starts->num_stages) {
      ResetToStage(start, scratch);
    } else {
      ResetToSnapshot(starts->state(start));
    }
    episode_.info.start = start;
    return;
  }
  if (episode_.plays_on && PlaysOn(scratch)) return;
  ResetToStage(ChooseStage(), scratch);
}

void Env::ResetToStage(int stage, Scratch& scratch) {
  ApplySeed();
  outcome_ = pool::Outcome{};
  episode_.plays_on = 0;
  LoadStart(stage);
  const uint64_t frames_before = game_.frames();
  RunNoops(stage);
  BeginEpisode();
  if (game_.frames() == frames_before) {
    observation_ = *shared_->start(stage, env_id_).observation;
  } else {
    Observe(Drawn{}, scratch);
    observation_.FillWithNewest();
  }
}

// episodic_life: the game goes on after a lost life, unless it was the last.
bool Env::PlaysOn(Scratch& scratch) {
  outcome_ = pool::Outcome{};
  episode_.plays_on = 0;
  game_.SkipWaits(/*whole_game=*/true);
  if (game_.facts().game_over()) return false;
  BeginEpisode();
  Observe(Drawn{}, scratch);
  observation_.FillWithNewest();
  return true;
}

void Env::LoadStart(int stage) {
  const StartPoint& start = shared_->start(stage, env_id_);
  game_.console().set_state(start.state);
  game_.record(0) = start.records[0];
  if (shared_->observation().pictures() == 2) {
    game_.record(1) = start.records[1];
  }
}

int Env::ChooseNoops() {
  const Config& config = shared_->config();
  if (!config.noops.empty()) {
    return config.noops[static_cast<size_t>(env_id_) % config.noops.size()];
  }
  if (config.noop_max == 0) return 0;
  return static_cast<int>(
      random_.Below(static_cast<uint32_t>(config.noop_max) + 1));
}

void Env::RunNoops(int stage) {
  const int frames = ChooseNoops();
  for (int i = 0; i < frames; ++i) {
    game_.RunFrame(0, nullptr);
    const Facts facts = game_.facts();
    if (facts.dying() || facts.dead() || facts.busy() || facts.flag_get()) {
      // Waiting that long is no start of an episode: begin without it.
      LoadStart(stage);
      return;
    }
  }
}

void Env::BeginEpisode() {
  const Facts facts = game_.facts();
  episode_.counter.Begin(facts);
  episode_.steps_without_progress = 0;
  episode_.buttons_last = 0;
  episode_.info = Info{};
  ReadInfo(facts);
}

uint8_t Env::Sticky(uint8_t buttons) {
  const uint64_t threshold = shared_->sticky_threshold();
  if (threshold > 0 && random_.Chance(threshold)) return episode_.buttons_last;
  episode_.buttons_last = buttons;
  return buttons;
}

pool::Outcome Env::Step(int32_t action, Scratch& scratch) {
  const Config& config = shared_->config();
  const uint8_t buttons = shared_->buttons()[action];
  const int first_drawn = config.frame_skip - shared_->observation().pictures();
  Tally tally;
  Drawn drawn;
  EndReason end = EndReason::kNone;
  for (int i = 0; i < config.frame_skip; ++i) {
    const uint64_t number = game_.frames() + 1;
    uint8_t* pixels = nullptr;
    if (i >= first_drawn || scratch.film != nullptr) {
      pixels = scratch.pixels[number & 1].data();
      drawn.frame[number & 1] = number;
    }
    game_.RunFrame(Sticky(buttons), pixels);
    if (scratch.film != nullptr) {
      scratch.film->insert(scratch.film->end(), pixels,
                           pixels + nes::kScreenPixels);
    }
    const Facts facts = game_.facts();
    episode_.counter.Count(facts, &tally);
    end = FindEnd(facts, tally);
    const bool last = end != EndReason::kNone || i + 1 == config.frame_skip;
    if (last) {
      ReadInfo(facts);
      if (scratch.info_ram != nullptr) {
        std::memcpy(scratch.info_ram, game_.console().ram(), nes::kRamBytes);
      }
    }
    if (end != EndReason::kNone) break;
    game_.SkipWaits(shared_->whole_game());
  }

  episode_.plays_on = end == EndReason::kLife;
  int& stalled = episode_.steps_without_progress;
  constexpr int kMost = std::numeric_limits<int>::max();
  stalled = tally.progressed ? 0 : std::min(stalled, kMost - 1) + 1;
  outcome_.terminated = end != EndReason::kNone;
  outcome_.truncated = !outcome_.terminated && config.stall_steps > 0 &&
                       stalled >= config.stall_steps;
  if (outcome_.truncated) end = EndReason::kStall;
  episode_.info.end_reason = static_cast<int8_t>(end);
  episode_.info.wrong_pass = tally.wrong_passes > 0;
  outcome_.reward =
      SumReward(shared_->reward(), config, tally, &episode_.info.reward);
  Observe(drawn, scratch);
  return outcome_;
}

EndReason Env::FindEnd(const Facts& facts, const Tally& tally) const {
  const Config& config = shared_->config();
  const bool death = facts.dying() || facts.dead();
  if (shared_->whole_game()) {
    if (facts.game_over()) return EndReason::kGameOver;
    // Nothing follows the last castle; upstream waits there for ever.
    const int last_world =
        config.lost_levels ? kLastWorldOfLostLevels : kLastWorld;
    if (facts.world_over() && facts.world() >= last_world) {
      return EndReason::kFlag;
    }
    if (config.episodic_life && death) return EndReason::kLife;
  } else {
    if (death) return EndReason::kDeath;
    if (facts.flag_get()) return EndReason::kFlag;
  }
  if (config.end_on_wrong_pass && tally.wrong_passes > 0) {
    return EndReason::kWrongPass;
  }
  return EndReason::kNone;
}

void Env::ReadInfo(const Facts& facts) {
  Info& info = episode_.info;
  info.coins = facts.coins();
  info.life = facts.lives();
  info.score = facts.score();
  info.stage = facts.stage();
  info.time = facts.time();
  info.world = facts.world();
  info.x_pos = facts.x();
  info.y_pos = facts.y();
  info.area = facts.area();
  info.area_pointer = facts.area_pointer();
  info.best_x = episode_.counter.positions.best_here();
  info.loop = facts.loop();
  info.status = static_cast<int8_t>(facts.status());
  info.flag_get = facts.flag_get();
}

// Frames are drawn while they run only where they are expected to be the last
// ones; after an early end or a skipped wait the remembered frames run again.
void Env::Observe(const Drawn& drawn, Scratch& scratch) {
  const int count = shared_->observation().pictures();
  const uint8_t* pictures[2] = {nullptr, nullptr};
  for (int age = 0; age < count; ++age) {
    const uint64_t number = game_.frames() - age;
    uint8_t* pixels = scratch.pixels[number & 1].data();
    if (number == 0 || drawn.frame[number & 1] != number) {
      const FrameRecord& record = game_.record(age);
      scratch.console.set_state(record.before);
      scratch.console.RunFrame(record.buttons, pixels);
    }
    pictures[age] = pixels;
  }
  observation_.Push({pictures[0], pictures[1], game_.console().ram()});
}

void Env::Write(const pool::Row& row) const {
  observation_.Write(row);
  const auto* info = reinterpret_cast<const std::byte*>(&episode_.info);
  size_t i = observation_.parts();
  for (const InfoField& field : kInfoFields) {
    std::byte* to = row.field[i++];
    if (pool::SizeOf(field.dtype) == 4) {
      std::memcpy(to, info + field.offset, 4);
    } else {
      *to = info[field.offset];
    }
  }
}

void Env::Render(Scratch& scratch, uint8_t* rgb) const {
  const FrameRecord& record = game_.record(0);
  scratch.console.set_state(record.before);
  uint8_t* pixels = scratch.pixels[0].data();
  scratch.console.RunFrame(record.buttons, pixels);
  ToRgb(pixels, nes::kScreenPixels, rgb);
}

void Env::ToRgb(const uint8_t* pixels, size_t count, uint8_t* rgb) {
  // Four bytes are written for three, faster than three: the next pixel's
  // replace the fourth, and the last pixel has no next one.
  struct Padded {
    uint8_t bytes[4];
  };
  static const auto kColours = [] {
    std::array<Padded, 64> colours{};
    for (size_t i = 0; i < colours.size(); ++i) {
      std::memcpy(colours[i].bytes, nes::kPalette[i].data(), 3);
    }
    return colours;
  }();
  if (count == 0) return;
  for (size_t i = 0; i + 1 < count; ++i) {
    std::memcpy(rgb + 3 * i, kColours[pixels[i] & 63].bytes, 4);
  }
  std::memcpy(rgb + 3 * (count - 1), kColours[pixels[count - 1] & 63].bytes, 3);
}

}  // namespace mario
