// The pool: many environments and some worker threads, with EnvPool's
// semantics.
//
//   Send -> ActionQueue -> worker: Env::Step -> BatchRing row -> Recv -> Batch
//
// An environment belongs to the caller until it is sent, then to exactly one
// worker until its row is complete, and to the caller again once Recv has
// returned that row. `phase` in its entry records the owner; a call that names
// an environment the caller does not own throws. The hand-overs (queue, ring)
// are the only synchronisation that an environment needs.
//
// Sync (batch_size == num_envs): every Send or Reset is answered by a separate
// batch with rows in the order sent. Several requests may be outstanding; their
// batches arrive in the order of the requests. Async: batches have batch_size
// rows in the order of completion. An episode that has ended restarts at the
// next action, which is ignored.
//
// An exception in an environment closes the pool, unless SetReplacement allows
// another environment to replace it: then its episode is truncated.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pool/action_queue.h"
#include "pool/batch_ring.h"
#include "pool/control_groups.h"
#include "pool/pool_config.h"
#include "pool/snapshot.h"
#include "pool/spec.h"
#include "pool/threads.h"

namespace pool {

/// An exception from an environment, rethrown to the caller.
class EnvError : public std::runtime_error {
 public:
  EnvError(int env_id, const std::string& text)
      : std::runtime_error(text), env_id_(env_id) {}
  int env_id() const { return env_id_; }

 private:
  int env_id_;
};

/// The fields that the pool writes itself: EnvPool's eight.
enum PoolField : size_t {
  kEnvId,
  kPlayersEnvId,
  kElapsedStep,
  kDone,
  kReward,
  kDiscount,
  kStepType,
  kTrunc,
  kNumPoolFields,
};

std::vector<Field> PoolFields();

enum class Phase : uint8_t { kNew, kIdle, kQueued, kRunning, kReady, kFailed };
enum class Activity : uint8_t { kBuilding, kWaiting, kWorking, kStopped };

/// The data that status() reports.
struct EnvStatus {
  Phase phase;
  uint64_t steps;     // since construction
  std::string error;  // text of the exception that closed the pool, or ""
};
struct WorkerStatus {
  Activity activity;
  int env_id;      // -1: none
  int cpu;         // CPU it is pinned to; -1: not pinned
  uint64_t tasks;  // finished
};
struct Failure {
  int env_id;  // -1: a worker
  std::string text;
};
struct PoolStatus {
  std::vector<EnvStatus> envs;
  std::vector<WorkerStatus> workers;
  std::vector<Failure> replaced;  // the oldest first
  int outstanding_rows;
  std::string closed;  // reason, or ""
};

/// A batch between BeginRecv and FinishRecv.
struct BatchInHand {
  uint64_t number = 0;  // in the order in which batches were full
  std::optional<Batch> batch;
};

class AsyncPool {
 public:
  using Seed = std::optional<uint64_t>;

  /// Builds the environments in the threads that will run them. Throws
  /// std::invalid_argument for a bad config, EnvError if an env cannot be made.
  AsyncPool(PoolConfig config, std::shared_ptr<const Task> task);
  ~AsyncPool() { Close(); }
  AsyncPool(const AsyncPool&) = delete;
  AsyncPool& operator=(const AsyncPool&) = delete;

  /// Who runs a request: the workers, or also the thread that makes it, which
  /// must call Help next.
  enum class Runner : uint8_t { kWorkers, kCallerToo };

  /// Steps each env by its action. Everything is checked first: after an
  /// exception nothing has been sent.
  void Send(std::span<const int32_t> ids, std::span<const int32_t> actions,
            Runner runner = Runner::kWorkers);
  /// Starts new episodes, also in the middle of an episode. `seeds` has a seed
  /// for each env, or nothing where the generator stays as it is; empty: all
  /// stay. After an exception nothing has been seeded or sent.
  void Reset(std::span<const int32_t> ids, std::span<const Seed> seeds,
             Runner runner = Runner::kWorkers);
  /// Runs queued requests in the caller's thread until none is left: in a sync
  /// pool that would only wait. It takes the place of one worker, which stays
  /// asleep, so that a batch of one env needs no other thread.
  void Help() noexcept;
  /// Returns the next batch, or nothing if `timeout` passes first. Throws
  /// std::logic_error if fewer rows are outstanding than a batch needs,
  /// EnvError if an environment has thrown, std::runtime_error once the pool is
  /// closed.
  std::optional<Batch> Recv(std::chrono::milliseconds timeout);
  /// Recv in two steps, for a caller that may fail to deliver the batch.
  /// BeginRecv waits as Recv does; the list has one batch, or none after
  /// `timeout`. The envs of its rows are the caller's once FinishRecv is
  /// called. After CancelRecv the pool has the batch again, and the next call
  /// returns it.
  std::list<BatchInHand> BeginRecv(std::chrono::milliseconds timeout);
  void FinishRecv(const Batch& batch) noexcept;
  void CancelRecv(std::list<BatchInHand> in_hand) noexcept;

