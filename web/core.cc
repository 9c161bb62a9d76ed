// Console, task and small networks for a page without Python (play.js): C
// functions over one game and one network. The caller checks a ROM by its hash,
// and a network by the shapes of its weights. Exceptions reach play.js as
// numbers, without their texts.
#include <emscripten.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "encoders/cnn.h"
#include "encoders/tiles.h"
#include "learner/head_loss.h"
#include "mario/env.h"
#include "mario/env_shared.h"

namespace {

struct Game {
  Game(const mario::Config& config,
       std::shared_ptr<const nes::Cartridge> cartridge)
      : shared(std::make_shared<const mario::EnvShared>(config,
                                                        std::move(cartridge))),
        scratch(*shared),
        env(shared, 0, 0) {}

  std::shared_ptr<const mario::EnvShared> shared;
  mario::Env::Scratch scratch;
  mario::Env env;
};

struct Network {
  bool sees_tiles;
  encoders::TilesShape tiles;
  encoders::CnnShape cnn;
  learner::HeadShape heads;
  std::vector<float> weights;
  std::vector<const float*> parts;
  std::vector<float> features;
  std::vector<std::byte> record;
};

std::shared_ptr<const nes::Cartridge> cartridge;
mario::Config config;
std::optional<Game> game;
Network network;
std::vector<uint8_t> film, rgb(3 * nes::kScreenPixels),
    rgba(4 * nes::kScreenPixels, 255);
std::vector<std::byte> fields, blob;
double facts[8];

void ShowRgb() {
  for (int i = 0; i < nes::kScreenPixels; ++i) {
    std::memcpy(&rgba[4 * i], &rgb[3 * i], 3);
  }
}

void ShowLastFrame() {
  game->env.Render(game->scratch, rgb.data());
  ShowRgb();
}

}  // namespace

extern "C" {

EMSCRIPTEN_KEEPALIVE void insert_rom(const uint8_t* ines, int bytes) {
  cartridge = nes::Cartridge::Parse({ines, static_cast<size_t>(bytes)});
  game.reset();
  config = {};
}

/// Sets an option of mario/config.h, by name; returns whether there is such an
/// option. Of lists only one with a single entry can be given.
EMSCRIPTEN_KEEPALIVE int set_option(const char* name, const char* text) {
  for (const pool::Option& option : config.Options()) {
    if (std::string(name) != option.name) continue;
    std::visit(
        [text](auto* value) {
          using T = std::remove_pointer_t<decltype(value)>;
          if constexpr (std::is_same_v<T, bool>) *value = *text == 't';
          if constexpr (std::is_same_v<T, int>) *value = std::atoi(text);
          if constexpr (std::is_same_v<T, double>) *value = std::atof(text);
          if constexpr (std::is_same_v<T, std::string>) *value = text;
          if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            *value = {text};
          }
        },
        option.value);
    return true;
  }
  return false;
}

/// Makes the game that the options describe. Actions are pad bytes, and a step
/// is a frame.
EMSCRIPTEN_KEEPALIVE void make_game() {
  config.action_set = "raw";
  config.frame_skip = config.stack_num = 1;
  game.emplace(config, cartridge);
  size_t bytes = 0;
  for (const pool::Field& field : game->shared->Fields()) {
    bytes += field.RowBytes();
  }
  fields.resize(bytes);
  blob.resize(game->env.SnapshotBytes());
}

/// Begins an episode.
EMSCRIPTEN_KEEPALIVE void reset(uint32_t seed) {
  game->env.Seed(seed);
  game->env.Reset(game->scratch);
  ShowLastFrame();
}

/// Runs a frame and the waits that follow it; draws it if asked to.
EMSCRIPTEN_KEEPALIVE void run_frame(int buttons, int draw) {
  uint8_t ram[nes::kRamBytes];
  film.clear();
  const pool::Outcome outcome = game->env.StepForViewer(
      buttons, game->scratch, ram, draw ? &film : nullptr, true);
  facts[0] = outcome.terminated;
  facts[1] = outcome.reward;
  if (!draw) return;
  mario::Env::ToRgb(film.data(), nes::kScreenPixels, rgb.data());
  ShowRgb();
}

