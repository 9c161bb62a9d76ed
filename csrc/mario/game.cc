// Skips waits in the order and with the frame counts of gym-super-mario-bros
// 7.4.0, but with a bound on every loop.
#include "mario/game.h"

#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace mario {

namespace {

// Frames from power-on until the game has cleared work RAM. Their parity
// decides how enemies move in each stage. Under nes-py's timing there are none,
// as upstream has none.
constexpr int kPowerOnFrames = 1;

// Returns a world as the Lost Levels and upstream's ids write it: 1 to 9, then
// A to D.
std::string WorldName(int world) {
  if (world < 10) return std::to_string(world);
  return std::string(1, static_cast<char>('A' + world - 10));
}

// The frames after which Start, pressed again, ends a pause.
constexpr int kShortestPause = 45;
// The most pauses that are tried in one wait.
constexpr int kMostPauses = 4;

// In every frame the game shifts its register of random bits to the right, and
// the exclusive or of two of its bits into its other end.
uint64_t NextRandomBits(uint64_t bits) {
  constexpr int kBits = 8 * ram::kRandomBytes;
  const uint64_t next = (bits >> (kBits - 7) ^ bits >> (kBits - 15)) & 1;
  return bits >> 1 | next << (kBits - 1);
}

}  // namespace

Target Target::Of(int world, int stage, bool lost_levels) {
  if (world < 1 || world > Worlds(lost_levels) || stage < 1 ||
      stage > kStages) {
    throw std::invalid_argument(
        "stage " + WorldName(world) + "-" + std::to_string(stage) +
        " does not exist; worlds are " +
        (lost_levels ? "1 to 9 and A to D" : "1 to 8") + ", stages 1 to 4");
  }
  // In worlds that open with a walk into a pipe, this walk is a separate room.
  const bool intro = lost_levels
                         ? world == 1 || world == 3
                         : world == 1 || world == 2 || world == 4 || world == 7;
  return Target{world, stage, stage + (intro && stage >= 2 ? 1 : 0)};
}

void Redraw(const FrameRecord& record, nes::Console* console, uint8_t* pixels) {
  console->set_state(record.before);
  console->RunFrame(record.buttons, pixels);
}

void Redraw(const FrameRecord& record, nes::Console* console,
            nes::Canvas* canvas) {
  console->set_state(record.before);
  console->RunFrameOnto(record.buttons, canvas);
}

void RequireNoCartridgeRam(const nes::Console& console) {
  if (!console.uses_prg_ram()) return;
  throw std::runtime_error(
      "the program wrote to cartridge RAM at $6000-$7FFF, which the task's "
      "snapshots do not contain; use a ROM of Super Mario Bros., or run this "
      "ROM in mario_envpool.nes.Console");
}

Game::Game(std::shared_ptr<const nes::Cartridge> cartridge, nes::Timing timing,
           nes::Engine engine, int env_id, bool remember_two)
    : console_(std::move(cartridge), timing, engine),
      env_id_(env_id),
      remember_two_(remember_two) {}

// Counts the frames of one wait and throws if the wait exceeds its limit.
class Game::Loop {
 public:
  Loop(Game* game, const char* what, int limit = kSkipLimitFrames)
      : game_(game), what_(what), limit_(limit) {}

  void Frame(uint8_t buttons) {
    if (++frames_ > limit_) {
      const RamView view = game_->ram_view();
      throw std::runtime_error(
          "environment " + std::to_string(game_->env_id_) + " (world " +
          std::to_string(view.world()) + "-" + std::to_string(view.stage()) +
          "): skipping " + what_ + " did not end within " +
          std::to_string(limit_) +
          " frames; the ROM is not a supported version of Super Mario Bros., "
          "or work RAM was changed; reset the environment");
    }
    game_->RunFrame(buttons, nullptr);
  }

 private:
  Game* game_;
  const char* what_;
  int limit_;
  int frames_ = 0;
};

void Game::StartGame(const std::optional<Target>& target, uint8_t power_on_ram,
                     bool cut_waits) {
  console_.PowerOn();
  uint8_t* const ram = console_.ram();
  std::memset(ram, power_on_ram, nes::kRamBytes);
  const bool nes_py = console_.timing() == nes::Timing::kNesPy;
  Loop title(this, "the start screen",
             nes_py ? kStartLimitFramesOfNesPy : kSkipLimitFrames);
  if (!nes_py) {
    for (int i = 0; i < kPowerOnFrames; ++i) title.Frame(0);
  }
  title.Frame(nes::kStart);
  title.Frame(0);
  while (ram_view().time() == 0) {
    title.Frame(nes::kStart);
    if (target) {
      ram[ram::kWorld] = static_cast<uint8_t>(target->world - 1);
      ram[ram::kStage] = static_cast<uint8_t>(target->stage - 1);
      ram[ram::kArea] = static_cast<uint8_t>(target->area - 1);
    }
    title.Frame(0);
    if (cut_waits) ram[ram::kPrelevelTimer] = 0;
  }
  if (!cut_waits) {
    // The clock has digits, and the title screen is shown.
    while (ram[ram::kOperMode] != ram::kModePlaying) {
      title.Frame(nes::kStart);
      title.Frame(0);
    }
    PlayWaits();
    return;
  }
  Loop opening(this, "the start of the stage");
  int time_last = ram_view().time();
  while (ram_view().time() >= time_last) {
    time_last = ram_view().time();
    opening.Frame(nes::kStart);
    opening.Frame(0);
  }
}

void Game::SkipEndOfWorld() {
  if (!ram_view().world_over()) return;
  const int time = ram_view().time();
  Loop loop(this, "the end of a world");
  while (ram_view().time() == time) loop.Frame(0);
}