  size_t SnapshotBytes() const { return snapshot_bytes_; }
  /// Writes ids.size() blobs of SnapshotBytes().
  void Snapshot(std::span<const int32_t> ids, std::byte* out);
  /// Restores all blobs, or none if it throws. It is answered like a reset, by
  /// rows with reward 0 and the saved observation, elapsed_step and done flags.
  void Restore(std::span<const int32_t> ids, std::vector<std::byte> blobs,
               RngMode rng, Runner runner = Runner::kWorkers);
  /// How many stages the options name: the first weights of SetStarts.
  int num_stages() const { return task_->NumStages(); }
  /// From its next reset on, every env draws the start of its episode with its
  /// own generator, in proportion to `weights`: those of the stages, then those
  /// of the `count` snapshots of running episodes in `blobs`. Envs that are
  /// being reset use the old set or the new one.
  void SetStarts(std::span<const double> weights, std::vector<std::byte> blobs,
                 size_t count);
  /// Removes the set of SetStarts.
  void ClearStarts();
  /// Lets up to `budget` environments that throw in a step or a reset be
  /// replaced from now on; 0: the first exception closes the pool. The row of
  /// that step is the truncated end of the episode, with reward 0 and the
  /// observation of the next episode's start. The next episode begins at the
  /// last start that the env kept; it keeps the start of one of
  /// `every_episodes` episodes. With 0, before the first kept start, and with
  /// SetStarts, the start is drawn as by any reset.
  void SetReplacement(int budget, int every_episodes);
  /// Writes the screen of an env after its queued or running step is over;
  /// false if `timeout` passes first. Other callers are not blocked meanwhile.
  bool Render(int32_t id, uint8_t* rgb, std::chrono::milliseconds timeout);

  PoolStatus Status();
  /// Rows that were sent and not yet received.
  int OutstandingRows();
  /// Writes for each env whether its next action begins an episode; false while
  /// a request of the env is outstanding.
  void Ended(std::span<bool> ended);
  /// Stops and joins the workers. Outstanding results are lost; batches that
  /// were handed out stay valid. Safe in every state and when repeated.
  void Close() noexcept;

  /// False in a forked child, which has a copy of the pool but none of its
  /// threads. There every call throws, and the owner must leak the pool: its
  /// threads cannot be joined nor its waits be ended.
  bool InOwnProcess() const { return ProcessId() == process_id_; }
  /// Throws std::runtime_error in a forked child: a lock that another thread of
  /// the parent held at the fork is never released.
  void RequireThisProcess() const;

  const PoolConfig& config() const { return config_; }
  const SlabStore& slabs() const { return *store_; }
  const RowLayout& layout() const { return store_->layout(); }
  int num_actions() const { return num_actions_; }
  int num_threads() const { return static_cast<int>(workers_.size()); }

 private:
  enum class Kind : uint8_t { kStep, kReset, kRestore };

  /// One environment. All members but the atomics belong to its current owner.
  struct alignas(kCacheLineBytes) Entry {
    std::atomic<Phase> phase{Phase::kNew};
    std::atomic<uint64_t> steps{0};
    std::unique_ptr<Env> env;
    Kind kind = Kind::kReset;
    int32_t action = 0;
    RowPosition position{0, 0};  // sync only
    int elapsed_steps = 0;
    bool needs_reset = true;
    bool truncated = false;
    bool was_reset = false;  // or restored: it can be rendered
    RngMode rng = RngMode::kSaved;
    std::shared_ptr<const std::byte>
        saved;  // the environment's part of a restored blob
    // State of replacements.
    bool replaced = false;        // its next episode has begun already
    uint64_t episodes = 0;        // since that snapshot
    std::vector<std::byte> kept;  // last snapshot of a start; empty: none
  };
  struct alignas(kCacheLineBytes) Worker {
    std::thread thread;
    std::atomic<Activity> activity{Activity::kBuilding};
    std::atomic<int> env_id{-1};
    std::atomic<int> cpu{-1};
    std::atomic<uint64_t> tasks{0};
  };
  /// The parts of a result that its entry does not contain.
  struct Result {
    float reward;
    int32_t step_type;  // 0 first, 1 middle, 2 last of an episode
  };
  static constexpr size_t kMaxClaimed = 16;
  /// Pause of Render between two checks whether its env is free: less than a
  /// step.
  static constexpr std::chrono::microseconds kRenderPause{20};

