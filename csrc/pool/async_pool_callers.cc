// The callers' half of AsyncPool.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>

#include "pool/async_pool.h"

namespace pool {
namespace {

/// Returns the running sums of the weights of `num_stages` stages and
/// `num_snapshots` snapshots. Throws std::invalid_argument if there is not one
/// weight per stage and snapshot, if a weight is negative or not finite, or if
/// their sum is 0 or not finite.
std::vector<double> CumulativeWeights(std::span<const double> weights,
                                      int num_stages, size_t num_snapshots) {
  const size_t expected = static_cast<size_t>(num_stages) + num_snapshots;
  if (weights.size() != expected) {
    throw std::invalid_argument(
        "set_starts: got " + std::to_string(weights.size()) +
        " weights; give one for each stage and snapshot, here " +
        std::to_string(num_stages) + " + " + std::to_string(num_snapshots));
  }
  std::vector<double> cumulative;
  double sum = 0;
  for (size_t i = 0; i < expected; ++i) {
    if (!(weights[i] >= 0) || std::isinf(weights[i])) {
      throw std::invalid_argument("set_starts: weight " + std::to_string(i) +
                                  " is " + std::to_string(weights[i]) +
                                  "; weights are finite and 0 or more");
    }
    cumulative.push_back(sum += weights[i]);
  }
  if (!(sum > 0) || std::isinf(sum)) {
    throw std::invalid_argument(
        "set_starts: the weights add up to " + std::to_string(sum) +
        "; at least one must be positive, and their sum must be finite");
  }
  return cumulative;
}

}  // namespace

std::vector<Field> PoolFields() {
  constexpr double kInt = 2147483647.0;
  constexpr double kFloat = 3.4028234663852886e38;
  return {
      {"info:env_id", DType::kInt32, {}, -kInt - 1, kInt},
      {"info:players.env_id", DType::kInt32, {}, -kInt - 1, kInt},
      {"elapsed_step", DType::kInt32, {}, -kInt - 1, kInt},
      {"done", DType::kBool, {}, 0, 1},
      {"reward", DType::kFloat32, {}, -kFloat, kFloat},
      {"discount", DType::kFloat32, {}, 0, 1},
      {"step_type", DType::kInt32, {}, -kInt - 1, kInt},
      {"trunc", DType::kBool, {}, 0, 1},
  };
}

AsyncPool::AsyncPool(PoolConfig config, std::shared_ptr<const Task> task)
    : config_((config.Validate(), std::move(config))),
      task_(std::move(task)),
      num_actions_(task_->NumActions()),
      store_([this] {
        std::vector<Field> fields = PoolFields();
        for (Field& field : task_->Fields()) {
          fields.push_back(std::move(field));
        }
        // Enough for the ring and two batches that the reader holds.
        const int batches =
            config_.is_sync() ? 1 : config_.num_envs / config_.batch_size + 2;
        return std::make_shared<SlabStore>(
            std::make_shared<const RowLayout>(std::move(fields)),
            config_.batch_size, batches + 2);
      }()),
      ring_(store_, config_.num_envs, config_.batch_size),
      entries_(static_cast<size_t>(config_.num_envs)),
      workers_(static_cast<size_t>(ChooseThreads())),
      // The caller needs a CPU, too: without one that is left for it, a
      // spinning worker would take a CPU from a thread with work.
      queue_(config_.num_envs, ChooseThreads(),
             num_cpus_ > ChooseThreads() ? kSpins : 0),
      stamp_(entries_.size()) {
  std::latch built(static_cast<std::ptrdiff_t>(workers_.size()));
  try {
    for (int i = 0; i < num_threads(); ++i) {
      workers_[static_cast<size_t>(i)].thread =
          std::thread([this, i, &built] { Work(i, built); });
    }
  } catch (const std::system_error& error) {
    Close();
    throw std::runtime_error("the system refused to start a thread (" +
                             std::string(error.what()) + "); this pool needs " +
                             std::to_string(num_threads()) +
                             " threads: choose fewer with num_threads (now " +
                             std::to_string(config_.num_threads) + ")");
  } catch (...) {
    Close();
    throw;
  }
  built.wait();
  if (!closed_.load(std::memory_order_acquire)) {
    snapshot_bytes_ =
        sizeof(SnapshotHeader) + entries_.front().env->SnapshotBytes();
    return;
  }
  Close();
  RequireOpen();  // throws the reason for which the pool closed
}

int AsyncPool::ChooseThreads() const {
  return config_.num_threads > 0
             ? std::min(config_.num_threads, config_.num_envs)
             : std::min(config_.batch_size, num_cpus_);
}

void AsyncPool::Send(std::span<const int32_t> ids,
                     std::span<const int32_t> actions, Runner runner) {
  RequireThisProcess();
  const std::lock_guard lock(api_mutex_);
  RequireOpen();
  if (actions.size() != ids.size()) {
    throw std::invalid_argument("send: got " + std::to_string(ids.size()) +
                                " env ids and " +
                                std::to_string(actions.size()) +
                                " actions; give one action for each env, "
                                "integers of shape (" +
                                std::to_string(ids.size()) + ",)");
  }
  RequireOwned(ids, "send");
  for (size_t i = 0; i < actions.size(); ++i) {
    if (actions[i] >= 0 && actions[i] < num_actions_) continue;
    throw std::invalid_argument("send: action " + std::to_string(actions[i]) +
                                " for env " + std::to_string(ids[i]) +
                                " (position " + std::to_string(i) +
                                ") is out of range; actions are 0 to " +
                                std::to_string(num_actions_ - 1));
  }
  Enqueue(OpenBatch(ids), ids, Kind::kStep, actions, runner);
}

void AsyncPool::Reset(std::span<const int32_t> ids, std::span<const Seed> seeds,
                      Runner runner) {
  RequireThisProcess();
  const std::lock_guard lock(api_mutex_);
  RequireOpen();
  if (!seeds.empty() && seeds.size() != ids.size()) {
    throw std::invalid_argument("reset: got " + std::to_string(ids.size()) +
                                " env ids and " + std::to_string(seeds.size()) +
                                " seeds; give one seed for each env or none");
  }
  RequireOwned(ids, "reset");
  const uint64_t max_seed = task_->MaxSeed();
  for (size_t i = 0; i < seeds.size(); ++i) {
    if (!seeds[i] || *seeds[i] <= max_seed) continue;
    throw std::invalid_argument(
        "reset: seed " + std::to_string(*seeds[i]) + " for env " +
        std::to_string(ids[i]) + " (position " + std::to_string(i) +
        ") is out of range; this pool's seeds are 0 to " +
        std::to_string(max_seed));
  }
  const int slot = OpenBatch(ids);
  for (size_t i = 0; i < seeds.size(); ++i) {
    if (seeds[i]) entries_[static_cast<size_t>(ids[i])].env->Seed(*seeds[i]);
  }
  Enqueue(slot, ids, Kind::kReset, {}, runner);
}

std::optional<Batch> AsyncPool::Recv(std::chrono::milliseconds timeout) {
  std::list<BatchInHand> in_hand = BeginRecv(timeout);
  if (in_hand.empty()) return std::nullopt;
  FinishRecv(*in_hand.front().batch);
  return std::move(in_hand.front().batch);
}

std::list<BatchInHand> AsyncPool::BeginRecv(std::chrono::milliseconds timeout) {
  RequireThisProcess();
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // Memory of the list comes before the batch, so that CancelRecv needs none.
  std::list<BatchInHand> in_hand(1);
  BatchInHand& next = in_hand.front();
  for (;;) {
    {
      const std::lock_guard lock(api_mutex_);
      RequireOpen();
      if (!cancelled_.empty()) {
        in_hand.clear();
        in_hand.splice(in_hand.begin(), cancelled_, cancelled_.begin());
        outstanding_rows_ -= in_hand.front().batch->rows();
        return in_hand;
      }
      if (ring_.Ready()) {
        next.batch.emplace(ring_.Take());
        next.number = batches_++;
        outstanding_rows_ -= next.batch->rows();
        return in_hand;
      }
      RequireOutstanding();
    }
    if (!ring_.WaitUntil(deadline)) return {};
  }
}

void AsyncPool::FinishRecv(const Batch& batch) noexcept {
  // Without the lock, which a caller that holds the GIL must not wait for. Send
  // acquires the phase.
  for (int row = 0; row < batch.rows(); ++row) {
    int32_t id;
    std::memcpy(&id, batch.At(kEnvId, row), sizeof(id));
    entries_[static_cast<size_t>(id)].phase.store(Phase::kIdle,
                                                  std::memory_order_release);
  }
}

void AsyncPool::CancelRecv(std::list<BatchInHand> in_hand) noexcept {
  const std::lock_guard lock(api_mutex_);
  outstanding_rows_ += in_hand.front().batch->rows();
  auto at = cancelled_.begin();
  while (at != cancelled_.end() && at->number < in_hand.front().number) ++at;
  cancelled_.splice(at, in_hand);
}

void AsyncPool::Snapshot(std::span<const int32_t> ids, std::byte* out) {
  RequireThisProcess();
  const std::lock_guard lock(api_mutex_);
  RequireOpen();
  RequireOwned(ids, "snapshot");
  RequireReset(ids, "snapshot");
  for (const int32_t id : ids) {
    SnapshotOne(entries_[static_cast<size_t>(id)], out);
    out += SnapshotBytes();
  }
}

void AsyncPool::SnapshotOne(const Entry& entry, std::byte* out) const {
  SnapshotHeader header;
  entry.env->Snapshot(out + sizeof(header));
  header.elapsed_steps = entry.elapsed_steps;
  header.done = entry.needs_reset;
  header.truncated = entry.truncated;
  header.max_episode_steps = config_.max_episode_steps;
  WriteSnapshotHeader(header, entry.env->SnapshotBytes(), out);
}

void AsyncPool::Restore(std::span<const int32_t> ids,
                        std::vector<std::byte> blobs, RngMode rng,
                        Runner runner) {
  RequireThisProcess();
  const std::lock_guard lock(api_mutex_);
  RequireOpen();
  RequireOwned(ids, "restore");
  const size_t bytes = SnapshotBytes();
  if (blobs.size() != ids.size() * bytes) {
    throw std::invalid_argument("restore: got " + std::to_string(blobs.size()) +
                                " bytes for " + std::to_string(ids.size()) +
                                " envs; this pool's snapshots have " +
                                std::to_string(bytes) + " bytes each");
  }
  // All blobs are checked before the first is restored, so that after an
  // exception every env is unchanged. They are checked here, so that the
  // exception reaches the caller; the workers do not check again.
  std::vector<SnapshotHeader> headers;
  for (size_t i = 0; i < ids.size(); ++i) {
    headers.push_back(CheckBlob(blobs, i, "restore: blob "));
  }
  const auto all =
      std::make_shared<const std::vector<std::byte>>(std::move(blobs));
  const int slot = OpenBatch(ids);
  for (size_t i = 0; i < ids.size(); ++i) {
    Entry& entry = entries_[static_cast<size_t>(ids[i])];
    entry.saved = {all, all->data() + i * bytes + sizeof(SnapshotHeader)};
    entry.rng = rng;
    entry.elapsed_steps = headers[i].elapsed_steps;
    entry.needs_reset = headers[i].done != 0;
    entry.truncated = headers[i].truncated != 0;
    entry.was_reset = true;
  }
  Enqueue(slot, ids, Kind::kRestore, {}, runner);
}

/// Reads the header of blob i of `blobs`. Throws std::invalid_argument, with a
/// text that starts with `what` and i, if the blob cannot be restored in this
/// pool.
SnapshotHeader AsyncPool::CheckBlob(std::span<const std::byte> blobs, size_t i,
                                    const char* what) const {
  const size_t bytes = SnapshotBytes();
  const auto blob = blobs.subspan(i * bytes, bytes);
  try {
    const SnapshotHeader header =
        ReadSnapshotHeader(blob, config_.max_episode_steps);
    task_->CheckSnapshot(blob.subspan(sizeof(header)));
    return header;
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(what + std::to_string(i) +
                                " is refused: " + error.what());
  }
}

void AsyncPool::SetStarts(std::span<const double> weights,
                          std::vector<std::byte> blobs, size_t count) {
  RequireThisProcess();
  {
    const std::lock_guard lock(api_mutex_);
    RequireOpen();
  }
  const size_t bytes = SnapshotBytes();
  if (blobs.size() != count * bytes) {
    throw std::invalid_argument(
        "set_starts: got " + std::to_string(count) + " snapshots of " +
        std::to_string(blobs.size()) + " bytes in all; this pool's have " +
        std::to_string(bytes) + " bytes each");
  }
  auto starts = std::make_shared<StartSet>();
  starts->num_stages = num_stages();
  starts->cumulative_weights = CumulativeWeights(weights, num_stages(), count);
  for (size_t i = 0; i < count; ++i) {
    if (CheckBlob(blobs, i, "set_starts: snapshot ").done == 0) continue;
    throw std::invalid_argument(
        "set_starts: snapshot " + std::to_string(i) +
        " is refused: its episode is over; give snapshots of running episodes");
  }
  starts->blobs = std::move(blobs);
  starts->blob_bytes = bytes;
  starts->header_bytes = sizeof(SnapshotHeader);
  SwapStarts(std::move(starts));
}

void AsyncPool::ClearStarts() {
  RequireThisProcess();
  {
    const std::lock_guard lock(api_mutex_);
    RequireOpen();
  }
  SwapStarts(nullptr);
}

void AsyncPool::SetReplacement(int budget, int every_episodes) {
  RequireThisProcess();
  const std::lock_guard lock(api_mutex_);
  RequireOpen();
  if (budget < 0 || every_episodes < 0) {
    throw std::invalid_argument(
        "set_replacement: budget and every_episodes must be 0 or more, got " +
        std::to_string(budget) + " and " + std::to_string(every_episodes));
  }
  every_episodes_.store(every_episodes, std::memory_order_relaxed);
  max_replacements_.store(budget, std::memory_order_relaxed);
}

void AsyncPool::SwapStarts(std::shared_ptr<const StartSet> starts) {
  // The old set is freed outside the lock, unless it is still in use.
  const std::lock_guard lock(starts_mutex_);
  starts_.swap(starts);
}

bool AsyncPool::Render(int32_t id, uint8_t* rgb,
                       std::chrono::milliseconds timeout) {
  RequireThisProcess();
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    {
      const std::lock_guard lock(api_mutex_);
      RequireOpen();
      RequireInRange(id, 0, "render");
      const Entry& entry = entries_[static_cast<size_t>(id)];
      const Phase phase = entry.phase.load(std::memory_order_acquire);
      // After a failure the pool closes at once, which ends this loop.
      const bool busy = phase == Phase::kQueued || phase == Phase::kRunning ||
                        phase == Phase::kFailed;
      if (!busy) {
        RequireReset({&id, 1}, "render");
        entry.env->Render(CallerScratch(), rgb);
        return true;
      }
    }
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kRenderPause);
  }
}

