// The contents of a snapshot, its check and its restoration, and how an episode
// begins from a snapshot or from the save of a console.
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "mario/env.h"

namespace mario {

// Every later program with the same version can restore a snapshot
// (tests/mario/test_golden_snapshot.py). Increase the version when a struct
// below changes, or the default of an option, because the hash of the options
// leaves out defaults.
constexpr uint32_t kSnapshotVersion = 6;

/// The fixed part of a snapshot. If the options need them, the second frame
/// record and the stage generator follow; the frame stack comes last.
struct SnapshotBody {
  char magic[8];
  uint32_t version;
  uint32_t bytes;
  uint64_t rom_hash;
  uint64_t config_hash;
  nes::State state;
  FrameRecord record;
  Random random;
  uint64_t seed;
  uint8_t reseed, terminated, truncated, reserved[5];
  Episode episode;
};
static_assert(
    IsFilledBy<SnapshotBody, &SnapshotBody::magic, &SnapshotBody::version,
               &SnapshotBody::bytes, &SnapshotBody::rom_hash,
               &SnapshotBody::config_hash, &SnapshotBody::state,
               &SnapshotBody::record, &SnapshotBody::random,
               &SnapshotBody::seed, &SnapshotBody::reseed,
               &SnapshotBody::terminated, &SnapshotBody::truncated,
               &SnapshotBody::reserved, &SnapshotBody::episode>(),
    "a snapshot contains values only, no padding");
static_assert(kIsPacked<FrameRecord> && kIsPacked<LegacyRandomState>,
              "the parts after the body contain values only, no padding");

namespace {

constexpr char kMagic[8] = {'M', 'A', 'R', 'I', 'O', 'E', 'N', 'V'};

bool IsPlausible(const Episode& episode) {
  return episode.counter.IsPlausible() && episode.steps_without_progress >= 0 &&
         episode.continues <= 1 && episode.info.flag_get <= 1 &&
         episode.info.wrong_pass <= 1 && episode.info.status >= 0 &&
         episode.info.status <= 2 && episode.info.start >= -1 &&
         episode.info.end_reason >= 0 &&
         episode.info.end_reason <= static_cast<int>(EndReason::kStall);
}

bool HasOlderRecord(const EnvShared& shared) {
  return shared.observation().pictures() == 2;
}

size_t BytesOfSnapshot(const EnvShared& shared) {
  return sizeof(SnapshotBody) +
         (HasOlderRecord(shared) ? sizeof(FrameRecord) : 0) +
         (shared.config().random_stages ? sizeof(LegacyRandomState) : 0) +
         shared.observation().bytes();
}

}  // namespace

/// A snapshot of the right size taken apart.
struct SnapshotParts {
  SnapshotBody body;
  FrameRecord older{};
  LegacyRandomState stage_random{};
  const std::byte* stack;

