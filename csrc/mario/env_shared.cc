// The checks of the options and their hash, the tables of actions, the stages,
// the prepared games.
#include "mario/env_shared.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "mario/env.h"
#include "mario/pictures.h"
#include "nes/cartridge.h"
#include "nes/console.h"

namespace mario {

namespace {

constexpr int kMaxStack = 16;
constexpr int kMaxNoops = 1000;
constexpr int kMaxRngFrames = ram::kRandomPeriod - 1;
// Larger than any useful weight, and small enough that no reward overflows a
// float.
constexpr double kMaxWeight = 1e9;
constexpr uint64_t kChanceOne = uint64_t{1} << 53;  // see Random::Chance

// The three sets have the order of gym-super-mario-bros 7.4.0
// (gym_super_mario_bros/actions).
constexpr uint8_t kComplexMovement[] = {
    0,
    nes::kRight,
    nes::kRight | nes::kA,
    nes::kRight | nes::kB,
    nes::kRight | nes::kA | nes::kB,
    nes::kA,
    nes::kLeft,
    nes::kLeft | nes::kA,
    nes::kLeft | nes::kB,
    nes::kLeft | nes::kA | nes::kB,
    nes::kDown,
    nes::kUp,
};
// Each smaller set is a prefix of the largest.
constexpr int kRightOnlyActions = 5;
constexpr int kSimpleActions = 7;
constexpr int kComplexActions = 12;
constexpr int kRawActions = 256;

/// Returns the button byte of one action: button names joined by '+', spaces or
/// commas, in any case; 'NOOP' presses nothing. Throws std::invalid_argument on
/// other words.
uint8_t ParseButtons(const std::string& text) {
  struct Name {
    const char* name;
    uint8_t button;
  };
  static constexpr Name kNames[] = {
      {"a", nes::kA},         {"b", nes::kB},         {"select", nes::kSelect},
      {"start", nes::kStart}, {"up", nes::kUp},       {"down", nes::kDown},
      {"left", nes::kLeft},   {"right", nes::kRight}, {"noop", 0},
  };
  uint8_t buttons = 0;
  bool any = false;
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ' ';
    if (c != '+' && c != ' ' && c != ',') {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (word.empty()) continue;
    const Name* found = nullptr;
    for (const Name& entry : kNames) {
      if (word == entry.name) found = &entry;
    }
    if (found == nullptr) {
      throw std::invalid_argument(
          "unknown button '" + word + "' in action '" + text +
          "'; buttons are A, B, select, start, up, down, left, right, joined "
          "by '+', or NOOP");
    }
    buttons |= found->button;
    any = true;
    word.clear();
  }
  if (!any) {
    throw std::invalid_argument(
        "an action of custom_actions is empty; write 'NOOP' for no button");
  }
  return buttons;
}

/// Returns the button bytes of a named action set, or of `custom` when it is
/// not empty; the name must be valid in both cases. Throws
/// std::invalid_argument on an unknown set or button.
std::vector<uint8_t> ActionTable(const std::string& action_set,
                                 const std::vector<std::string>& custom) {
  int count = 0;
  if (action_set == "raw") count = kRawActions;
  if (action_set == "right_only") count = kRightOnlyActions;
  if (action_set == "simple") count = kSimpleActions;
  if (action_set == "complex") count = kComplexActions;
  if (count == 0) {
    throw std::invalid_argument(
        "action_set '" + action_set +
        "' is unknown; choose right_only, simple, complex or raw, or give "
        "custom_actions");
  }
  std::vector<uint8_t> table;
  if (!custom.empty()) {
    for (const std::string& text : custom) table.push_back(ParseButtons(text));
  } else if (count == kRawActions) {
    for (int i = 0; i < count; ++i) table.push_back(static_cast<uint8_t>(i));
  } else {
    table.assign(kComplexMovement, kComplexMovement + count);
  }
  return table;
}

[[noreturn]] void Refuse(const std::string& option, const std::string& given,
                         const std::string& allowed) {
  throw std::invalid_argument(option + "=" + given + " is not possible; " +
                              allowed);
}

void CheckRange(const char* option, int value, int low, int high) {
  if (value >= low && value <= high) return;
  Refuse(option, std::to_string(value),
         "choose " + std::to_string(low) + " to " + std::to_string(high));
}

std::string Quoted(const std::string& text) { return "'" + text + "'"; }

/// '4-2' -> world 4, stage 2; 'A-2' of the Lost Levels -> world 10, stage 2.
Target ParseStage(const std::string& text, bool lost_levels) {
  const auto digit = [](char c) { return '0' <= c && c <= '9'; };
  const bool letter =
      lost_levels && text.size() == 3 && 'A' <= text[0] && text[0] <= 'Z';
  const bool good = text.size() == 3 && (digit(text[0]) || letter) &&
                    text[1] == '-' && digit(text[2]);
  if (!good) {
    Refuse("stages", Quoted(text),
           lost_levels ? "write a stage as '1-1' to '9-4' or 'A-1' to 'D-4'"
                       : "write a stage as '1-1' to '8-4'");
  }
  const int world = letter ? text[0] - 'A' + 10 : text[0] - '0';
  return Target::Of(world, text[2] - '0', lost_levels);
}

// Text of option values for the hash: equal options give equal text on every
// machine and in every locale.
std::string Text(bool value) { return value ? "1" : "0"; }
std::string Text(int value) { return std::to_string(value); }
std::string Text(double value) {
  constexpr int kDigits = 17;  // enough to tell any two numbers apart
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(),
                                 value, std::chars_format::general, kDigits)
                       .ptr;
  return {buffer.data(), end};
}
std::string Text(const std::string& value) { return value; }
std::string Text(const std::vector<std::string>& value) {
  // With lengths, so that ['right,A'] and ['right', 'A'] differ.
  std::string text;
  for (const std::string& item : value) {
    text += std::to_string(item.size()) + ":" + item;
  }
  return text;
}
std::string Text(const std::vector<int>& value) {
  std::string text;
  for (const int item : value) text += Text(item) + ",";
  return text;
}

/// Hashes only the options that differ from their defaults, so an option that a
/// later version adds does not change the hash.
uint64_t HashOptions(Config config) {
  const auto text_of = [](const pool::Option& option) {
    return std::visit([](auto* value) { return Text(*value); }, option.value);
  };
  Config unchanged;
  const std::vector<pool::Option> defaults = unchanged.Options();
  uint64_t hash = nes::kFnvOffsetBasis;
  size_t number = 0;
  for (const pool::Option& option : config.Options()) {
    const std::string given = text_of(option), name = option.name;
    if (given == text_of(defaults[number++])) continue;
    // The hash of the cartridge covers rom and rom_path; all engines give the
    // same results; rng_frames_max acts only where an episode begins.
    if (name == "rom" || name == "rom_path" || name == "engine" ||
        name == "rng_frames_max") {
      continue;
    }
    const std::string text = name + "=" + given + ";";
    hash = nes::Fnv1a(
        {reinterpret_cast<const uint8_t*>(text.data()), text.size()}, hash);
  }
  return hash;
}

/// Returns the options after checking that all numbers are in range, because
/// later code computes with them.
Config Checked(Config config) {
  CheckRange("frame_skip", config.frame_skip, 1, Game::kMostFramesOfStep);
  CheckRange("stack_num", config.stack_num, 1, kMaxStack);
  CheckRange("noop_max", config.noop_max, 0, kMaxNoops);
  CheckRange("rng_frames_max", config.rng_frames_max, 0, kMaxRngFrames);
  // With nes_py a frame may end while the game makes a random number.
  if (config.rng_frames_max > 0 && config.timing != "console") {
    Refuse("rng_frames_max", std::to_string(config.rng_frames_max),
           "with timing=" + config.timing + " choose 0");
  }
  for (const int noops : config.noops) {
    CheckRange("noops", noops, 0, kMaxNoops);
  }
  CheckRange("power_on_ram", config.power_on_ram, 0, 255);
  CheckRange("stall_steps", config.stall_steps, 0, INT32_MAX);
  // With a period of one frame A would never be pressed again.
  CheckRange("turbo_swim", config.turbo_swim, 0, 255);
  if (config.turbo_swim == 1) {
    Refuse("turbo_swim", "1", "choose 0, or 2 to 255 frames");
  }
  const double sticky = config.repeat_action_probability;
  if (!(sticky >= 0.0 && sticky < 1.0)) {
    Refuse("repeat_action_probability", Text(sticky),
           "choose a probability from 0 to below 1");
  }
  for (const pool::Option& option : config.Options()) {
    double* const* value = std::get_if<double*>(&option.value);
    if (value != nullptr && !(std::abs(**value) <= kMaxWeight)) {
      Refuse(option.name, Text(**value),
             "give a finite number from -1e9 to 1e9");
    }
  }
  // 0 and the number that 0 stands for are the same option and have the same
  // hash.
  if (config.reward_scale == NaturalScale(ParseReward(config.reward))) {
    config.reward_scale = 0;
  }
  return config;
}

}  // namespace

