// mario::Env::Restore: edited snapshots of games in many situations, under
// options that use all of a snapshot's parts. A refused snapshot must leave the
// environment unchanged. An accepted snapshot is restored, or an episode begins
// from it, and the environment is stepped, rendered and saved again.
#include "fuzz.h"
#include "mario/env.h"

namespace {

constexpr size_t kHashes = 32;  // magic, version, size and hashes come first

mario::Config SmallConfig() {
  mario::Config config;
  config.img_height = config.img_width = 8;
  config.stack_num = 2;
  config.frame_skip = 3;
  return config;
}

std::vector<mario::Config> Configs() {
  mario::Config stage = SmallConfig();
  stage.stages = {"1-2"};
  stage.repeat_action_probability = 0.5;
  mario::Config random = SmallConfig();
  random.random_stages = true;
  random.frame_max = true;
  random.reward = "progress";
  random.reward_score = 1e9;
  random.stall_steps = 4;
  random.noop_max = 3;
  mario::Config game = SmallConfig();
  game.episodic_life = true;
  game.end_on_wrong_pass = true;
  game.action_set = "raw";
  game.reward_clip = true;
  game.frame_skip = 4;
  game.obs_type = "gray+ram+tiles+motion";
  mario::Config nes_py = SmallConfig();
  nes_py.stages = {"1-1"};
  nes_py.frame_max = true;
  nes_py.timing = "nes_py";
  return {stage, random, game, nes_py};
}

/// An environment, snapshots of it, and memory for its rows.
struct Played {
  explicit Played(const mario::Config& config)
      : shared(std::make_shared<const mario::Env::Shared>(config,
                                                          fuzz::StandIn())),
        scratch(*shared),
        env(shared, 0, 1) {
    for (const pool::Field& field : shared->Fields()) {
      memory.emplace_back(field.RowBytes());
    }
    for (auto& bytes : memory) row.push_back(bytes.data());
    blobs.push_back(Snapshot());  // before the first reset
    env.Reset(scratch);
    for (int step = 0; step < 400; ++step) {
      if (step % 50 == 0) blobs.push_back(Snapshot());
      const pool::Outcome outcome = env.Step(step * 7 % actions(), scratch);
      if (!outcome.terminated && !outcome.truncated) continue;
      if (blobs.size() < 24) blobs.push_back(Snapshot());
      env.Reset(scratch);
    }
  }
  int actions() const { return shared->NumActions(); }
  std::vector<std::byte> Snapshot() const {
    std::vector<std::byte> blob(env.SnapshotBytes());
    env.Snapshot(blob.data());
    return blob;
  }
  void Restore(const std::vector<std::byte>& blob, pool::RngMode mode) {
    shared->CheckSnapshot(blob);
    env.Restore(blob.data(), mode);
  }

  std::shared_ptr<const mario::Env::Shared> shared;
  mario::Env::Scratch scratch;
  mario::Env env;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> row;
  std::vector<std::vector<std::byte>> blobs;
};

void Play(fuzz::Input& input, Played& played) {
  static std::vector<uint8_t> rgb(nes::kScreenPixels * 3);
  if (input.Once(8)) played.env.Render(played.scratch, rgb.data());
  try {
    for (uint32_t step = input.Below(3) + 1; step > 0; --step) {
      played.env.Write({played.row.data()});
      const auto actions = static_cast<uint32_t>(played.actions());
      const pool::Outcome outcome = played.env.Step(
          static_cast<int>(input.Below(actions)), played.scratch);
      if (outcome.terminated || outcome.truncated) {
        played.env.Reset(played.scratch);
      }
    }
  } catch (const std::runtime_error&) {
    // A wait that does not end.
  }
  const std::vector<std::byte> again = played.Snapshot();
  if (fuzz::Refused([&] { played.Restore(again, pool::RngMode::kSaved); })) {
    fuzz::Require(false, "what an environment saves, it takes back");
  }
}

/// Restores a snapshot or begins an episode from it, after the same check that
/// the pool makes.
void Start(fuzz::Input& input, Played& played,
           const std::vector<std::byte>& blob, pool::RngMode mode) {
  if (!input.Once(4)) return played.Restore(blob, mode);
  played.shared->CheckSnapshot(blob);
  const int stages = played.shared->NumStages();
  std::vector<double> sums(static_cast<size_t>(stages), 0.0);
  sums.push_back(1.0);
  const pool::StartSet starts{stages, sums, blob, blob.size(), 0};
  played.env.Reset(played.scratch, &starts);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::vector<std::unique_ptr<Played>> games = [] {
    std::vector<std::unique_ptr<Played>> all;
    for (const mario::Config& config : Configs()) {
      all.push_back(std::make_unique<Played>(config));
    }
    return all;
  }();
  fuzz::Input input(data, size);
  Played& played = *games[input.Below(static_cast<uint32_t>(games.size()))];
  std::vector<std::byte> blob =
      played.blobs[input.Below(static_cast<uint32_t>(played.blobs.size()))];
  // Half of the edits are after the two states of the console, which are most
  // of the bytes.
  const size_t from = input.Once(16) ? 0
                      : input.Flag() ? kHashes
                                     : kHashes + 2 * sizeof(nes::State);
  fuzz::Edit(input, blob, from);
  if (input.Once(16)) blob.resize(input.Flag() ? blob.size() + 1 : 20);

  // From the same state for every input.
  const std::vector<std::byte>& before = played.blobs.back();
  played.Restore(before, pool::RngMode::kSaved);
  const pool::RngMode mode =
      input.Flag() ? pool::RngMode::kSaved : pool::RngMode::kKeep;
  if (fuzz::Refused([&] { Start(input, played, blob, mode); })) {
    fuzz::Require(played.Snapshot() == before,
                  "a refused snapshot changes nothing");
    return 0;
  }
  Play(input, played);
  return 0;
}