  SnapshotParts(const std::byte* blob, const EnvShared& shared) {
    const auto take = [&blob](void* to, size_t size) {
      std::memcpy(to, blob, size);
      blob += size;
    };
    take(&body, sizeof(body));
    if (HasOlderRecord(shared)) take(&older, sizeof(older));
    if (shared.config().random_stages) {
      take(&stage_random, sizeof(stage_random));
    }
    stack = blob;
  }
};

size_t Env::SnapshotBytes() const { return BytesOfSnapshot(*shared_); }

void Env::Snapshot(std::byte* out) const {
  RequireNoCartridgeRam(game_.console());
  SnapshotBody body{};
  std::memcpy(body.magic, kMagic, sizeof(kMagic));
  body.version = kSnapshotVersion;
  body.bytes = static_cast<uint32_t>(SnapshotBytes());
  body.rom_hash = shared_->cartridge()->hash();
  body.config_hash = shared_->config_hash();
  body.state = game_.console().state();
  body.record = game_.record(0);
  body.random = random_;
  body.seed = seed_;
  body.reseed = reseed_;
  body.terminated = outcome_.terminated;
  body.truncated = outcome_.truncated;
  body.episode = episode_;
  const auto append = [&out](const void* from, size_t size) {
    std::memcpy(out, from, size);
    out += size;
  };
  append(&body, sizeof(body));
  if (HasOlderRecord(*shared_)) {
    append(&game_.record(1), sizeof(FrameRecord));
  }
  if (shared_->config().random_stages) {
    append(&stage_random_, sizeof(stage_random_));
  }
  observation_.CopyTo(reinterpret_cast<uint8_t*>(out));
}

void EnvShared::CheckSnapshot(std::span<const std::byte> blob) const {
  if (blob.size() != BytesOfSnapshot(*this)) {
    throw std::invalid_argument(
        "this snapshot has " + std::to_string(blob.size()) +
        " bytes, but this environment's snapshots have " +
        std::to_string(BytesOfSnapshot(*this)) +
        "; restore it with the ROM and options it was taken with");
  }
  const auto check = [](bool good, const char* what) {
    if (good) return;
    throw std::invalid_argument(std::string("this is not a snapshot for ") +
                                what +
                                "; restore it with the ROM, options and "
                                "version it was taken with");
  };
  const SnapshotParts parts(blob.data(), *this);
  const SnapshotBody& body = parts.body;
  check(std::memcmp(body.magic, kMagic, sizeof(kMagic)) == 0,
        "the Super Mario Bros. task");
  check(body.version == kSnapshotVersion,
        "this version of the Super Mario Bros. task");
  check(body.rom_hash == cartridge_->hash(), "this ROM");
  const nes::Timing saved = nes::TimingOf(body.state);
  if (saved != timing_) {
    throw std::invalid_argument(
        std::string("this snapshot was taken under timing='") +
        (saved == nes::Timing::kNesPy ? "nes_py" : "console") +
        "', but this environment has timing='" + config_.timing +
        "'; restore it with the timing it was taken with");
  }
  check(
      body.config_hash == config_hash_ && body.bytes == BytesOfSnapshot(*this),
      "an environment with these options");
  if (nes::IsPlausible(body.state, timing_) &&
      nes::IsPlausible(body.record.before, timing_) &&
      (!HasOlderRecord(*this) ||
       nes::IsPlausible(parts.older.before, timing_)) &&
      parts.stage_random.IsValid() && IsPlausible(body.episode) &&
      observation_.IsPlausible(reinterpret_cast<const uint8_t*>(parts.stack))) {
    return;
  }
  throw std::invalid_argument(
      "this snapshot is damaged: it contains values that no game reaches; "
      "restore an intact snapshot");
}

void Env::Restore(const std::byte* blob, pool::RngMode mode) {
  const SnapshotParts parts(blob, *shared_);
  const SnapshotBody& body = parts.body;
  LoadGame(parts);
  episode_ = body.episode;
  if (mode == pool::RngMode::kSaved) {
    if (shared_->config().random_stages) stage_random_ = parts.stage_random;
    random_ = body.random;
    seed_ = body.seed;
    reseed_ = body.reseed != 0;
  }
  outcome_ = {0.0f, body.terminated != 0, body.truncated != 0};
}

void Env::ResetToConsoleSave(std::span<const std::byte> save,
                             std::span<const uint8_t> buttons,
                             Scratch& scratch) {
  if (buttons.size() < 2) {
    throw std::invalid_argument(
        "a start needs the buttons of 2 frames or more, got those of " +
        std::to_string(buttons.size()));
  }
  const bool nes_py = shared_->timing() == nes::Timing::kNesPy;
  // The scout finds places, and saves consoles, under the console's timing.
  std::optional<nes::Console> source;
  if (nes_py) {
    source.emplace(shared_->cartridge(), nes::Timing::kConsole,
                   shared_->engine());
  }
  nes::Console& loading = nes_py ? *source : game_.console();
  loading.Load(save);
  if (loading.uses_prg_ram()) {
    throw std::invalid_argument(
        "this console state has cartridge RAM at $6000-$7FFF, which the task's "
        "snapshots do not contain; give the state of a game without it");
  }
  std::vector<uint8_t> frames(buttons.begin(), buttons.end());
  if (nes_py) {
    // A frame of nes-py begins after the point at which the game reads the pad.
    // So the game sees the buttons of a frame in the next one, and the last
    // frame has no buttons.
    game_.console().ContinueAsNesPy(source->state(), frames.front());
    frames.erase(frames.begin());
    frames.push_back(0);
  }
  const auto skip = static_cast<size_t>(shared_->config().frame_skip);
  bool first = true;
  for (size_t i = 0; i < frames.size(); ++i) {
    game_.RunFrame(frames[i], nullptr);
    // A maximum of two frames needs two frames that have been run.
    if (i == 0 || (frames.size() - 1 - i) % skip != 0) continue;
    RedrawAndObserve(DrawnFrames{}, scratch);
    if (first) observation_.FillWithNewest();
    first = false;
  }
  outcome_ = pool::Outcome{};
  episode_.continues = 0;
  BeginEpisode();
}

void Env::ResetToConsole(std::span<const std::byte> save, Scratch& scratch) {
  game_.console().Load(save);
  game_.ForgetFrames();
  outcome_ = pool::Outcome{};
  episode_.continues = 0;
  BeginEpisode();
  RedrawAndObserve(DrawnFrames{}, scratch);
  observation_.FillWithNewest();
}

void Env::ResetToSnapshot(const std::byte* blob) {
  outcome_ = pool::Outcome{};
  episode_.continues = 0;
  const SnapshotParts parts(blob, *shared_);
  LoadGame(parts);
  BeginEpisode();
  episode_.frames_of_a = parts.body.episode.frames_of_a;
}

// Loads console, frame records and frame stack, but nothing of the episode.
void Env::LoadGame(const SnapshotParts& parts) {
  game_.console().set_state(parts.body.state);
  game_.record(0) = parts.body.record;
  if (HasOlderRecord(*shared_)) game_.record(1) = parts.older;
  observation_.CopyFrom(reinterpret_cast<const uint8_t*>(parts.stack));
}

}  // namespace mario