void Game::Recall(nes::Console* console) {
  if (since_record_ == 0) return;
  FrameRecord& record = records_[newest_];
  console->set_state(record.before);
  uint8_t buttons = record.buttons;
  for (int i = 0; i < since_record_; ++i) {
    console->RunFrame(buttons, nullptr);
    buttons = buttons_since_record_[i];
  }
  record.before = console->state();
  record.buttons = buttons;
  since_record_ = 0;
}

bool Game::IsWaiting() const {
  const RamView view = ram_view();
  return view.busy() || view.dying() || view.dead() || view.world_over();
}

// Runs a wait at its full length. After a castle the game seems not to wait for
// one frame, before it loads the level; `to_start` counts it as part of the
// wait.
void Game::PlayWaits(bool to_start) {
  Loop loop(this, "a wait between areas or lives", kPlayLimitFrames);
  const auto loads = [this] {
    return console_.ram()[ram::kOperMode] == ram::kModePlaying &&
           console_.ram()[ram::kOperModeTask] != ram::kTaskPlaying;
  };
  // After the last life the game returns to the title screen without any
  // button.
  while ((IsWaiting() || (to_start && loads())) && !ram_view().game_over()) {
    loop.Frame(0);
  }
}

Game::Wait Game::PlayWaitsAndPause(
    const std::function<uint64_t(RamView)>& bits_of_start) {
  if (!IsWaiting()) return Wait::kNone;
  const auto place = [this] {
    const RamView view = ram_view();
    return std::array{view.world(), view.stage(), view.lives()};
  };
  const nes::State state = console_.state();
  const auto place_before = place();
  const uint64_t frames_before = frames_;
  const size_t recorded = movie_ == nullptr ? 0 : movie_->size();
  const auto rewind = [&] {
    console_.set_state(state);
    frames_ = frames_before;
    if (movie_ != nullptr) movie_->resize(recorded);
  };
  PlayWaits(/*to_start=*/true);
  if (!ram_view().in_control()) return Wait::kEnd;
  const Wait wait = place() == place_before ? Wait::kInLevel : Wait::kStart;
  uint64_t bits = 0;
  if (wait == Wait::kStart) {
    bits = bits_of_start(ram_view());
  } else {
    // As where the waits are cut, which takes fewer frames.
    rewind();
    SkipWaits(/*whole_game=*/true, /*cut_waits=*/true);
    bits = random_bits();
    rewind();
    PlayWaits(/*to_start=*/true);
  }
  // In some revisions the wait after a death lasts longer with a pause.
  int frames = 0;
  for (int i = 0; i < kMostPauses; ++i) {
    const int more = FramesUntil(bits);
    if (more == 0) break;
    frames = (frames + more) % ram::kRandomPeriod;
    rewind();
    Pause(frames);
    PlayWaits(/*to_start=*/true);
  }
  return wait;
}

void Game::PauseUntil(uint64_t bits) {
  const int frames = FramesUntil(bits);
  if (frames > 0) Pause(frames);
}

// The frames after which the random numbers are `bits`; 0 if they never are.
int Game::FramesUntil(uint64_t bits) const {
  uint64_t now = random_bits();
  int frames = 0;
  while (now != bits) {
    if (++frames == ram::kRandomPeriod) return 0;
    now = NextRandomBits(now);
  }
  return frames;
}

// In a pause the game counts nothing, but its random numbers go on. The frame
// that presses Start again is not part of it. A short pause lasts until the
// random numbers repeat.
void Game::Pause(int frames) {
  if (frames < kShortestPause) frames += ram::kRandomPeriod;
  RunFrame(nes::kStart, nullptr);
  for (int i = 1; i < frames; ++i) RunFrame(0, nullptr);
  RunFrame(nes::kStart, nullptr);
}

void Game::SkipWaits(bool whole_game, bool cut_waits) {
  if (!cut_waits) {
    PlayWaits();
    return;
  }
  uint8_t* const ram = console_.ram();
  if (ram_view().dying()) {
    ram[ram::kPlayerState] = ram::kStateDead;
    RunFrame(0, nullptr);
  }
  if (whole_game) SkipEndOfWorld();
  const uint8_t timer = ram[ram::kChangeAreaTimer];
  if (timer > 1 && timer < 255) {
    ram[ram::kChangeAreaTimer] = 1;
    ram_written_ = true;
  }
  if (!ram_view().busy() && !ram_view().world_over()) return;
  Loop loop(this, "a wait between areas or lives");
  while (ram_view().busy() || ram_view().world_over()) {
    ram[ram::kPrelevelTimer] = 0;
    loop.Frame(0);
  }
}

uint64_t Game::random_bits() const {
  uint64_t bits = 0;
  for (int i = 0; i < ram::kRandomBytes; ++i) {
    bits = bits << 8 | console_.ram()[ram::kRandomBits + i];
  }
  return bits;
}

void Game::AdvanceRandomNumbers(int frames) {
  if (frames == 0) return;
  uint8_t* const ram = console_.ram();
  uint64_t bits = random_bits();
  for (int i = 0; i < frames; ++i) bits = NextRandomBits(bits);
  for (int i = ram::kRandomBytes; i-- > 0; bits >>= 8) {
    ram[ram::kRandomBits + i] = static_cast<uint8_t>(bits);
  }
  ram[ram::kFrameCounter] += static_cast<uint8_t>(frames);
  // Counts down; after 0 the slow timers go on, and it begins again.
  const int period = console_.Peek(ram::kIntervalReload) + 1;
  uint8_t& interval = ram[ram::kIntervalCounter];
  interval =
      static_cast<uint8_t>((interval + period - frames % period) % period);
}

}  // namespace mario
