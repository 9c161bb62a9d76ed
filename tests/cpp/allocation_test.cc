// Tests what happens when memory runs out: global operator new fails at the
// n-th allocation of the caller's thread, for n = 1, 2, 3 ... until the call
// succeeds. After each failure all state must be unchanged, and no memory lost.
// An allocation of a worker that fails closes the pool, and never ends the
// process. The same operator new fills its memory with a pattern, so that
// uninitialised bytes show in a snapshot.
#include <gtest/gtest.h>
#ifdef _WIN32
#include <malloc.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../fuzz/fuzz.h"
#include "counting_env.h"
#include "mario/env.h"
#include "nes/console.h"
#include "pool/async_pool.h"
#include "pool/batch_ring.h"

namespace {

thread_local long fail_at = 0;  // the n-th allocation from now; 0: none
thread_local long live = 0;     // blocks of this thread, less those it freed
thread_local bool is_worker = true;
[[maybe_unused]] const bool is_main_marked = !(is_worker = false);
// The same for the threads of pools; whether all later ones fail, too; whether
// any has failed.
std::atomic<long> worker_fail_at{0};
std::atomic<bool> worker_fails_for_good{false};
std::atomic<bool> worker_has_failed{false};
std::atomic<int> pattern{0xA5};

bool Fails() {
  if (!is_worker) return fail_at > 0 && --fail_at == 0;
  const long left = worker_fail_at.load();
  if (left == 0) return false;
  if (left > 1) {
    --worker_fail_at;
    return false;
  }
  if (!worker_fails_for_good.load()) worker_fail_at = 0;
  worker_has_failed = true;
  return true;
}

void* Allocate(size_t bytes, size_t alignment) {
  if (Fails()) throw std::bad_alloc();
  const size_t whole = (bytes + alignment - 1) / alignment * alignment;
  const size_t least = whole == 0 ? alignment : whole;
#ifdef _WIN32
  void* const memory = _aligned_malloc(least, alignment);
#else
  void* const memory = std::aligned_alloc(alignment, least);
#endif
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, pattern.load(std::memory_order_relaxed), whole);
  ++live;
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  --live;
#ifdef _WIN32
  _aligned_free(memory);
#else
  std::free(memory);
#endif
}

}  // namespace