PoolStatus AsyncPool::Status() {
  RequireThisProcess();
  const std::lock_guard api_lock(api_mutex_);
  PoolStatus status;
  status.outstanding_rows = outstanding_rows_;
  for (const Entry& entry : entries_) {
    status.envs.push_back({entry.phase.load(std::memory_order_relaxed),
                           entry.steps.load(std::memory_order_relaxed),
                           std::string()});
  }
  for (const Worker& worker : workers_) {
    status.workers.push_back({worker.activity.load(std::memory_order_relaxed),
                              worker.env_id.load(std::memory_order_relaxed),
                              worker.cpu.load(std::memory_order_relaxed),
                              worker.tasks.load(std::memory_order_relaxed)});
  }
  if (closed_.load(std::memory_order_acquire)) status.closed = ClosedText();
  const std::lock_guard lock(failure_mutex_);
  status.replaced = replacements_;
  for (const Failure& failure : failures_) {
    if (failure.env_id < 0) continue;
    status.envs[static_cast<size_t>(failure.env_id)].error = failure.text;
  }
  return status;
}

int AsyncPool::OutstandingRows() {
  RequireThisProcess();
  const std::lock_guard lock(api_mutex_);
  return outstanding_rows_;
}

void AsyncPool::Ended(std::span<bool> ended) {
  RequireThisProcess();
  const std::lock_guard lock(api_mutex_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Phase phase = entries_[i].phase.load(std::memory_order_acquire);
    const bool owned = phase == Phase::kNew || phase == Phase::kIdle;
    ended[i] = owned && entries_[i].needs_reset;
  }
}