EnvShared::EnvShared(Config config,
                     std::shared_ptr<const nes::Cartridge> cartridge)
    : config_(Checked(std::move(config))),
      cartridge_(std::move(cartridge)),
      observation_(config_),
      buttons_(ActionTable(config_.action_set, config_.custom_actions)),
      reward_(ParseReward(config_.reward)),
      timing_(nes::TimingByName(config_.timing)),
      engine_(config_.engine.empty() ? nes::DefaultEngine()
                                     : nes::EngineByName(config_.engine)),
      engine_problem_(
          engine_ == nes::Engine::kInterpreter ? "" : nes::WhyNotTranslated()),
      config_hash_(HashOptions(config_)) {
  if (cartridge_->has_chr_ram()) {
    throw std::invalid_argument(
        "this ROM uses CHR RAM (its header has 0 CHR banks), which the task's "
        "snapshots do not contain; use a ROM of Super Mario Bros., which has 1 "
        "CHR bank");
  }
  ChooseStages();
  if (config_.pause_for_rng &&
      (!whole_game_ || config_.cut_waits || config_.timing != "console")) {
    Refuse("pause_for_rng", "True",
           "it needs the whole game, cut_waits=False and timing=console");
  }
  sticky_threshold_ = static_cast<uint64_t>(
      std::llround(config_.repeat_action_probability * kChanceOne));
  const size_t count = stages_.empty() ? 1 : stages_.size();
  for (size_t i = 0; i < count; ++i) {
    starts_.push_back(std::make_unique<LazyStart>());
  }
}

