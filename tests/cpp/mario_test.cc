// Tests the task's native code without the game, on a cartridge that does
// nothing and whose work RAM the test fills. So the sanitizers check snapshots
// and steps too.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "mario/env.h"
#include "mario/packed.h"
#include "mario/ram_map.h"
#include "nes/cartridge.h"

namespace {

namespace ram = mario::ram;

/// `JMP self`, and an NMI that returns at once.
std::shared_ptr<const nes::Cartridge> IdleCartridge() {
  std::vector<uint8_t> image(16 + 32768 + 8192);
  std::memcpy(image.data(), "NES\x1A\x02\x01", 6);
  uint8_t* const prg = image.data() + 16;
  const uint8_t loop[] = {0x4C, 0x00, 0x80, 0x40};  // JMP $8000; RTI
  std::memcpy(prg, loop, sizeof(loop));
  const uint8_t vectors[] = {0x03, 0x80, 0x00, 0x80, 0x03, 0x80};
  std::memcpy(prg + 0x7FFA, vectors, sizeof(vectors));
  return nes::Cartridge::Parse(image);
}

mario::Config TestConfig() {
  mario::Config config;
  config.img_height = config.img_width = 8;
  config.stack_num = 2;
  config.frame_max = true;
  config.random_stages = true;
  config.reward = "progress";
  config.stall_steps = 1000;
  return config;
}

struct Played {
  explicit Played(const mario::Config& config)
      : shared(std::make_shared<const mario::Env::Shared>(config,
                                                          IdleCartridge())),
        scratch(*shared),
        env(shared, 0, 1) {
    uint8_t* const memory = env.game().console().ram();
    memory[ram::kPlayerState] = ram::kStateNormal;
    memory[ram::kOperMode] = ram::kModePlaying;
    memory[ram::kViewportY] = 1;
    env.Step(1, scratch);
  }

  std::vector<std::byte> Snapshot() const {
    std::vector<std::byte> blob(env.SnapshotBytes());
    env.Snapshot(blob.data());
    return blob;
  }
  void Restore(const std::vector<std::byte>& blob) {
    shared->CheckSnapshot(blob);
    env.Restore(blob.data(), pool::RngMode::kSaved);
  }

  std::shared_ptr<const mario::Env::Shared> shared;
  mario::Env::Scratch scratch;
  mario::Env env;
};

TEST(SnapshotTest, GoesOnInAnotherEnv) {
  Played first(TestConfig());
  const std::vector<std::byte> blob = first.Snapshot();
  Played second(TestConfig());
  second.env.Step(2, second.scratch);
  second.Restore(blob);
  EXPECT_EQ(second.Snapshot(), blob);
  first.env.Step(3, first.scratch);
  second.env.Step(3, second.scratch);
  EXPECT_EQ(second.Snapshot(), first.Snapshot());
}

TEST(SnapshotTest, OfAnEnvThatWasNeverResetIsTakenBack) {
  const auto shared =
      std::make_shared<const mario::Env::Shared>(TestConfig(), IdleCartridge());
  mario::Env::Scratch scratch(*shared);
  mario::Env env(shared, 0, 1);
  std::vector<std::byte> blob(env.SnapshotBytes());
  env.Snapshot(blob.data());
  EXPECT_NO_THROW(shared->CheckSnapshot(blob));
  env.Restore(blob.data(), pool::RngMode::kSaved);
}

// Snapshots that pass the checks are run: under the sanitizers an index out of
// range ends this test. A refused snapshot must leave the environment
// unchanged.
TEST(SnapshotTest, DamageIsRefusedOrHarmless) {
  Played played(TestConfig());
  const std::vector<std::byte> good = played.Snapshot();
  std::mt19937 random(7);
  int refused = 0;
  constexpr int kTrials = 300;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<std::byte> blob = good;
    for (int i = 0; i < 12; ++i) {
      // Anywhere after the hashes.
      const size_t at = 32 + random() % (blob.size() - 32);
      blob[at] = static_cast<std::byte>(random());
    }
    played.Restore(good);
    try {
      played.Restore(blob);
    } catch (const std::invalid_argument&) {
      ++refused;
      ASSERT_EQ(played.Snapshot(), good);
      continue;
    }
    try {
      played.env.Step(1, played.scratch);
    } catch (const std::runtime_error&) {
      // A wait did not end.
    }
  }
  EXPECT_LT(refused, kTrials);
}

TEST(SnapshotTest, IndicesBeyondTheirTablesAreRefused) {
  Played played(TestConfig());
  const std::vector<std::byte> good = played.Snapshot();
  const auto refused = [&](size_t from_the_end) {
    std::vector<std::byte> blob = good;
    std::memset(blob.data() + blob.size() - from_the_end, 0x7F, 4);
    EXPECT_THROW(played.Restore(blob), std::invalid_argument) << from_the_end;
    EXPECT_EQ(played.Snapshot(), good);
  };
  const size_t stack = 2 * 8 * 8;
  refused(stack + sizeof(uint32_t));  // LegacyRandomState::position
  const size_t episode = stack + sizeof(mario::LegacyRandomState) +
                         sizeof(mario::FrameRecord) + sizeof(mario::Episode);
  const size_t counter = episode - offsetof(mario::Episode, counter);
  const size_t positions = counter - offsetof(mario::FrameCounter, positions);
  refused(positions - offsetof(mario::BestPositions, count));
  refused(positions - offsetof(mario::BestPositions, current));
  refused(counter - offsetof(mario::FrameCounter, x_last));
  refused(counter - offsetof(mario::FrameCounter, x_best));
  refused(counter - offsetof(mario::FrameCounter, time_last));
  refused(counter - offsetof(mario::FrameCounter, coins_last));
  refused(counter - offsetof(mario::FrameCounter, power_last));
}