void AsyncPool::Close() noexcept {
  if (!InOwnProcess()) return;  // nothing to join
  BeginClose();
  const std::lock_guard lock(close_mutex_);
  for (Worker& worker : workers_) {
    if (worker.thread.joinable()) worker.thread.join();
  }
}

void AsyncPool::BeginClose() noexcept {
  closed_.store(true, std::memory_order_release);
  queue_.Close();
  ring_.Close();
}

void AsyncPool::RequireThisProcess() const {
  if (InOwnProcess()) return;
  throw std::runtime_error(
      "this pool belongs to process " + std::to_string(process_id_) +
      "; its threads do not exist in a forked child: make a pool in the "
      "process that uses it");
}

void AsyncPool::RequireOpen() {
  if (!closed_.load(std::memory_order_acquire)) return;
  if (!failure_reported_) {
    const std::lock_guard lock(failure_mutex_);
    if (!failures_.empty()) {
      failure_reported_ = true;
      throw EnvError(failures_.front().env_id, failures_.front().text);
    }
  }
  throw std::runtime_error(ClosedText());
}

std::string AsyncPool::ClosedText() const {
  const std::lock_guard lock(failure_mutex_);
  if (failures_.empty()) {
    return is_reason_lost_.load(std::memory_order_acquire)
               ? "pool closed after a worker ran out of memory"
               : "pool closed by close()";
  }
  return "pool closed after " + failures_.front().text;
}