void EnvShared::ChooseStages() {
  for (const std::string& text : config_.stages) {
    stages_.push_back(ParseStage(text, config_.lost_levels));
  }
  whole_game_ = stages_.empty() && !config_.random_stages;
  if (!stages_.empty() || whole_game_) return;
  for (int world = 1; world <= Target::Worlds(config_.lost_levels); ++world) {
    for (int stage = 1; stage <= Target::kStages; ++stage) {
      stages_.push_back(Target::Of(world, stage, config_.lost_levels));
    }
  }
}

std::vector<std::pair<const char*, std::string>> EnvShared::Status() const {
  return {{"engine",
           nes::NameOf(engine_problem_.empty() ? engine_
                                               : nes::Engine::kInterpreter)},
          {"engine_problem", engine_problem_}};
}

std::unique_ptr<pool::Scratch> EnvShared::MakeScratch() const {
  return std::make_unique<Env::Scratch>(*this);
}

std::unique_ptr<pool::Env> EnvShared::MakeEnv(int env_id, uint64_t seed) const {
  return std::make_unique<Env>(shared_from_this(), env_id, seed);
}

const StartPoint& EnvShared::start(int index, int env_id) const {
  LazyStart& lazy = *starts_.at(static_cast<size_t>(index));
  std::call_once(lazy.once, [&] { lazy.point = MakeStart(index, env_id); });
  return lazy.point;
}

uint64_t EnvShared::RandomBitsOf(RamView view, int env_id) const {
  // Glitches lead to others.
  if (view.world() > Target::Worlds(config_.lost_levels) ||
      view.stage() > Target::kStages) {
    return 0;
  }
  const auto target =
      Target::Of(view.world(), view.stage(), config_.lost_levels);
  const std::lock_guard lock(random_bits_mutex_);
  uint64_t& bits = random_bits_[{target.world, target.stage}];
  if (bits == 0) {
    Game game(cartridge_, timing_, engine_, env_id, /*remember_two=*/false);
    game.StartGame(target, static_cast<uint8_t>(config_.power_on_ram),
                   /*cut_waits=*/true);
    bits = game.random_bits();
  }
  return bits;
}

StartPoint EnvShared::MakeStart(int index, int env_id) const {
  Game game(cartridge_, timing_, engine_, env_id, /*remember_two=*/true);
  std::optional<Target> target;
  if (!stages_.empty()) target = stages_[static_cast<size_t>(index)];
  StartPoint point;
  game.set_movie(&point.movie);
  game.StartGame(target, static_cast<uint8_t>(config_.power_on_ram),
                 config_.cut_waits);
  if (config_.pause_for_rng) {
    game.PauseUntil(RandomBitsOf(game.ram_view(), env_id));
  }
  point.state = game.console().state();
  for (int age = 0; age < 2; ++age) point.records[age] = game.record(age);
  point.observation.emplace(observation_);
  Pictures pictures(observation_, timing_);
  nes::Console console(cartridge_, timing_, engine_);
  const bool maximum = observation_.pictures() == 2;
  if (maximum) Redraw(point.records[1], &console, pictures.Keep());
  if (observation_.pictures() > 0) {
    Redraw(point.records[0], &console,
           pictures.Make(&*point.observation, maximum));
    pictures.Finish();
  }
  point.observation->Push(point.state.ram);
  point.observation->FillWithNewest();
  return point;
}

}  // namespace mario
