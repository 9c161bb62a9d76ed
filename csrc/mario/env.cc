// Steps, ends of episodes, info and observations of the task. env_shared.cc has
// the parts that all environments share, snapshot.cc the snapshots, and
// viewer.cc the pictures for people.
#include "mario/env.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace mario {

namespace {

constexpr int kLastWorld = 8;
// The NROM conversion ends here: the game stops after 4-4.
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

std::vector<pool::Field> EnvShared::Fields() const {
  std::vector<pool::Field> fields = observation_.Fields();
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

Env::Scratch::Scratch(const Shared& shared)
    : redraw_console(shared.cartridge(), shared.timing(), shared.engine()),
      pictures(shared.observation(), shared.timing()) {
  for (auto& picture : pixels) picture.resize(nes::kScreenPixels);
}

Env::Env(std::shared_ptr<const Shared> shared, int env_id, uint64_t seed)
    : shared_(std::move(shared)),
      env_id_(env_id),
      game_(shared_->cartridge(), shared_->timing(), shared_->engine(), env_id,
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
  // Upstream draws the world first, then the stage.
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
  episode_.continues = 0;
}

void Env::Reset(pool::Scratch& lent, const pool::StartSet* starts) {
  auto& scratch = static_cast<Scratch&>(lent);
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
  if (episode_.continues && ContinueGame(scratch)) return;
  ResetToStage(ChooseStage(), scratch);
}

void Env::ResetToStage(int stage, Scratch& scratch) {
  ApplySeed();
  outcome_ = pool::Outcome{};
  episode_.continues = 0;
  const int age = ChooseAge();
  LoadStart(stage);
  game_.AdvanceRandomNumbers(age);
  const uint64_t frames_before = game_.frames();
  RunNoops(stage);
  BeginEpisode();
  if (age == 0 && game_.frames() == frames_before) {
    observation_ = *shared_->start(stage, env_id_).observation;
  } else {
    RedrawAndObserve(DrawnFrames{}, scratch);
    observation_.FillWithNewest();
  }
}

// episodic_life: the game continues after a lost life, unless it was the last
// one.
bool Env::ContinueGame(Scratch& scratch) {
  outcome_ = pool::Outcome{};
  episode_.continues = 0;
  SkipWaits();
  if (game_.ram_view().game_over()) return false;
  BeginEpisode();
  RedrawAndObserve(DrawnFrames{}, scratch);
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

int Env::ChooseAge() {
  const int most = shared_->config().rng_frames_max;
  if (most == 0) return 0;
  return static_cast<int>(random_.Below(static_cast<uint32_t>(most) + 1));
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
    const RamView view = game_.ram_view();
    if (view.dying() || view.dead() || view.busy() || view.flag_get()) {
      // The idle frames have ended the episode: begin without them.
      LoadStart(stage);
      return;
    }
  }
}

void Env::BeginEpisode() {
  const RamView view = game_.ram_view();
  episode_.counter.Begin(view);
  episode_.steps_without_progress = 0;
  episode_.buttons_last = 0;
  // A that is held already does not swim.
  episode_.frames_of_a = view.a_held() ? UINT8_MAX : 0;
  episode_.info = Info{};
  ReadInfo(view);
}

// Returns the buttons that the console receives while an action holds others.
uint8_t Env::ButtonsOfFrame(uint8_t buttons) {
  const uint64_t threshold = shared_->sticky_threshold();
  if (threshold > 0 && random_.Chance(threshold)) {
    buttons = episode_.buttons_last;
  }
  episode_.buttons_last = buttons;
  return shared_->config().turbo_swim > 0 ? ApplyTurbo(buttons) : buttons;
}

// The frame without A is the first of the next period, so that periods and
// steps of the same length begin together.
uint8_t Env::ApplyTurbo(uint8_t buttons) {
  uint8_t& frames = episode_.frames_of_a;
  if ((buttons & nes::kA) == 0) {
    frames = 0;
  } else if (frames < shared_->config().turbo_swim) {
    ++frames;
  } else if (game_.ram_view().swimming()) {
    frames = 1;
    buttons = static_cast<uint8_t>(buttons & ~nes::kA);
  }
  return buttons;
}

pool::Outcome Env::Step(int32_t action, pool::Scratch& lent) {
  auto& scratch = static_cast<Scratch&>(lent);
  StepProgress step{.buttons = shared_->buttons()[action]};
  while (!step.is_over) {
    RunFrameOfStep(&step, scratch);
    SkipWaitsOfStep(&step);
  }
  return FinishStep(step, scratch);
}

bool Env::SkipWaits() {
  const Config& config = shared_->config();
  if (!config.pause_for_rng) {
    const uint64_t before = game_.frames();
    game_.SkipWaits(shared_->whole_game(), config.cut_waits);
    return game_.frames() != before;
  }
  const auto bits = [this](RamView view) {
    return shared_->RandomBitsOf(view, env_id_);
  };
  const Game::Wait wait = game_.PlayWaitsAndPause(bits);
  if (wait == Game::Wait::kStart) {
    for (int left = ChooseNoops(); left > 0 && game_.ram_view().in_control();
         --left) {
      game_.RunFrame(0, nullptr);
    }
  }
  // Within a level the rest of the step follows, as in the level's own task.
  return wait == Game::Wait::kStart || wait == Game::Wait::kEnd;
}

// Returns whether the info is now of the frame after a wait, which ends the
// step.
bool Env::SkipWaitsOfStep(StepProgress* step) {
  if (step->end != EndReason::kNone) return false;
  if (!SkipWaits() || !shared_->config().step_ends_at_waits) return false;
  const RamView view = game_.ram_view();
  step->is_over = true;
  step->end = FindEnd(view, step->stats);  // the wait may be that after a game
  ReadInfo(view);
  return true;
}

// Whether the next frame is one of the last frames of the step, which are
// observed unless the step ends earlier.
bool Env::IsObserved(const StepProgress& step) const {
  return step.frames >=
         shared_->config().frame_skip - shared_->observation().pictures();
}

// With frame_max, the first of the last two frames is kept, and the second is
// combined with it. A step of one frame keeps that frame; the other frame is
// redrawn.
void Env::RunFrameOfStep(StepProgress* step, Scratch& scratch) {
  const uint64_t number = game_.frames() + 1;
  DrawnFrames& drawn = step->drawn;
  nes::Canvas* canvas = nullptr;
  const bool maximum = shared_->observation().pictures() == 2;
  const bool making =
      IsObserved(*step) &&
      (!maximum || (drawn.kept != 0 && drawn.kept == number - 1));
  if (making) {
    canvas = scratch.pictures.Make(&observation_, maximum);
    drawn.made = number;
  } else if (IsObserved(*step)) {
    canvas = scratch.pictures.Keep();
    drawn.kept = number;
  }
  // A step begins with a state that others may have changed.
  const bool remember =
      step->frames == 0 || step->frames + 1 == shared_->config().frame_skip;
  game_.RunFrameOnto(ButtonsOfFrame(step->buttons), canvas, remember);
  if (making) scratch.pictures.Finish();
  CountFrameOfStep(step);
}

void Env::CountFrameOfStep(StepProgress* step) {
  const RamView view = game_.ram_view();
  episode_.counter.Count(view, &step->stats);
  step->end = FindEnd(view, step->stats);
  ++step->frames;
  step->is_over = step->end != EndReason::kNone ||
                  step->frames == shared_->config().frame_skip;
  if (step->is_over) ReadInfo(view);
}

pool::Outcome Env::FinishStep(const StepProgress& step, Scratch& scratch) {
  game_.Recall(&scratch.redraw_console);
  const Config& config = shared_->config();
  const StepStats& stats = step.stats;
  episode_.continues = step.end == EndReason::kLife;
  int& stalled = episode_.steps_without_progress;
  constexpr int kMaxInt = std::numeric_limits<int>::max();
  stalled = stats.progressed ? 0 : std::min(stalled, kMaxInt - 1) + 1;
  outcome_.terminated = step.end != EndReason::kNone;
  outcome_.truncated = !outcome_.terminated && config.stall_steps > 0 &&
                       stalled >= config.stall_steps;
  const EndReason end = outcome_.truncated ? EndReason::kStall : step.end;
  episode_.info.end_reason = static_cast<int8_t>(end);
  episode_.info.wrong_pass = stats.wrong_passes > 0;
  outcome_.reward =
      SumReward(shared_->reward(), config, stats, &episode_.info.reward);
  RedrawAndObserve(step.drawn, scratch);
  return outcome_;
}

EndReason Env::FindEnd(const RamView& view, const StepStats& stats) const {
  const Config& config = shared_->config();
  const bool death = view.dying() || view.dead();
  if (shared_->whole_game()) {
    if (view.game_over()) return EndReason::kGameOver;
    // Nothing follows the last castle, and upstream waits there for ever.
    const int last_world =
        config.lost_levels ? kLastWorldOfLostLevels : kLastWorld;
    if (view.world_over() && view.world() >= last_world) {
      return EndReason::kFlag;
    }
    if (config.episodic_life && death) return EndReason::kLife;
  } else {
    if (death) return EndReason::kDeath;
    if (view.flag_get()) return EndReason::kFlag;
  }
  if (config.end_on_wrong_pass && stats.wrong_passes > 0) {
    return EndReason::kWrongPass;
  }
  return EndReason::kNone;
}

void Env::ReadInfo(const RamView& view) {
  Info& info = episode_.info;
  info.coins = view.coins();
  info.life = view.lives();
  info.score = view.score();
  info.stage = view.stage();
  info.time = view.time();
  info.world = view.world();
  info.x_pos = view.x();
  info.y_pos = view.y();
  info.area = view.area();
  info.area_pointer = view.area_pointer();
  info.best_x = episode_.counter.positions.best_here();
  info.loop = view.loop();
  info.status = static_cast<int8_t>(view.status());
  info.flag_get = view.flag_get();
}

// Adds the last frames to the observation. A frame is drawn while it runs only
// if it is expected to be one of the last frames. After an early end or a
// skipped wait pictures are missing, and those frames are redrawn.
void Env::RedrawAndObserve(const DrawnFrames& drawn, Scratch& scratch) {
  if (shared_->observation().pictures() > 0) {
    if (drawn.watched) {
      MakeFramesWatched(drawn, scratch);
    } else {
      MakeFrames(drawn, scratch);
    }
  }
  observation_.Push(game_.console().ram());
}

void Env::MakeFrames(const DrawnFrames& drawn, Scratch& scratch) {
  const uint64_t newest = game_.frames();
  if (drawn.made != 0 && drawn.made == newest) return;
  observation_.bands().known = 0;  // they may be of another frame of the step
  const bool maximum = shared_->observation().pictures() == 2;
  int age = 0;  // of the frame that is made
  if (maximum && drawn.kept != 0 && drawn.kept == newest) {
    age = 1;  // combined with the newest, which is drawn already
  } else if (maximum && (drawn.kept == 0 || drawn.kept != newest - 1)) {
    Redraw(game_.record(1), &scratch.redraw_console, scratch.pictures.Keep());
  }
  Redraw(game_.record(age), &scratch.redraw_console,
         scratch.pictures.Make(&observation_, maximum));
  scratch.pictures.Finish();
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

}  // namespace mario