void AsyncPool::RequireInRange(int32_t id, size_t position,
                               const char* call) const {
  if (id >= 0 && id < config_.num_envs) return;
  throw std::out_of_range(std::string(call) + ": env id " + std::to_string(id) +
                          " (position " + std::to_string(position) +
                          ") is out of range; this pool has envs 0 to " +
                          std::to_string(config_.num_envs - 1));
}

void AsyncPool::RequireOwned(std::span<const int32_t> ids, const char* call) {
  if (ids.empty()) {
    throw std::invalid_argument(std::string(call) +
                                ": no env ids given; name at least one env");
  }
  ++stamps_;
  for (size_t i = 0; i < ids.size(); ++i) {
    RequireInRange(ids[i], i, call);
    const auto id = static_cast<size_t>(ids[i]);
    if (stamp_[id] == stamps_) {
      throw std::invalid_argument(std::string(call) + ": env id " +
                                  std::to_string(ids[i]) +
                                  " is named twice, the second time at "
                                  "position " +
                                  std::to_string(i) + "; name each env once");
    }
    stamp_[id] = stamps_;
    const Phase phase = entries_[id].phase.load(std::memory_order_acquire);
    if (phase != Phase::kNew && phase != Phase::kIdle) {
      throw std::logic_error(std::string(call) + ": env " +
                             std::to_string(ids[i]) +
                             " has an earlier request outstanding; receive "
                             "its row with recv before you use it again");
    }
  }
}