// The spans end where the blobs end: under the sanitizers, a read beyond the
// end is an error.
TEST(SnapshotTest, AnotherLengthIsRefusedUnread) {
  Played played(TestConfig());
  const std::vector<std::byte> good = played.Snapshot();
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{31}, good.size() / 2, good.size() - 1,
        good.size() + 1, 2 * good.size()}) {
    std::vector<std::byte> blob = good;
    blob.resize(bytes);
    blob.shrink_to_fit();
    try {
      played.shared->CheckSnapshot(blob);
      FAIL() << bytes << " bytes were taken";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what())
                    .find("has " + std::to_string(bytes) + " bytes, but"),
                std::string::npos)
          << error.what();
    }
  }
}

struct Hole {
  int8_t small;
  int32_t large;
};
struct Floats {
  float one;
  int32_t two;
};
static_assert(!mario::kIsPacked<Hole> && !mario::kIsPacked<Hole[2]>);
static_assert(!mario::IsFilledBy<Hole, &Hole::small, &Hole::large>());
static_assert(!mario::IsFilledBy<Floats, &Floats::one>());
static_assert(mario::IsFilledBy<Floats, &Floats::one, &Floats::two>());

// An option that a later version adds, at its default, must change no hash.
TEST(SharedTest, TheHashIsOfTheOptionsThatAreNotAtTheirDefaults) {
  const auto hash = [](auto change) {
    mario::Config config;
    change(&config);
    return mario::Env::Shared(config, IdleCartridge()).config_hash();
  };
  const auto hash_of = [](std::string_view text) {
    return nes::Fnv1a(
        {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  EXPECT_EQ(hash([](mario::Config*) {}), nes::kFnvOffsetBasis);
  EXPECT_EQ(hash([](mario::Config* c) { c->rom_path = "elsewhere.nes"; }),
            nes::kFnvOffsetBasis);
  EXPECT_EQ(hash([](mario::Config* c) { c->frame_skip = 3; }),
            hash_of("frame_skip=3;"));
  EXPECT_EQ(hash([](mario::Config* c) {
              c->stages = {"1-1", "4-2"};
              c->reward_score = 0.1;
              c->reward_clock = 0.125;
            }),
            hash_of("stages=3:1-13:4-2;reward_score=0.10000000000000001;reward_"
                    "clock=0.125;"));
}

/// The idle cartridge, with CHR RAM in place of its ROM or with a program that
/// writes to $6000 first.
std::shared_ptr<const nes::Cartridge> RamCartridge(bool chr_ram) {
  std::vector<uint8_t> image(16 + 32768 + (chr_ram ? 0 : 8192));
  std::memcpy(image.data(), chr_ram ? "NES\x1A\x02\x00" : "NES\x1A\x02\x01", 6);
  uint8_t* const prg = image.data() + 16;
  const uint8_t code[] = {0x8D, 0x00, 0x60, 0x4C, 0x03, 0x80, 0x40};
  std::memcpy(prg, code, sizeof(code));
  const uint8_t vectors[] = {0x06, 0x80, 0x00, 0x80, 0x06, 0x80};
  std::memcpy(prg + 0x7FFA, vectors, sizeof(vectors));
  return nes::Cartridge::Parse(image);
}

TEST(SharedTest, CartridgeRamIsRefusedByName) {
  try {
    mario::Env::Shared shared(TestConfig(), RamCartridge(true));
    FAIL() << "CHR RAM was taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("CHR RAM"), std::string::npos);
  }
  const auto shared = std::make_shared<const mario::Env::Shared>(
      TestConfig(), RamCartridge(false));
  mario::Env::Scratch scratch(*shared);
  mario::Env env(shared, 0, 1);
  const auto told = [](auto action) {
    try {
      action();
    } catch (const std::exception& error) {
      return std::string(error.what()).find("$6000") != std::string::npos;
    }
    return false;
  };
  // In a step, in a snapshot of the result, and in a console's save.
  EXPECT_TRUE(told([&] { env.Step(1, scratch); }));
  std::vector<std::byte> blob(env.SnapshotBytes());
  EXPECT_TRUE(told([&] { env.Snapshot(blob.data()); }));
  nes::Console console(RamCartridge(false));
  console.RunFrame(0, nullptr);
  std::vector<std::byte> save(console.SaveBytes());
  console.Save(save.data());
  const std::vector<uint8_t> buttons(2);
  mario::Env other(shared, 0, 1);
  EXPECT_TRUE(told([&] { other.ResetToConsoleSave(save, buttons, scratch); }));
}

TEST(RewardTest, LeaningOutOfARoomIsNoProgress) {
  std::vector<uint8_t> memory(nes::kRamBytes);
  memory[ram::kPlayerState] = ram::kStateNormal;
  memory[ram::kOperMode] = ram::kModePlaying;
  memory[ram::kPlayerX] = 3;
  mario::FrameCounter counter;
  counter.Begin(mario::RamView(memory.data()));
  const auto gain = [&](int x) {
    memory[ram::kPlayerPage] = static_cast<uint8_t>(x >> 8);
    memory[ram::kPlayerX] = static_cast<uint8_t>(x);
    mario::StepStats stats;
    counter.Count(mario::RamView(memory.data()), &stats);
    return stats.room_gain;
  };
  EXPECT_EQ(gain(-4), 0);
  EXPECT_EQ(counter.positions.best_here(), 3);
  EXPECT_EQ(gain(10), 7);
  EXPECT_EQ(counter.positions.best_here(), 10);
}

}  // namespace
