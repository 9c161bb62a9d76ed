// Parts of the pool that Python cannot test: the queue and the ring under many
// threads, and the pool's C++ interface. The tests also run under
// ThreadSanitizer and AddressSanitizer; none depends on speed.
#include <gtest/gtest.h>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "counting_env.h"
#include "pool/action_queue.h"
#include "pool/async_pool.h"
#include "pool/batch_ring.h"
#include "pool/pool_config.h"

namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{60000};

std::vector<int32_t> Range(int count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// ------------------------------------------------------------------ queue

TEST(ActionQueueTest, GivesEveryIdOnceToManyWorkers) {
  constexpr int kWorkers = 4, kIds = 64, kRounds = 300;
  pool::ActionQueue queue(kIds, kWorkers, pool::kSpins);
  std::array<std::atomic<int>, kIds> seen{};
  std::atomic<int> done{0};
  std::vector<std::thread> workers;
  for (int w = 0; w < kWorkers; ++w) {
    workers.emplace_back([&] {
      int32_t ids[16];
      while (const int count = queue.Pop(ids)) {
        for (int i = 0; i < count; ++i) {
          seen[static_cast<size_t>(ids[i])].fetch_add(1);
        }
        done.fetch_add(count);
      }
    });
  }
  const std::vector<int32_t> ids = Range(kIds);
  for (int round = 1; round <= kRounds; ++round) {
    // In pieces, so that workers claim while more is pushed.
    for (int at = 0; at < kIds; at += 16) {
      queue.Push(std::span(ids).subspan(static_cast<size_t>(at), 16));
    }
    while (done.load() < round * kIds) std::this_thread::yield();
  }
  queue.Close();
  for (std::thread& worker : workers) worker.join();
  for (const auto& count : seen) EXPECT_EQ(count.load(), kRounds);
}

TEST(ActionQueueTest, WakesASleepingWorker) {
  pool::ActionQueue queue(4, 1, 0);
  std::atomic<int> got{-1};
  std::thread worker([&] {
    int32_t ids[4];
    while (queue.Pop(ids) > 0) got = ids[0];
  });
  for (int32_t id = 0; id < 3; ++id) {
    std::this_thread::sleep_for(milliseconds(20));  // far beyond the spin
    queue.Push({&id, 1});
    while (got.load() != id) std::this_thread::yield();
  }
  queue.Close();
  worker.join();
}

TEST(ActionQueueTest, ClaimsShrinkSoThatWorkersFinishTogether) {
  pool::ActionQueue queue(32, 2, 0);
  queue.Push(Range(32));
  int32_t ids[16];
  EXPECT_EQ(queue.Pop(ids), 8);
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(ids[7], 7);
  EXPECT_EQ(queue.Pop(ids), 6);
  EXPECT_EQ(ids[0], 8);
}

TEST(ActionQueueTest, CloseDropsWhatIsQueued) {
  pool::ActionQueue queue(4, 1, 0);
  queue.Push(Range(4));
  queue.Close();
  int32_t ids[4];
  EXPECT_EQ(queue.Pop(ids), 0);
}

// ------------------------------------------------------------------- ring

std::shared_ptr<pool::SlabStore> MakeStore(int rows, int count) {
  std::vector<pool::Field> fields = pool::PoolFields();
  fields.push_back({"obs", pool::DType::kUint8, {100}, 0, 255, true});
  fields.push_back({"info:long", pool::DType::kInt64, {}, 0, 1});
  return std::make_shared<pool::SlabStore>(
      std::make_shared<const pool::RowLayout>(std::move(fields)), rows, count);
}

TEST(RowLayoutTest, SlabsArePagesAndRecordsAreCacheLines) {
  const auto store = MakeStore(8, 1);
  EXPECT_EQ(store->layout().record_bytes() % pool::kCacheLineBytes, 0u);
  EXPECT_EQ(store->layout().SlabBytes(8) % pool::PageBytes(), 0u);
  for (const auto& [address, bytes] : store->Buffers()) {
    EXPECT_EQ(address % pool::PageBytes(), 0u);
    EXPECT_GE(bytes, 800u);
  }
  const pool::RowLayout& layout = store->layout();
  EXPECT_EQ(layout.Offset(layout.fields().size() - 1, 8) % 8, 0u);
}

TEST(SlabStoreTest, RecyclesAndGrowsOnlyWhenAllAreLent) {
  const auto store = MakeStore(4, 2);
  auto first = store->Lend(store->Take(4));
  auto second = store->Lend(store->Take(4));
  EXPECT_EQ(store->growth(), 0);
  auto third = store->Lend(store->Take(4));
  EXPECT_EQ(store->growth(), 1);
  const pool::Slab* address = second.get();
  second.reset();
  EXPECT_EQ(store->Take(4), address);
  EXPECT_EQ(store->growth(), 1);
}

TEST(SlabStoreTest, TakesTheSmallestThatIsLargeEnough) {
  const auto store = MakeStore(16, 1);
  pool::Slab* large = store->Take(16);
  pool::Slab* small = store->Take(3);
  EXPECT_EQ(small->rows, 3);
  store->Lend(small).reset();
  store->Lend(large).reset();
  EXPECT_EQ(store->Take(2), small);
  EXPECT_EQ(store->Take(4), large);
}

// With a look at every free slab this takes longer than a test may.
TEST(SlabStoreTest, GivesManySlabsInLinearTime) {
  constexpr int kSlabs = 400'000;
  const auto store = std::make_shared<pool::SlabStore>(
      std::make_shared<const pool::RowLayout>(
          std::vector<pool::Field>{{"x", pool::DType::kInt32, {}, 0, 1}}),
      1, kSlabs);
  std::vector<std::shared_ptr<pool::Slab>> lent;
  for (int i = 0; i < kSlabs; ++i) lent.push_back(store->Lend(store->Take(1)));
  lent.clear();
  for (int i = 0; i < kSlabs; ++i) store->Take(1);
  EXPECT_EQ(store->growth(), 0);
}

TEST(SlabStoreTest, OutlivesItsOwnerWhileASlabIsLent) {
  auto store = MakeStore(4, 1);
  std::shared_ptr<pool::Slab> slab = store->Lend(store->Take(4));
  store.reset();
  std::memset(slab->bulk(), 7, slab->bulk_bytes);
  EXPECT_EQ(slab->bulk()[slab->bulk_bytes - 1], std::byte{7});
}

#if defined(__unix__) || defined(__APPLE__)
TEST(SlabStoreTest, AForkedChildGivesNothingBack) {
  const auto store = MakeStore(4, 1);
  std::shared_ptr<pool::Slab> slab = store->Lend(store->Take(4));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    slab.reset();
    // If the slab had been returned, the store would lend it again and not
    // grow.
    store->Take(4);
    _exit(store->growth());
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  slab.reset();  // here it is free again
  store->Take(4);
  EXPECT_EQ(store->growth(), 0);
}
#endif

TEST(BatchRingTest, AsyncRowsAreNeitherLostNorDoubled) {
  constexpr int kEnvs = 12, kBatch = 5, kWorkers = 3, kBatches = 400;
  pool::BatchRing ring(MakeStore(kBatch, 4), kEnvs, kBatch);
  pool::ActionQueue queue(kEnvs, kWorkers, pool::kSpins);
  std::vector<std::thread> workers;
  for (int w = 0; w < kWorkers; ++w) {
    workers.emplace_back([&] {
      int32_t ids[4];
      std::vector<std::byte*> fields(pool::kNumPoolFields + 2);
      while (const int count = queue.Pop(ids)) {
        for (int i = 0; i < count; ++i) {
          const pool::RowPosition position = ring.Claim();
          ring.Locate(position, fields.data());
          const pool::Row row{fields.data()};
          *row.at<int32_t>(pool::kEnvId) = ids[i];
          std::memset(row.at<uint8_t>(pool::kNumPoolFields), ids[i], 100);
          ring.Complete(position);
        }
      }
    });
  }
  queue.Push(Range(kEnvs));
  std::vector<int> received(kEnvs);
  for (int b = 0; b < kBatches; ++b) {
    ASSERT_TRUE(ring.WaitUntil(std::chrono::steady_clock::now() + kLong));
    const pool::Batch batch = ring.Take();
    ASSERT_EQ(batch.rows(), kBatch);
    std::array<int32_t, kBatch> ids;
    batch.Copy(pool::kEnvId, ids.data());
    for (int row = 0; row < kBatch; ++row) {
      const int32_t id = ids[static_cast<size_t>(row)];
      ++received[static_cast<size_t>(id)];
      const std::byte* obs = batch.Bulk(pool::kNumPoolFields) + row * 100;
      ASSERT_TRUE(std::all_of(obs, obs + 100, [&](std::byte value) {
        return value == static_cast<std::byte>(id);
      }));
    }
    queue.Push(ids);
  }
  queue.Close();
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(std::accumulate(received.begin(), received.end(), 0),
            kBatches * kBatch);
  EXPECT_GT(*std::min_element(received.begin(), received.end()), 0);
}

TEST(BatchRingTest, DeadlineAndCloseEndAWait) {
  pool::BatchRing ring(MakeStore(2, 4), 2, 2);
  ring.Open(2);
  EXPECT_FALSE(
      ring.WaitUntil(std::chrono::steady_clock::now() + milliseconds(10)));
  std::thread closer([&] {
    std::this_thread::sleep_for(milliseconds(10));
    ring.Close();
  });
  EXPECT_TRUE(ring.WaitUntil(std::chrono::steady_clock::now() + kLong));
  EXPECT_FALSE(ring.Ready());
  closer.join();
}

// ------------------------------------------------------------------- pool

std::unique_ptr<pool::AsyncPool> MakePool(pool::PoolConfig config,
                                          pool::CountingConfig counting = {}) {
  counting.obs_shape = {64};
  return std::make_unique<pool::AsyncPool>(
      std::move(config),
      std::make_shared<const pool::CountingEnv::Shared>(counting));
}

pool::Batch MustRecv(pool::AsyncPool& pool) {
  std::optional<pool::Batch> batch = pool.Recv(kLong);
  if (!batch) throw std::runtime_error("no batch came");
  return *batch;
}

template <class T>
std::vector<T> Column(const pool::Batch& batch, size_t field) {
  std::vector<T> values(static_cast<size_t>(batch.rows()));
  batch.Copy(field, values.data());
  return values;
}

constexpr size_t kTotal = pool::kNumPoolFields + 2;  // info:total

TEST(AsyncPoolTest, SyncKeepsTheOrderOfRowsAndOfRequests) {
  const auto pool = MakePool({.num_envs = 6, .num_threads = 3},
                             {.episode_steps = 4, .max_sleep_us = 200});
  pool->Reset(Range(6), {});
  MustRecv(*pool);
  const std::vector<int32_t> even{4, 0, 2}, odd{5, 3, 1}, actions{0, 1, 2};
  for (int step = 0; step < 50; ++step) {
    pool->Send(even, actions);
    pool->Send(odd, actions);
    EXPECT_EQ(Column<int32_t>(MustRecv(*pool), pool::kEnvId), even);
    EXPECT_EQ(Column<int32_t>(MustRecv(*pool), pool::kEnvId), odd);
  }
}

TEST(AsyncPoolTest, AsyncStepsEachEnvOncePerSend) {
  constexpr int kEnvs = 16, kBatch = 6;
  const auto pool =
      MakePool({.num_envs = kEnvs, .batch_size = kBatch, .num_threads = 4},
               {.episode_steps = 1 << 30});
  pool->Reset(Range(kEnvs), {});
  std::vector<int64_t> expected(kEnvs);
  const std::vector<int32_t> actions(kBatch);
  for (int i = 0; i < 2000; ++i) {
    const pool::Batch batch = MustRecv(*pool);
    const auto ids = Column<int32_t>(batch, pool::kEnvId);
    const auto totals = Column<int64_t>(batch, kTotal);
    for (size_t row = 0; row < ids.size(); ++row) {
      EXPECT_EQ(totals[row], expected[static_cast<size_t>(ids[row])]++);
    }
    pool->Send(ids, actions);
  }
}

TEST(AsyncPoolTest, BatchesOutliveThePool) {
  auto pool = MakePool({.num_envs = 2});
  pool->Reset(Range(2), {});
  const pool::Batch batch = MustRecv(*pool);
  pool.reset();
  EXPECT_EQ(Column<int32_t>(batch, pool::kEnvId), Range(2));
  EXPECT_NE(batch.Bulk(pool::kNumPoolFields), nullptr);
}

TEST(AsyncPoolTest, AThrowingEnvIsReplacedWhileOthersGoOn) {
  for (const int every : {0, 2}) {
    const auto pool =
        MakePool({.num_envs = 4, .batch_size = 2, .num_threads = 2},
                 {.episode_steps = 5, .throw_env = 2, .throw_step = 13});
    pool->SetReplacement(100, every);
    pool->Reset(Range(4), {});
    int truncated = 0;
    for (int step = 0; step < 100'000 && truncated < 5; ++step) {
      const pool::Batch batch = MustRecv(*pool);
      const std::vector<int32_t> ids = Column<int32_t>(batch, pool::kEnvId);
      for (const uint8_t row : Column<uint8_t>(batch, pool::kTrunc)) {
        truncated += row;
      }
      EXPECT_GT(pool->SnapshotBytes(), 0u);
      pool->Send(ids, std::vector<int32_t>(ids.size()));
    }
    EXPECT_EQ(truncated, 5);
    const pool::PoolStatus status = pool->Status();
    EXPECT_GE(status.replaced.size(), 5u);
    EXPECT_EQ(status.replaced[0].env_id, 2);
    EXPECT_EQ(status.closed, "");
  }
}

TEST(AsyncPoolTest, AFailedConstructorIsToldByTheConstructor) {
  EXPECT_THROW(
      MakePool({.num_envs = 9, .num_threads = 3}, {.throw_construct_env = 7}),
      pool::EnvError);
}

TEST(AsyncPoolTest, CloseWakesAReaderAndDropsTheWork) {
  const auto pool =
      MakePool({.num_envs = 64, .num_threads = 1}, {.max_sleep_us = 100000});
  pool->Reset(Range(64), {});
  MustRecv(*pool);
  pool->Send(Range(64), std::vector<int32_t>(64));
  std::thread closer([&] {
    std::this_thread::sleep_for(milliseconds(20));
    pool->Close();
  });
  EXPECT_THROW(MustRecv(*pool), std::runtime_error);
  closer.join();
  pool->Close();
  EXPECT_THROW(pool->Send(Range(1), std::vector<int32_t>(1)),
               std::runtime_error);
}

constexpr auto kCallerToo = pool::AsyncPool::Runner::kCallerToo;

uint64_t TasksOfWorkers(pool::AsyncPool& pool) {
  uint64_t tasks = 0;
  for (const pool::WorkerStatus& worker : pool.Status().workers) {
    tasks += worker.tasks;
  }
  return tasks;
}

TEST(AsyncPoolTest, ACallerRunsOneEnvWithoutAWorker) {
  const auto pool = MakePool({.num_envs = 1}, {.episode_steps = 1000});
  pool->Reset(Range(1), {}, kCallerToo);
  pool->Help();
  MustRecv(*pool);
  // The worker may look for work for a moment before it sleeps.
  for (int step = 1; step < 100'000; ++step) {
    const uint64_t before = TasksOfWorkers(*pool);
    pool->Send(Range(1), std::vector<int32_t>{1}, kCallerToo);
    pool->Help();
    const pool::Batch batch = MustRecv(*pool);
    if (TasksOfWorkers(*pool) == before) return;
    EXPECT_EQ(Column<int32_t>(batch, pool::kEnvId), Range(1));
  }
  FAIL() << "a worker ran every step";
}

TEST(AsyncPoolTest, CallersThatHelpLoseNoRow) {
  constexpr int kEnvs = 12, kSteps = 400;
  const auto pool = MakePool({.num_envs = kEnvs, .num_threads = 3},
                             {.episode_steps = 7, .max_sleep_us = 20});
  pool->Reset(Range(kEnvs), {});
  MustRecv(*pool);
  // Batches come in the order of requests, so the callers share them.
  std::atomic<int> rows{0};
  const auto play = [&](int first) {
    std::vector<int32_t> ids;
    for (int id = first; id < kEnvs; id += 2) ids.push_back(id);
    for (int step = 0; step < kSteps; ++step) {
      const bool helps = step % 3 != 0;
      for (;;) {
        try {
          pool->Send(ids, std::vector<int32_t>(ids.size()),
                     helps ? kCallerToo : pool::AsyncPool::Runner::kWorkers);
          break;
        } catch (const std::logic_error&) {  // the other caller has the row
          std::this_thread::yield();
        }
      }
      if (helps) pool->Help();
      rows += MustRecv(*pool).rows();
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(rows.load(), kSteps * kEnvs);
}

TEST(AsyncPoolTest, AnEnvThatThrowsInTheCallerClosesThePool) {
  const auto pool =
      MakePool({.num_envs = 1}, {.throw_env = 0, .throw_step = 0});
  pool->Reset(Range(1), {}, kCallerToo);
  pool->Help();
  EXPECT_THROW(MustRecv(*pool), pool::EnvError);
  pool->Help();
}

TEST(AsyncPoolTest, TwoReadersShareTheBatches) {
  constexpr int kEnvs = 8, kBatch = 2, kEach = 200;
  const auto pool =
      MakePool({.num_envs = kEnvs, .batch_size = kBatch, .num_threads = 2});
  pool->Reset(Range(kEnvs), {});
  std::atomic<int> rows{0};
  const auto read = [&] {
    for (int i = 0; i < kEach; ++i) {
      const auto ids = Column<int32_t>(MustRecv(*pool), pool::kEnvId);
      rows += static_cast<int>(ids.size());
      pool->Send(ids, std::vector<int32_t>(ids.size()));
    }
  };
  std::thread other(read);
  read();
  other.join();
  EXPECT_EQ(rows.load(), 2 * kEach * kBatch);
}

TEST(AsyncPoolTest, TwoReadersThatGiveBatchesBackLoseNone) {
  constexpr int kEnvs = 8, kBatch = 2;
  const auto pool =
      MakePool({.num_envs = kEnvs, .batch_size = kBatch, .num_threads = 2},
               {.episode_steps = 1'000'000});
  pool->Reset(Range(kEnvs), {});
  std::array<std::atomic<int>, kEnvs> rows{};
  std::atomic<int> left{1000};
  const auto read = [&](int every) {
    for (int i = 1; left.load() > 0; ++i) {
      std::list<pool::BatchInHand> in_hand = pool->BeginRecv(kLong);
      ASSERT_EQ(in_hand.size(), 1u);
      if (i % every == 0) {
        pool->CancelRecv(std::move(in_hand));
        continue;
      }
      const pool::Batch batch = *in_hand.front().batch;
      const auto ids = Column<int32_t>(batch, pool::kEnvId);
      const auto steps = Column<int32_t>(batch, pool::kElapsedStep);
      for (size_t row = 0; row < ids.size(); ++row) {
        EXPECT_EQ(rows[static_cast<size_t>(ids[row])]++, steps[row]);
      }
      const std::vector<int32_t> actions(ids.size());
      EXPECT_THROW(pool->Send(ids, actions), std::logic_error);
      pool->FinishRecv(batch);
      --left;
      pool->Send(ids, actions);
    }
  };
  std::thread other(read, 3);
  read(2);
  other.join();
  EXPECT_EQ(pool->Status().outstanding_rows, kEnvs);
}

TEST(AsyncPoolTest, RenderGivesUpWhenItsPatienceEnds) {
  const auto pool =
      MakePool({.num_envs = 64, .num_threads = 1}, {.max_sleep_us = 20000});
  std::vector<uint8_t> rgb(pool::CountingEnv::kRenderHeight *
                           pool::CountingEnv::kRenderWidth * 3);
  pool->Reset(Range(64), {});
  MustRecv(*pool);
  pool->Send(Range(64), std::vector<int32_t>(64));
  EXPECT_FALSE(pool->Render(63, rgb.data(), milliseconds(0)));
  EXPECT_TRUE(pool->Render(63, rgb.data(), kLong));
  EXPECT_EQ(rgb[0], 63);
}

TEST(AsyncPoolTest, RenderWaitsForTheStepUnderWay) {
  const auto pool = MakePool({.num_envs = 2, .batch_size = 1},
                             {.episode_steps = 100, .max_sleep_us = 2000});
  pool->Reset(Range(2), {});
  MustRecv(*pool);
  std::vector<uint8_t> rgb(pool::CountingEnv::kRenderHeight *
                           pool::CountingEnv::kRenderWidth * 3);
  for (int step = 0; step < 20; ++step) {
    for (const int32_t id : {0, 1}) {
      ASSERT_TRUE(pool->Render(id, rgb.data(), kLong));
      EXPECT_EQ(rgb[0], id);
    }
    const auto ids = Column<int32_t>(MustRecv(*pool), pool::kEnvId);
    pool->Send(ids, std::vector<int32_t>(1));
  }
}

TEST(StartSetTest, DrawsFallByWeight) {
  const pool::StartSet starts{2, {0.0, 1.0, 1.0, 4.0, 4.0}, {}, 0, 0};
  EXPECT_EQ(starts.Pick(0.0), 1);
  EXPECT_EQ(starts.Pick(0.2499), 1);
  EXPECT_EQ(starts.Pick(0.25), 3);
  EXPECT_EQ(starts.Pick(1 - 0x1p-53), 3);
  // Products that round up to the total.
  const pool::StartSet tiny{1, {5e-324, 5e-324}, {}, 0, 0};
  EXPECT_EQ(tiny.Pick(1 - 0x1p-53), 0);
  EXPECT_EQ(tiny.Pick(0.0), 0);
}

}  // namespace