/// (240, 256, 4) RGBA.
EMSCRIPTEN_KEEPALIVE uint8_t* picture() { return rgba.data(); }
EMSCRIPTEN_KEEPALIVE uint8_t* ram() { return game->env.game().console().ram(); }

/// Whether the last frame ended the episode, and its reward; then of the game
/// now: the flag is reached, world, stage, position, room, best position there.
EMSCRIPTEN_KEEPALIVE double* read_facts() {
  const mario::RamView view = game->env.game().ram_view();
  facts[2] = view.flag_get();
  facts[3] = view.world();
  facts[4] = view.stage();
  facts[5] = view.x();
  facts[6] = view.room_key();
  facts[7] = game->env.counter().positions.best_here();
  return facts;
}

/// The observation: its parts one after another, as trainer/envs/pool.py packs
/// tiles.
EMSCRIPTEN_KEEPALIVE std::byte* observe() {
  std::vector<std::byte*> rows;
  std::byte* at = fields.data();
  for (const pool::Field& field : game->shared->Fields()) {
    rows.push_back(at);
    at += field.RowBytes();
  }
  game->env.Write(pool::Row{rows.data()});
  return fields.data();
}
EMSCRIPTEN_KEEPALIVE int observation_bytes() {
  return static_cast<int>(game->shared->observation().bytes());
}

/// Writes a snapshot; restore_snapshot reads one from the same memory.
EMSCRIPTEN_KEEPALIVE std::byte* take_snapshot() {
  game->env.Snapshot(blob.data());
  return blob.data();
}
EMSCRIPTEN_KEEPALIVE int snapshot_bytes() {
  return static_cast<int>(blob.size());
}
EMSCRIPTEN_KEEPALIVE void restore_snapshot() {
  game->env.Restore(blob.data(), pool::RngMode::kSaved);
  ShowLastFrame();
}

/// Makes a network. `shape`: whether it sees tiles; channels, height and width
/// of an observation; kernel, stride and channels of two convolutions;
/// features, actions, outputs of the critic. `sizes`: numbers in each part of
/// the weights: codes and scales of tiles, then weights and bias of two
/// convolutions, of the linear layer, of actor and critic, then PopArt's mean
/// and deviation. Returns memory for them; null: there are no kernels for this
/// shape.
EMSCRIPTEN_KEEPALIVE float* make_network(const int32_t* shape,
                                         const int32_t* sizes, int parts) {
  network.sees_tiles = shape[0] != 0;
  network.tiles = {shape[6], shape[9], shape[10]};
  network.cnn = {shape[1], shape[2], shape[3], shape[4], shape[5],
                 shape[6], shape[7], shape[8], shape[9], shape[10]};
  network.heads = {shape[10], shape[11], shape[12]};
  if (!(network.sees_tiles ? network.tiles.Valid() : network.cnn.Valid())) {
    return nullptr;
  }
  network.features.resize(network.heads.features);
  network.record.resize(learner::DecisionBytes(network.heads.actions));
  network.weights.resize(std::accumulate(sizes, sizes + parts, 0));
  network.parts = {network.weights.data()};
  for (int i = 0; i + 1 < parts; ++i) {
    network.parts.push_back(network.parts[i] + sizes[i]);
  }
  return network.weights.data();
}

/// Returns the critic's value, then the logits. `level` selects the critic's
/// output.
EMSCRIPTEN_KEEPALIVE const std::byte* decide(const uint8_t* observation,
                                             int level) {
  constexpr auto kPath = encoders::Path::kScalar;
  const auto& p = network.parts;
  const encoders::TrunkWeights trunk{p[4], p[5], p[6], p[7]};
  float* const features = network.features.data();
  if (network.sees_tiles) {
    encoders::TilesForward(network.tiles, kPath, 1, observation,
                           {p[0], p[2], p[3], p[1], trunk}, nullptr, nullptr,
                           features);
  } else {
    encoders::CnnForward(network.cnn, kPath, 1, observation,
                         {p[2], p[3], trunk}, nullptr, nullptr, features);
  }
  const int64_t output = level;
  learner::Decide(network.heads, {p[8], p[9], p[10], p[11], p[12], p[13]}, 1,
                  features, &output, nullptr, 0, network.record.data());
  return network.record.data() + 2 * sizeof(int64_t);
}

}  // extern "C"