  int ChooseThreads() const;
  /// Whether callers help: async batches fill while they do other work, and
  /// pinned workers keep to their CPUs.
  bool CallersHelp() const {
    return config_.is_sync() && config_.thread_affinity_offset < 0;
  }
  void BeginClose() noexcept;

  // Called by callers, all with api_mutex_ held.
  void RequireOpen();
  void RequireInRange(int32_t id, size_t position, const char* call) const;
  void RequireOwned(std::span<const int32_t> ids, const char* call);
  void RequireReset(std::span<const int32_t> ids, const char* call) const;
  void RequireOutstanding() const;
  int OpenBatch(std::span<const int32_t> ids);
  void Enqueue(int slot, std::span<const int32_t> ids, Kind kind,
               std::span<const int32_t> actions, Runner runner) noexcept;
  void SnapshotOne(const Entry& entry, std::byte* out) const;
  SnapshotHeader CheckBlob(std::span<const std::byte> blobs, size_t i,
                           const char* call) const;
  void SwapStarts(std::shared_ptr<const StartSet> starts);
  Scratch& CallerScratch();
  std::string ClosedText() const;

  // Called by workers.
  void Work(int index, std::latch& built);
  void Pin(int index);
  void Build(int index);
  void Serve(int id, Scratch& scratch, std::span<std::byte*> fields);
  Result ExecuteRequest(Entry& entry, Scratch& scratch);
  Result ExecuteOrReplace(int id, const char* doing, Scratch& scratch);
  Result FirstRow(Entry& entry);
  void BeginEpisode(Entry& entry, Scratch& scratch);
  void Replace(int id, Scratch& scratch);
  void CountReplacement(int id, const char* doing, const std::string& error);
  std::shared_ptr<const StartSet> Starts();
  void WriteRow(int id, RowPosition position, const Result& result,
                std::span<std::byte*> fields);
  void Fail(int env_id, const char* doing, const char* what) noexcept;
  template <class Action>
  bool Guard(int env_id, const char* doing, Action&& action) noexcept;

  PoolConfig config_;
  const std::shared_ptr<const Task> task_;
  const int num_actions_;
  const int num_cpus_ = UsableCpus();
  const int64_t process_id_ = ProcessId();
  const std::shared_ptr<SlabStore> store_;
  BatchRing ring_;
  std::vector<Entry> entries_;
  std::vector<Worker> workers_;
  ActionQueue queue_;
  size_t snapshot_bytes_ = 0;  // not read from an env that may be replaced

  std::mutex api_mutex_;         // callers take turns
  std::vector<uint64_t> stamp_;  // last call that named the env
  uint64_t stamps_ = 0;
  int outstanding_rows_ = 0;          // sent and not yet received
  uint64_t batches_ = 0;              // taken from the ring
  std::list<BatchInHand> cancelled_;  // by their numbers
  bool failure_reported_ = false;
  std::unique_ptr<Scratch> caller_scratch_;

  std::mutex help_mutex_;  // one caller at a time helps
  std::unique_ptr<Scratch> help_scratch_;
  std::vector<std::byte*> help_fields_;

  std::mutex starts_mutex_;
  std::shared_ptr<const StartSet> starts_;  // guarded by starts_mutex_

  mutable std::mutex failure_mutex_;
  std::vector<Failure> failures_;      // guarded by failure_mutex_
  std::vector<Failure> replacements_;  // guarded by failure_mutex_
  std::atomic<bool> is_reason_lost_{false};
  std::atomic<int> max_replacements_{0};
  std::atomic<int> every_episodes_{0};
  std::atomic<bool> closed_{false};
  std::mutex close_mutex_;  // one Close() at a time joins
};

}  // namespace pool