void AsyncPool::RequireReset(std::span<const int32_t> ids,
                             const char* call) const {
  for (const int32_t id : ids) {
    if (entries_[static_cast<size_t>(id)].was_reset) continue;
    throw std::logic_error(
        std::string(call) + ": env " + std::to_string(id) +
        " has never been reset; reset it and receive its row with recv");
  }
}

void AsyncPool::RequireOutstanding() const {
  const int needed = config_.is_sync() ? 1 : config_.batch_size;
  if (outstanding_rows_ >= needed) return;
  if (outstanding_rows_ == 0) {
    throw std::logic_error(
        "recv: nothing is outstanding; send actions or reset envs first");
  }
  throw std::logic_error(
      "recv: a batch has " + std::to_string(needed) + " rows and only " +
      std::to_string(outstanding_rows_) +
      " are outstanding, so it can never fill; send actions to at least " +
      std::to_string(needed - outstanding_rows_) + " more envs first");
}

/// Chooses the places of the rows of a request. This is the last step that may
/// fail, so it precedes all changes of a request. Async: rows get their places
/// later.
int AsyncPool::OpenBatch(std::span<const int32_t> ids) {
  return config_.is_sync() ? ring_.Open(static_cast<int>(ids.size())) : 0;
}

void AsyncPool::Enqueue(int slot, std::span<const int32_t> ids, Kind kind,
                        std::span<const int32_t> actions,
                        Runner runner) noexcept {
  for (size_t i = 0; i < ids.size(); ++i) {
    Entry& entry = entries_[static_cast<size_t>(ids[i])];
    entry.kind = kind;
    entry.action = actions.empty() ? 0 : actions[i];
    entry.position = {slot, static_cast<int>(i)};
    entry.phase.store(Phase::kQueued, std::memory_order_relaxed);
  }
  outstanding_rows_ += static_cast<int>(ids.size());
  queue_.Push(ids, runner == Runner::kCallerToo && CallersHelp());
}

void AsyncPool::Help() noexcept {
  if (!InOwnProcess() || !CallersHelp()) return;
  const std::unique_lock lock(help_mutex_, std::try_to_lock);
  if (!lock) return queue_.WakeAll();
  try {
    if (!help_scratch_) help_scratch_ = task_->MakeScratch();
    help_fields_.resize(layout().fields().size());
  } catch (...) {  // no memory
    return queue_.WakeAll();
  }
  while (const std::optional<int32_t> id = queue_.Poll()) {
    Serve(*id, *help_scratch_, help_fields_);
  }
}

Scratch& AsyncPool::CallerScratch() {
  if (!caller_scratch_) caller_scratch_ = task_->MakeScratch();
  return *caller_scratch_;
}

}  // namespace pool