void* operator new(size_t bytes) {
  return Allocate(bytes, alignof(std::max_align_t));
}
void* operator new[](size_t bytes) {
  return Allocate(bytes, alignof(std::max_align_t));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept {
  Free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  Free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  Free(memory);
}

namespace {

using pool::CountingEnv;
using Pool = pool::AsyncPool;
using Bytes = std::vector<std::byte>;
constexpr std::chrono::milliseconds kLong{60000};

/// Runs `action` with its n-th allocation failing, for each n until it
/// succeeds; `check` after each failure. Returns how often it failed.
template <class Action, class Check>
int FailEach(Action&& action, Check&& check) {
  for (int n = 1;; ++n) {
    const long live_before = live;
    try {
      fail_at = n;
      action();
      fail_at = 0;
      return n - 1;
    } catch (const std::bad_alloc&) {
      fail_at = 0;
    }
    EXPECT_EQ(live, live_before) << "allocation " << n << ": leaked blocks";
    check();
    if (testing::Test::HasFailure()) return n;
  }
}

// ----------------------------------------------------------------- console

/// A program that writes to RAM of the cartridge: LDA #$FF; STA $6000; then
/// JMP self.
std::shared_ptr<const nes::Cartridge> RamCartridge() {
  std::vector<uint8_t> image(16 + 16384 + 8192);
  std::memcpy(image.data(), "NES\x1A\x01\x01", 6);
  const uint8_t code[] = {0xA9, 0xFF, 0x8D, 0x00, 0x60, 0x4C, 0x05, 0x80, 0x40};
  std::memcpy(image.data() + 16, code, sizeof(code));
  const uint8_t vectors[] = {0x08, 0x80, 0x00, 0x80, 0x08, 0x80};
  std::memcpy(image.data() + 16 + 0x3FFA, vectors, sizeof(vectors));
  return nes::Cartridge::Parse(image);
}

Bytes SaveOf(const nes::Console& console) {
  Bytes blob(console.SaveBytes());
  console.Save(blob.data());
  return blob;
}

TEST(OutOfMemoryTest, AConsoleThatCannotLoadStaysAsItWas) {
  const auto cartridge = RamCartridge();
  nes::Console source(cartridge), target(cartridge);
  source.RunFrame(0, nullptr);
  ASSERT_TRUE(source.uses_prg_ram());
  const Bytes blob = SaveOf(source), before = SaveOf(target);
  const int failures = FailEach([&] { target.Load(blob); },
                                [&] { EXPECT_EQ(SaveOf(target), before); });
  EXPECT_GT(failures, 0);
  EXPECT_EQ(SaveOf(target), blob);
}

// ------------------------------------------------------------------- slabs

std::shared_ptr<const pool::RowLayout> Layout() {
  std::vector<pool::Field> fields = pool::PoolFields();
  fields.push_back({"obs", pool::DType::kUint8, {100}, 0, 255, true});
  return std::make_shared<const pool::RowLayout>(std::move(fields));
}

TEST(OutOfMemoryTest, ASlabIsMadeWholeOrNotAtAll) {
  const auto layout = Layout();
  const int failures = FailEach([&] { pool::Slab slab(*layout, 4); }, [] {});
  EXPECT_EQ(failures, 2);  // observations, records
}

TEST(OutOfMemoryTest, AStoreKeepsAllItsSlabs) {
  const auto store = std::make_shared<pool::SlabStore>(Layout(), 4, 1);
  pool::Slab* const first = store->Take(4);
  pool::Slab* second = nullptr;
  EXPECT_GT(FailEach([&] { second = store->Take(4); },
                     [&] {
                       EXPECT_EQ(store->growth(), 0);
                       EXPECT_EQ(store->Buffers().size(), 1u);
                     }),
            0);
  EXPECT_EQ(store->growth(), 1);
  std::shared_ptr<pool::Slab> lent;
  EXPECT_GT(FailEach([&] { lent = store->Lend(first); },
                     [&] {
                       // Not free: it still belongs to the caller.
                       pool::Slab* const other = store->Take(4);
                       EXPECT_NE(other, first);
                       store->Lend(other).reset();
                     }),
            0);
  lent.reset();
  store->Lend(second).reset();
}

/// Writes the ring's next `rows` rows, each with its number as env id.
void Fill(pool::BatchRing& ring, int slot, int rows, int32_t first) {
  std::vector<std::byte*> fields(pool::kNumPoolFields + 1);
  for (int row = 0; row < rows; ++row) {
    const pool::RowPosition position =
        slot < 0 ? ring.Claim() : pool::RowPosition{slot, row};
    ring.Locate(position, fields.data());
    *pool::Row{fields.data()}.at<int32_t>(pool::kEnvId) = first + row;
    ring.Complete(position);
  }
}

TEST(OutOfMemoryTest, ABatchThatCannotBeTakenStaysInTheRing) {
  for (const bool sync : {false, true}) {
    constexpr int kRows = 2, kEnvs = 3;
    const auto store = std::make_shared<pool::SlabStore>(Layout(), kRows, 3);
    pool::BatchRing ring(store, sync ? kRows : kEnvs, kRows);
    std::vector<pool::Batch> kept;  // so that each batch needs a new slab
    for (int batch = 0; batch < 5; ++batch) {
      const int slot = sync ? ring.Open(kRows) : -1;
      Fill(ring, slot, kRows, batch * kRows);
      std::optional<pool::Batch> taken;
      const int growth = store->growth();
      EXPECT_GT(FailEach([&] { taken.emplace(ring.Take()); },
                         [&] {
                           EXPECT_TRUE(ring.Ready());
                           EXPECT_EQ(store->growth(), growth);
                         }),
                0);
      kept.push_back(*taken);
    }
    // No slab was given out twice: each batch still holds its own rows.
    for (int32_t batch = 0; batch < 5; ++batch) {
      int32_t ids[kRows];
      kept[static_cast<size_t>(batch)].Copy(pool::kEnvId, ids);
      EXPECT_EQ(ids[0], batch * kRows);
      EXPECT_EQ(ids[1], batch * kRows + 1);
    }
    const int growth = store->growth();
    const size_t slabs = store->Buffers().size();
    kept.clear();
    // No slab was lost: the lent slabs can be taken again without growth.
    for (int i = 0; i < 5; ++i) store->Take(kRows);
    EXPECT_EQ(store->growth(), growth) << slabs;
  }
}

TEST(OutOfMemoryTest, ABatchThatCannotBeOpenedIsNotOpen) {
  const auto store = std::make_shared<pool::SlabStore>(Layout(), 2, 1);
  pool::BatchRing ring(store, 3, 3);
  ring.Open(1);
  int slot = -1;
  EXPECT_GT(FailEach([&] { slot = ring.Open(2); },
                     [&] { EXPECT_EQ(store->growth(), 0); }),
            0);
  EXPECT_EQ(slot, 1);
}

// -------------------------------------------------------------------- pool

class PoolTest : public testing::TestWithParam<int> {
 protected:
  PoolTest() {
    pool::CountingConfig counting;
    counting.obs_shape = {64};
    pool_ = std::make_unique<Pool>(
        pool::PoolConfig{.num_envs = kEnvs, .batch_size = GetParam()},
        std::make_shared<const CountingEnv::Shared>(counting));
    pool_->Reset(ids_, {});
    Receive(kEnvs);
    for (int step = 0; step < 6; ++step) {  // no slab is free after them
      pool_->Send(ids_, actions_);
      Receive(kEnvs);
    }
  }

  /// Takes `rows` rows and keeps the batches, so that every request and every
  /// batch needs a new slab.
  void Receive(int rows) {
    while (rows > 0) {
      std::optional<pool::Batch> batch = pool_->Recv(kLong);
      ASSERT_TRUE(batch);
      rows -= batch->rows();
      kept_.push_back(*batch);
    }
    ASSERT_EQ(rows, 0);
  }
  Bytes Snapshot() {
    Bytes blobs(kEnvs * pool_->SnapshotBytes());
    pool_->Snapshot(ids_, blobs.data());
    return blobs;
  }
  /// A call that may fail, between two states without outstanding requests.
  template <class Action>
  void Try(Action&& action) {
    const Bytes before = Snapshot();
    EXPECT_GT(FailEach(action,
                       [&] {
                         EXPECT_EQ(pool_->Status().outstanding_rows, 0);
                         EXPECT_EQ(Snapshot(), before);
                       }),
              0);
    EXPECT_EQ(pool_->Status().outstanding_rows, kEnvs);
    Receive(kEnvs);
  }

  static constexpr int kEnvs = 4;
  const std::vector<int32_t> ids_{0, 1, 2, 3};
  const std::vector<int32_t> actions_{1, 2, 3, 0};
  std::unique_ptr<Pool> pool_;
  std::vector<pool::Batch> kept_;
};

using SyncPoolTest = PoolTest;
INSTANTIATE_TEST_SUITE_P(OutOfMemoryTest, SyncPoolTest, testing::Values(4));

TEST_P(SyncPoolTest, AResetThatFailsSeedsNothing) {
  const std::vector<Pool::Seed> seeds{11, 12, 13, std::nullopt};
  Try([&] { pool_->Reset(ids_, seeds); });
}

TEST_P(SyncPoolTest, ASendThatFailsSendsNothing) {
  Try([&] { pool_->Send(ids_, actions_); });
}

using AnyPoolTest = PoolTest;
INSTANTIATE_TEST_SUITE_P(OutOfMemoryTest, AnyPoolTest, testing::Values(4, 2));

TEST_P(AnyPoolTest, ARestoreThatFailsRestoresNothing) {
  const Bytes saved = Snapshot();
  pool_->Send(ids_, actions_);
  Receive(kEnvs);
  ASSERT_NE(Snapshot(), saved);
  Try([&] { pool_->Restore(ids_, saved, pool::RngMode::kSaved); });
  EXPECT_EQ(Snapshot(), saved);
}

TEST_P(AnyPoolTest, ARecvThatFailsLosesNoRow) {
  pool_->Send(ids_, actions_);
  const int batch_size = pool_->config().batch_size;
  for (int left = kEnvs; left > 0; left -= batch_size) {
    std::optional<pool::Batch> batch;
    EXPECT_GT(
        FailEach([&] { batch = pool_->Recv(kLong); },
                 [&] { EXPECT_EQ(pool_->Status().outstanding_rows, left); }),
        0);
    kept_.push_back(*batch);
  }
  pool_->Send(ids_, actions_);  // all of them are the caller's again
  Receive(kEnvs);
}

std::vector<int32_t> IdsOf(const pool::Batch& batch) {
  std::vector<int32_t> ids(static_cast<size_t>(batch.rows()));
  batch.Copy(pool::kEnvId, ids.data());
  return ids;
}

TEST_P(AnyPoolTest, ABatchThatIsNotDeliveredComesAgain) {
  pool_->Send(ids_, actions_);
  auto in_hand = pool_->BeginRecv(kLong);
  ASSERT_EQ(in_hand.size(), 1u);
  const std::vector<int32_t> ids = IdsOf(*in_hand.front().batch);
  const int rows = in_hand.front().batch->rows();
  EXPECT_EQ(pool_->Status().outstanding_rows, kEnvs - rows);
  // Until it is delivered its environments are under way.
  const std::vector<int32_t> zeros(ids.size());
  EXPECT_THROW(pool_->Send(ids, zeros), std::logic_error);
  pool_->CancelRecv(std::move(in_hand));
  EXPECT_EQ(pool_->Status().outstanding_rows, kEnvs);
  EXPECT_THROW(pool_->Send(ids, zeros), std::logic_error);
  const std::optional<pool::Batch> again = pool_->Recv(kLong);
  ASSERT_TRUE(again);
  EXPECT_EQ(IdsOf(*again), ids);
  pool_->Send(ids, zeros);
  Receive(kEnvs);
}

TEST_P(AnyPoolTest, CancelledBatchesComeInTheirOldOrder) {
  // In sync mode two requests make two batches.
  pool_->Send({ids_.data(), 2}, {actions_.data(), 2});
  pool_->Send({ids_.data() + 2, 2}, {actions_.data() + 2, 2});
  auto first = pool_->BeginRecv(kLong), second = pool_->BeginRecv(kLong);
  ASSERT_EQ(first.size() + second.size(), 2u);
  const auto ids = IdsOf(*first.front().batch);
  const auto later_ids = IdsOf(*second.front().batch);
  EXPECT_THROW(pool_->Recv(kLong), std::logic_error);  // nothing is left
  pool_->CancelRecv(std::move(second));
  pool_->CancelRecv(std::move(first));
  EXPECT_EQ(IdsOf(*pool_->Recv(kLong)), ids);
  EXPECT_EQ(IdsOf(*pool_->Recv(kLong)), later_ids);
  EXPECT_EQ(pool_->Status().outstanding_rows, 0);
}

TEST_P(AnyPoolTest, ClosingDropsACancelledBatch) {
  pool_->Send(ids_, actions_);
  pool_->CancelRecv(pool_->BeginRecv(kLong));
  pool_->Close();
  EXPECT_THROW(pool_->Recv(kLong), std::runtime_error);
}

TEST_P(AnyPoolTest, StartsThatCannotBeSetLeaveTheOldOnes) {
  const Bytes blobs = Snapshot();
  const std::vector<double> weights{0, 0, 0, 0, 1};
  EXPECT_GT(FailEach([&] { pool_->SetStarts(weights, blobs, kEnvs); },
                     [&] { EXPECT_EQ(pool_->Status().outstanding_rows, 0); }),
            0);
}

// ----------------------------------------------------------------- workers

/// Runs `action` with the n-th allocation of a worker failing, and those after
/// it if `for_good`, for growing n until it needs fewer. Each failure must be
/// an exception with a reason. Returns how many there were.
template <class Action>
int FailEachInWorkers(bool for_good, Action&& action) {
  worker_fails_for_good = for_good;
  int failures = 0;
  for (long n = 1;; n += 1 + n / 8) {
    worker_has_failed = false;
    worker_fail_at = n;
    std::string error;
    try {
      action();
    } catch (const std::runtime_error& thrown) {
      error = thrown.what();
    }
    worker_fail_at = 0;
    if (!worker_has_failed.load()) {
      EXPECT_EQ(error, "");
      return failures;
    }
    ++failures;
    EXPECT_NE(error, "") << "allocation " << n;
    EXPECT_TRUE(error.find("std::bad_alloc") != std::string::npos ||
                error == "pool closed after a worker ran out of memory")
        << error;
    if (testing::Test::HasFailure()) return failures;
  }
}

class WorkerTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(OutOfMemoryTest, WorkerTest, testing::Bool());

TEST_P(WorkerTest, APoolThatCannotBeMadeSaysWhy) {
  EXPECT_GT(FailEachInWorkers(GetParam(),
                              [] {
                                const auto shared =
                                    std::make_shared<const CountingEnv::Shared>(
                                        pool::CountingConfig{});
                                const Pool pool({.num_envs = 3,
                                                 .num_threads = 1,
                                                 .thread_affinity_offset = 0},
                                                shared);
                              }),
            3);
}

TEST_P(WorkerTest, ATaskThatFailsClosesThePool) {
  EXPECT_GT(FailEachInWorkers(GetParam(),
                              [this] {
                                mario::Config config;
                                config.img_height = config.img_width = 8;
                                Pool pool(
                                    {.num_envs = 1, .num_threads = 1},
                                    std::make_shared<const mario::Env::Shared>(
                                        config, fuzz::StandIn()));
                                const std::vector<int32_t> ids{0}, actions{1};
                                // One environment is replaced, but not without
                                // memory.
                                if (GetParam()) pool.SetReplacement(2, 1);
                                pool.Reset(ids, {});
                                pool.Recv(kLong);
                                for (int step = 0; step < 20; ++step) {
                                  pool.Send(ids, actions);
                                  pool.Recv(kLong);
                                }
                              }),
            3);
}

// --------------------------------------------------------------- snapshots

/// Options with which a snapshot has all its parts.
mario::Config WholeConfig() {
  mario::Config config;
  config.img_height = config.img_width = 8;
  config.stack_num = 2;
  config.frame_max = true;
  config.random_stages = true;
  config.reward = "progress";
  config.obs_type = "gray+ram+tiles+motion";
  return config;
}

Bytes SnapshotOf(const mario::Env& env) {
  Bytes blob(env.SnapshotBytes());
  env.Snapshot(blob.data());
  return blob;
}

/// Snapshots before the first reset, after it and after some steps, of an
/// environment in memory that is full of `byte`.
std::vector<Bytes> SnapshotsIn(int byte) {
  pattern = byte;
  const auto shared = std::make_shared<const mario::Env::Shared>(
      WholeConfig(), fuzz::StandIn());
  const auto scratch = std::make_unique<mario::Env::Scratch>(*shared);
  const auto env = std::make_unique<mario::Env>(shared, 0, 7);
  std::vector<Bytes> blobs{SnapshotOf(*env)};
  env->Reset(*scratch);
  blobs.push_back(SnapshotOf(*env));
  for (int step = 0; step < 40; ++step) {
    const pool::Outcome outcome = env->Step(step % 7, *scratch);
    if (outcome.terminated || outcome.truncated) env->Reset(*scratch);
  }
  blobs.push_back(SnapshotOf(*env));
  blobs.push_back(SaveOf(env->game().console()));
  return blobs;
}

TEST(PoisonedMemoryTest, EqualEnvsHaveEqualSnapshots) {
  const std::vector<Bytes> expected = SnapshotsIn(0x00);
  for (const int byte : {0xFF, 0xA5, 0x5A}) {
    EXPECT_EQ(SnapshotsIn(byte), expected) << byte;
  }
}

TEST(PoisonedMemoryTest, EqualPoolsHaveEqualSnapshots) {
  const auto snapshot = [](int byte) {
    pattern = byte;
    const auto pool = std::make_unique<Pool>(
        pool::PoolConfig{.num_envs = 2},
        std::make_shared<const CountingEnv::Shared>(pool::CountingConfig{}));
    const std::vector<int32_t> ids{0, 1};
    pool->Reset(ids, {});
    EXPECT_TRUE(pool->Recv(kLong));
    Bytes blobs(2 * pool->SnapshotBytes());
    pool->Snapshot(ids, blobs.data());
    return blobs;
  };
  EXPECT_EQ(snapshot(0xFF), snapshot(0x00));
}

TEST(OutOfMemoryTest, AnEnvIsRestoredWithoutNewMemory) {
  const auto shared = std::make_shared<const mario::Env::Shared>(
      WholeConfig(), fuzz::StandIn());
  mario::Env::Scratch scratch(*shared);
  mario::Env env(shared, 0, 7);
  env.Reset(scratch);
  const Bytes blob = SnapshotOf(env);
  env.Step(1, scratch);
  const int failures = FailEach(
      [&] {
        shared->CheckSnapshot(blob);
        env.Restore(blob.data(), pool::RngMode::kSaved);
      },
      [] {});
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(SnapshotOf(env), blob);
}

}  // namespace
