// The workers' half of AsyncPool.
#include "pool/async_pool.h"

namespace pool {

void AsyncPool::Work(int index, std::latch& built) {
  Worker& self = workers_[static_cast<size_t>(index)];
  std::unique_ptr<Scratch> scratch;
  std::vector<std::byte*> fields;
  // Outside of a guard nothing may throw, and so allocate.
  Guard(-1, "scratch memory", [&] {
    if (config_.thread_affinity_offset >= 0) Pin(index);
    fields.resize(layout().fields().size());
    scratch = task_->MakeScratch();
  });
  if (scratch) Build(index);
  built.count_down();  // the latch may be destroyed after this
  int32_t claimed[kMaxClaimed];
  while (!queue_.closed()) {
    self.activity.store(Activity::kWaiting, std::memory_order_relaxed);
    const int count = queue_.Pop(claimed);
    self.activity.store(Activity::kWorking, std::memory_order_relaxed);
    for (int i = 0; i < count && !queue_.closed(); ++i) {
      self.env_id.store(claimed[i], std::memory_order_relaxed);
      Serve(claimed[i], *scratch, fields);
      self.tasks.fetch_add(1, std::memory_order_relaxed);
    }
    self.env_id.store(-1, std::memory_order_relaxed);
  }
  self.activity.store(Activity::kStopped, std::memory_order_relaxed);
}

void AsyncPool::Pin(int index) {
  const std::vector<int> cpus = AllowedCpus();
  const int cpu = cpus[(static_cast<size_t>(config_.thread_affinity_offset) +
                        static_cast<size_t>(index)) %
                       cpus.size()];
  // If the system refuses, the worker stays unpinned, and status() reports
  // that.
  if (!PinThisThread(cpu)) return;
  workers_[static_cast<size_t>(index)].cpu.store(cpu,
                                                 std::memory_order_relaxed);
}

void AsyncPool::Build(int index) {
  for (int id = index; id < config_.num_envs; id += num_threads()) {
    if (queue_.closed()) return;
    Guard(id, "construction", [&] {
      entries_[static_cast<size_t>(id)].env =
          task_->MakeEnv(id, config_.SeedOf(id));
    });
  }
}

void AsyncPool::Serve(int id, Scratch& scratch, std::span<std::byte*> fields) {
  Entry& entry = entries_[static_cast<size_t>(id)];
  entry.phase.store(Phase::kRunning, std::memory_order_relaxed);
  const char* doing = entry.kind == Kind::kRestore ? "restore"
                      : entry.kind == Kind::kStep  ? "step"
                                                   : "reset";
  RowPosition position = entry.position;
  const bool done = Guard(id, doing, [&] {
    const Result result = ExecuteOrReplace(id, doing, scratch);
    if (!config_.is_sync()) position = ring_.Claim();
    WriteRow(id, position, result, fields);
  });
  if (!done) return;
  entry.phase.store(Phase::kReady, std::memory_order_release);
  // This is the worker's last access: with a full batch the entry belongs to
  // the caller again.
  ring_.Complete(position);
}

AsyncPool::Result AsyncPool::ExecuteRequest(Entry& entry, Scratch& scratch) {
  if (entry.kind == Kind::kRestore) {
    entry.env->Restore(entry.saved.get(), entry.rng);
    entry.saved.reset();
    entry.replaced = false;
    return {0.0f, entry.needs_reset ? 2 : 0};
  }
  if (entry.kind == Kind::kReset || entry.needs_reset) {
    // The next episode of a replacement has begun already.
    if (entry.kind == Kind::kReset || !entry.replaced) {
      BeginEpisode(entry, scratch);
    }
    return FirstRow(entry);
  }
  const Outcome outcome = entry.env->Step(entry.action, scratch);
  entry.steps.store(entry.steps.load(std::memory_order_relaxed) + 1,
                    std::memory_order_relaxed);
  ++entry.elapsed_steps;
  // As in EnvPool, reaching the limit is a truncation even if the env
  // terminates in the same step.
  const bool limit = entry.elapsed_steps >= config_.max_episode_steps;
  entry.needs_reset = outcome.terminated || outcome.truncated || limit;
  entry.truncated = limit || (outcome.truncated && !outcome.terminated);
  return {outcome.reward, entry.needs_reset ? 2 : 1};
}

/// Resets, and takes a snapshot after one of every_episodes resets. Starts from
/// SetStarts are not kept: `info:start` would name a place in a set that may be
/// replaced by then.
void AsyncPool::BeginEpisode(Entry& entry, Scratch& scratch) {
  const std::shared_ptr<const StartSet> starts = Starts();
  entry.env->Reset(scratch, starts.get());
  const int every = every_episodes_.load(std::memory_order_relaxed);
  if (every == 0 || starts != nullptr) {
    entry.kept.clear();
    return;
  }
  if (entry.kept.empty() || ++entry.episodes >= static_cast<uint64_t>(every)) {
    entry.episodes = 0;
    entry.kept.resize(entry.env->SnapshotBytes());
    entry.env->Snapshot(entry.kept.data());
  }
}

AsyncPool::Result AsyncPool::ExecuteOrReplace(int id, const char* doing,
                                              Scratch& scratch) {
  Entry& entry = entries_[static_cast<size_t>(id)];
  // A restored state is never replaced: the caller gets exactly that state or
  // an error.
  if (entry.kind == Kind::kRestore ||
      max_replacements_.load(std::memory_order_relaxed) == 0) {
    return ExecuteRequest(entry, scratch);
  }
  const bool begins = entry.kind == Kind::kReset || entry.needs_reset;
  std::string error;
  try {
    return ExecuteRequest(entry, scratch);
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  for (;;) {
    CountReplacement(id, doing, error);
    try {
      Replace(id, scratch);
      break;
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
  }
  if (begins) return FirstRow(entry);
  ++entry.elapsed_steps;
  entry.needs_reset = true;
  entry.truncated = true;
  return {0.0f, 2};
}

AsyncPool::Result AsyncPool::FirstRow(Entry& entry) {
  entry.replaced = false;
  entry.elapsed_steps = 0;
  entry.needs_reset = false;
  entry.truncated = false;
  entry.was_reset = true;
  return {0.0f, 0};
}

/// Records a replacement; throws if the budget is spent.
void AsyncPool::CountReplacement(int id, const char* doing,
                                 const std::string& error) {
  const auto budget =
      static_cast<size_t>(max_replacements_.load(std::memory_order_relaxed));
  const std::lock_guard lock(failure_mutex_);
  if (replacements_.size() >= budget) {
    throw std::runtime_error(error + "; " +
                             std::to_string(replacements_.size()) +
                             " environments were replaced before, as many as "
                             "set_replacement allows");
  }
  replacements_.push_back(
      {id, "env " + std::to_string(id) + " failed in " + doing + ": " + error});
}

/// Makes another environment, at the start of an episode, with a new generator:
/// the old generator might lead to the same exception again.
void AsyncPool::Replace(int id, Scratch& scratch) {
  Entry& entry = entries_[static_cast<size_t>(id)];
  uint64_t seed = config_.SeedOf(id);
  {
    const std::lock_guard lock(failure_mutex_);
    const uint64_t other = seed + replacements_.size() * entries_.size();
    if (other <= task_->MaxSeed()) seed = other;
  }
  entry.env = task_->MakeEnv(id, seed);
  const std::shared_ptr<const StartSet> starts = Starts();
  entry.env->Reset(scratch, starts.get());
  if (!entry.kept.empty() && starts == nullptr) {
    entry.env->Restore(entry.kept.data(), RngMode::kKeep);
  }
  entry.replaced = true;
}

std::shared_ptr<const StartSet> AsyncPool::Starts() {
  const std::lock_guard lock(starts_mutex_);
  return starts_;
}

void AsyncPool::WriteRow(int id, RowPosition position, const Result& result,
                         std::span<std::byte*> fields) {
  const Entry& entry = entries_[static_cast<size_t>(id)];
  ring_.Locate(position, fields.data());
  const Row row{fields.data()};
  *row.at<int32_t>(kEnvId) = id;
  *row.at<int32_t>(kPlayersEnvId) = id;
  *row.at<int32_t>(kElapsedStep) = entry.elapsed_steps;
  *row.at<bool>(kDone) = entry.needs_reset;
  *row.at<float>(kReward) = result.reward;
  *row.at<float>(kDiscount) = entry.needs_reset ? 0.0f : 1.0f;
  *row.at<int32_t>(kStepType) = result.step_type;
  *row.at<bool>(kTrunc) = entry.truncated;
  entry.env->Write(Row{fields.data() + kNumPoolFields});
}

template <class Action>
bool AsyncPool::Guard(int env_id, const char* doing, Action&& action) noexcept {
  try {
    action();
    return true;
  } catch (const std::exception& error) {
    Fail(env_id, doing, error.what());
  } catch (...) {
    Fail(env_id, doing, "an exception that is not a std::exception");
  }
  return false;
}

void AsyncPool::Fail(int env_id, const char* doing, const char* what) noexcept {
  if (env_id >= 0) {
    entries_[static_cast<size_t>(env_id)].phase.store(
        Phase::kFailed, std::memory_order_release);
  }
  try {
    const std::string who =
        env_id < 0 ? "a worker" : "env " + std::to_string(env_id);
    std::string text = who + " failed in " + doing + ": " + what;
    const std::lock_guard lock(failure_mutex_);
    failures_.push_back({env_id, std::move(text)});
  } catch (...) {
    // The text did not fit into memory.
    is_reason_lost_.store(true, std::memory_order_release);
  }
  BeginClose();
}

}  // namespace pool
