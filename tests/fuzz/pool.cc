// Sequences of pool calls, legal and not, against a model: the same
// environments stepped one by one. Every row, picture and snapshot must equal
// the model's, and the model must expect every refusal. Under ThreadSanitizer
// the target also checks that callers and workers do not race.
#include <chrono>
#include <deque>
#include <numeric>
#include <set>

#include "../cpp/counting_env.h"
#include "fuzz.h"
#include "pool/async_pool.h"

namespace {

using pool::CountingEnv;
using Pool = pool::AsyncPool;
using Ids = std::vector<int32_t>;
constexpr std::chrono::milliseconds kPatience{50'000};
constexpr size_t kFields = 8;  // of a counting environment
constexpr size_t kObsBytes = 48;

/// What a call may be refused with; empty: it must succeed.
struct Faults {
  bool invalid = false, range = false, logic = false;
  bool any() const { return invalid || range || logic; }
};

/// One row as the pool yields it.
struct Row {
  int32_t elapsed = 0;
  bool done = false, truncated = false;
  float reward = 0;
  int32_t step_type = 0;
  std::vector<std::byte> obs;
  int64_t hash = 0;
};

/// One environment of the model.
struct ModelEnv {
  std::unique_ptr<CountingEnv> env;
  int elapsed = 0;
  bool needs_reset = true, truncated = false, was_reset = false;
  bool outstanding = false;
  Row row;  // of the last request
};

class Sequence {
 public:
  explicit Sequence(fuzz::Input& input) : input_(input) {
    config_.num_envs = 1 + static_cast<int>(input.Below(5));
    config_.batch_size = static_cast<int>(
        input.Below(static_cast<uint32_t>(config_.num_envs) + 1));
    config_.num_threads = 1 + static_cast<int>(input.Below(2));
    if (input.Flag()) {
      config_.max_episode_steps = 1 + static_cast<int>(input.Below(6));
    }
    pool::CountingConfig counting;
    counting.obs_shape = {static_cast<int>(kObsBytes)};
    counting.episode_steps = 1 + static_cast<int>(input.Below(5));
    counting.truncate_steps = static_cast<int>(input.Below(4));
    if (input.Once(8)) {
      counting.throw_env = static_cast<int>(input.Below(3));
      counting.throw_step = static_cast<int>(input.Below(4));
    }
    shared_ = std::make_shared<const CountingEnv::Shared>(counting);
    pool_ = std::make_unique<Pool>(config_, shared_);
    config_ = pool_->config();
    for (int id = 0; id < config_.num_envs; ++id) {
      envs_.emplace_back();
      envs_.back().env =
          std::make_unique<CountingEnv>(shared_, id, config_.SeedOf(id));
    }
  }

  void Run() {
    for (int calls = 0; calls < 24 && !input_.empty() && !failed_; ++calls) {
      Call();
    }
    if (failed_) ExpectFailure();
    if (closed_ || failed_) ExpectClosed();
  }

 private:
  void Call() {
    switch (input_.Below(13)) {
      case 0:
      case 1:
        return Reset();
      case 2:
        return Snapshot();
      case 3:
        return Restore();
      case 4:
        return Render();
      case 5:
        return Status();
      case 6:
        if (input_.Once(8)) pool_->Close(), closed_ = true;
        return;
      case 7:
      case 8:
      case 9:
        return Recv();
      case 10:
        return SetStarts();
      default:
        return Send();
    }
  }

  // -------------------------------------------------------------- choices

  /// Mostly environments that a call may name, sometimes any number.
  Ids ChooseIds() {
    Ids ids;
    const bool wild = input_.Once(8);
    for (int id = 0; id < config_.num_envs; ++id) {
      if (!envs_[static_cast<size_t>(id)].outstanding && !input_.Once(4)) {
        ids.push_back(id);
      }
    }
    for (uint32_t more = wild ? input_.Below(4) : 0; more > 0; --more) {
      ids.push_back(input_.Flag()
                        ? static_cast<int32_t>(input_.Number())
                        : static_cast<int32_t>(input_.Below(
                              static_cast<uint32_t>(config_.num_envs))));
    }
    return ids;
  }

  Faults FaultsOf(const Ids& ids, bool must_be_reset = false) const {
    Faults faults;
    faults.invalid = ids.empty();
    std::set<int32_t> seen;
    for (const int32_t id : ids) {
      if (id < 0 || id >= config_.num_envs) {
        faults.range = true;
        continue;
      }
      const ModelEnv& env = envs_[static_cast<size_t>(id)];
      faults.invalid |= !seen.insert(id).second;
      faults.logic |= env.outstanding || (must_be_reset && !env.was_reset);
    }
    return faults;
  }

  /// Makes a call that must succeed, or be refused in one of the expected ways
  /// (which fault is told first is the pool's choice). True if it succeeded.
  template <class Action>
  bool Expect(const Faults& faults, Action&& action) {
    try {
      action();
    } catch (const std::invalid_argument& error) {
      fuzz::NoteRefusal(error);
      fuzz::Require(!closed_ && faults.invalid, "invalid_argument expected");
      return false;
    } catch (const std::out_of_range& error) {
      fuzz::NoteRefusal(error);
      fuzz::Require(!closed_ && faults.range, "out_of_range expected");
      return false;
    } catch (const std::logic_error& error) {
      fuzz::NoteRefusal(error);
      fuzz::Require(!closed_ && faults.logic, "logic_error expected");
      return false;
    } catch (const std::runtime_error&) {
      fuzz::Require(closed_, "only a closed pool says runtime_error");
      return false;
    }
    fuzz::Require(!closed_ && !faults.any(), "a fault that was not refused");
    return true;
  }

  // ---------------------------------------------------------------- calls

  void Send() {
    const Ids ids = ChooseIds();
    Ids actions;
    Faults faults = FaultsOf(ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      actions.push_back(static_cast<int32_t>(input_.Below(4)));
    }
    if (input_.Once(16)) {
      actions.push_back(static_cast<int32_t>(input_.Number()));
      if (input_.Flag() && actions.size() > 1) {
        actions.erase(actions.begin());
      }
    }
    faults.invalid |= actions.size() != ids.size();
    for (const int32_t action : actions) {
      faults.invalid |= action < 0 || action > 3;
    }
    if (!Expect(faults, [&] { pool_->Send(ids, actions); })) return;
    for (size_t i = 0; i < ids.size(); ++i) Step(ids[i], actions[i]);
    Sent(ids);
  }

  void Reset() {
    const Ids ids = ChooseIds();
    Faults faults = FaultsOf(ids);
    std::vector<std::optional<uint64_t>> seeds;
    if (input_.Flag()) seeds.assign(ids.size(), input_.Take<uint64_t>());
    if (input_.Once(16)) seeds.push_back(1);
    faults.invalid |= !seeds.empty() && seeds.size() != ids.size();
    if (!Expect(faults, [&] { pool_->Reset(ids, seeds); })) return;
    for (size_t i = 0; i < ids.size(); ++i) {
      ModelEnv& env = envs_[static_cast<size_t>(ids[i])];
      if (!seeds.empty()) env.env->Seed(*seeds[i]);
      Begin(env);
    }
    Sent(ids);
  }

  void Recv() {
    const int outstanding = Outstanding();
    const int needed = config_.is_sync() ? 1 : config_.batch_size;
    Faults faults;
    faults.logic = outstanding < needed;
    std::optional<pool::Batch> batch;
    if (!Expect(faults, [&] { batch = pool_->Recv(kPatience); })) return;
    fuzz::Require(batch.has_value(), "a batch comes in time");
    const auto rows = static_cast<size_t>(batch->rows());
    Ids ids(rows);
    batch->Copy(pool::kEnvId, ids.data());
    if (config_.is_sync()) {
      fuzz::Require(ids == requests_.front(), "rows in the order of requests");
      requests_.pop_front();
    } else {
      fuzz::Require(rows == size_t(config_.batch_size), "a full batch");
    }
    CheckRows(*batch, ids);
  }

  void CheckRows(const pool::Batch& batch, const Ids& ids) {
    const size_t rows = ids.size();
    std::vector<int32_t> elapsed(rows), step_type(rows);
    std::vector<uint8_t> done(rows), truncated(rows);
    std::vector<float> reward(rows);
    std::vector<int64_t> hash(rows);
    batch.Copy(pool::kElapsedStep, elapsed.data());
    batch.Copy(pool::kStepType, step_type.data());
    batch.Copy(pool::kDone, done.data());
    batch.Copy(pool::kTrunc, truncated.data());
    batch.Copy(pool::kReward, reward.data());
    batch.Copy(pool::kNumPoolFields + 3, hash.data());
    for (size_t i = 0; i < rows; ++i) {
      ModelEnv& env = envs_.at(static_cast<size_t>(ids[i]));
      fuzz::Require(env.outstanding, "a row that was asked for");
      const Row& want = env.row;
      fuzz::Require(
          elapsed[i] == want.elapsed && step_type[i] == want.step_type &&
              done[i] == want.done && truncated[i] == want.truncated &&
              reward[i] == want.reward && hash[i] == want.hash,
          "the row of the model");
      fuzz::Require(
          std::memcmp(batch.Bulk(pool::kNumPoolFields) + i * kObsBytes,
                      want.obs.data(), kObsBytes) == 0,
          "the observation of the model");
      env.outstanding = false;
    }
  }

  void Snapshot() {
    const Ids ids = ChooseIds();
    std::vector<std::byte> blobs(ids.size() * pool_->SnapshotBytes());
    if (!Expect(FaultsOf(ids, true),
                [&] { pool_->Snapshot(ids, blobs.data()); })) {
      return;
    }
    const size_t bytes = pool_->SnapshotBytes();
    for (size_t i = 0; i < ids.size(); ++i) {
      const ModelEnv& env = envs_[static_cast<size_t>(ids[i])];
      std::vector<std::byte> want(env.env->SnapshotBytes());
      env.env->Snapshot(want.data());
      fuzz::Require(
          std::memcmp(want.data(),
                      blobs.data() + i * bytes + sizeof(pool::SnapshotHeader),
                      want.size()) == 0,
          "the snapshot of the model");
    }
    saved_.assign(blobs.begin(), blobs.begin() + static_cast<ptrdiff_t>(bytes));
  }

  /// One blob for each env: the last one taken, whole or damaged.
  void Restore() {
    const Ids ids = ChooseIds();
    const size_t bytes = pool_->SnapshotBytes();
    std::vector<std::byte> one = saved_;
    one.resize(bytes);
    const std::vector<std::byte> before = one;
    if (input_.Once(4)) fuzz::Edit(input_, one);
    const bool damaged = saved_.empty() || one != before;
    std::vector<std::byte> blobs;
    for (size_t i = 0; i < ids.size(); ++i) {
      blobs.insert(blobs.end(), one.begin(), one.end());
    }
    Faults faults = FaultsOf(ids);
    faults.invalid |= damaged;
    if (input_.Once(16)) blobs.resize(blobs.size() + 1), faults.invalid = true;
    const pool::RngMode rng =
        input_.Flag() ? pool::RngMode::kSaved : pool::RngMode::kKeep;
    if (!Expect(faults, [&] { pool_->Restore(ids, blobs, rng); })) return;
    pool::SnapshotHeader header;
    std::memcpy(&header, one.data(), sizeof(header));
    for (const int32_t id : ids) {
      ModelEnv& env = envs_[static_cast<size_t>(id)];
      env.env->Restore(one.data() + sizeof(header), rng);
      env.elapsed = header.elapsed_steps;
      env.needs_reset = header.done != 0;
      env.truncated = header.truncated != 0;
      env.was_reset = true;
      Note(env, 0.0f, env.needs_reset ? 2 : 0);
    }
    Sent(ids);
  }

  /// Sets stages and the last snapshot, repeated. An environment with an
  /// outstanding request may use either set, so the model waits until there is
  /// none.
  void SetStarts() {
    if (Outstanding() > 0) return;
    if (input_.Once(4)) {
      if (Expect({}, [&] { pool_->ClearStarts(); })) starts_ = nullptr;
      return;
    }
    const size_t copies = saved_.empty() ? 0 : input_.Below(3);
    std::vector<double> weights;
    for (size_t i = 0; i < 1 + copies; ++i) {
      weights.push_back(input_.Once(8) ? -1.0 : input_.Below(3));
    }
    if (input_.Once(16)) weights.push_back(1.0);
    std::vector<std::byte> one = saved_;
    if (input_.Once(8)) fuzz::Edit(input_, one);
    std::vector<std::byte> blobs;
    for (size_t i = 0; i < copies; ++i) {
      blobs.insert(blobs.end(), one.begin(), one.end());
    }
    pool::SnapshotHeader header;
    if (copies > 0 && one.size() >= sizeof(header)) {
      std::memcpy(&header, one.data(), sizeof(header));
    }
    Faults faults;
    faults.invalid = weights.size() != 1 + copies ||
                     *std::min_element(weights.begin(), weights.end()) < 0 ||
                     *std::max_element(weights.begin(), weights.end()) == 0 ||
                     (copies > 0 && (one != saved_ || header.done != 0));
    if (!Expect(faults, [&] { pool_->SetStarts(weights, blobs, copies); }))
      return;
    auto starts = std::make_shared<pool::StartSet>();
    starts->num_stages = 1;
    for (double sum = 0; const double weight : weights) {
      starts->cumulative_weights.push_back(sum += weight);
    }
    starts->blobs = blobs;
    starts->blob_bytes = saved_.size();
    starts->header_bytes = sizeof(pool::SnapshotHeader);
    starts_ = std::move(starts);
  }

  void Render() {
    Faults faults;
    int32_t id = static_cast<int32_t>(
        input_.Below(static_cast<uint32_t>(config_.num_envs)));
    if (input_.Once(8)) id = static_cast<int32_t>(input_.Number());
    faults.range = id < 0 || id >= config_.num_envs;
    const bool in_range = !faults.range;
    if (in_range) faults.logic = !envs_[static_cast<size_t>(id)].was_reset;
    uint8_t rgb[CountingEnv::kRenderHeight * CountingEnv::kRenderWidth * 3];
    uint8_t want[sizeof(rgb)];
    if (!Expect(faults, [&] {
          fuzz::Require(pool_->Render(id, rgb, kPatience), "a picture in time");
        })) {
      return;
    }
    pool::Scratch scratch;
    envs_[static_cast<size_t>(id)].env->Render(scratch, want);
    fuzz::Require(std::memcmp(rgb, want, sizeof(rgb)) == 0,
                  "the picture of the model");
  }

  void Status() {
    const pool::PoolStatus status = pool_->Status();
    fuzz::Require(status.closed.empty() != closed_, "status: closed");
    fuzz::Require(closed_ || status.outstanding_rows == Outstanding(),
                  "status: outstanding rows");
    fuzz::Require(status.envs.size() == envs_.size(), "status: envs");
  }

  // ---------------------------------------------------------------- model

  void Note(ModelEnv& env, float reward, int32_t step_type) {
    env.row = {env.elapsed, env.needs_reset, env.truncated, reward, step_type};
    env.row.obs.resize(kObsBytes);
    std::byte small[kFields][8];
    std::byte* fields[kFields] = {env.row.obs.data()};
    for (size_t i = 1; i < kFields; ++i) fields[i] = small[i];
    env.env->Write(pool::Row{fields});
    std::memcpy(&env.row.hash, small[3], sizeof(env.row.hash));
  }

  /// Runs an environment of the model; one that throws ends the sequence.
  template <class Action>
  bool Try(Action&& action) {
    try {
      action();
      return true;
    } catch (const std::runtime_error&) {
      failed_ = true;
      return false;
    }
  }

  void Begin(ModelEnv& env) {
    pool::Scratch scratch;
    if (!Try([&] { env.env->Reset(scratch, starts_.get()); })) return;
    env.elapsed = 0;
    env.needs_reset = env.truncated = false;
    env.was_reset = true;
    Note(env, 0.0f, 0);
  }

  void Step(int32_t id, int32_t action) {
    ModelEnv& env = envs_[static_cast<size_t>(id)];
    if (env.needs_reset) return Begin(env);
    pool::Scratch scratch;
    pool::Outcome outcome;
    if (!Try([&] { outcome = env.env->Step(action, scratch); })) return;
    const bool limit = ++env.elapsed >= config_.max_episode_steps;
    env.needs_reset = outcome.terminated || outcome.truncated || limit;
    env.truncated = limit || (outcome.truncated && !outcome.terminated);
    Note(env, outcome.reward, env.needs_reset ? 2 : 1);
  }

  void Sent(const Ids& ids) {
    for (const int32_t id : ids) {
      envs_[static_cast<size_t>(id)].outstanding = true;
    }
    if (config_.is_sync()) requests_.push_back(ids);
  }

  int Outstanding() const {
    return static_cast<int>(
        std::count_if(envs_.begin(), envs_.end(),
                      [](const ModelEnv& env) { return env.outstanding; }));
  }

  /// An environment throws: some batches may come first, then its name.
  void ExpectFailure() {
    for (size_t i = 0; i < envs_.size() + 1; ++i) {
      try {
        pool_->Recv(kPatience);
      } catch (const pool::EnvError& error) {
        fuzz::Require(std::strstr(error.what(), "told to fail") != nullptr,
                      "the failure is told");
        return;
      } catch (const std::logic_error&) {
        // Too little is outstanding: what was sent with it may still run.
        i = 0;
        std::this_thread::yield();
      }
    }
    fuzz::Require(false, "a failure reaches the caller");
  }

  void ExpectClosed() {
    for (int i = 0; i < 2; ++i) {
      try {
        pool_->Recv(kPatience);
        fuzz::Require(false, "a closed pool gives nothing");
      } catch (const std::runtime_error& error) {
        fuzz::Require(std::strstr(error.what(), "pool closed") != nullptr,
                      "a closed pool says that it is closed");
      }
      pool_->Close();
    }
  }

  fuzz::Input& input_;
  pool::PoolConfig config_;
  std::shared_ptr<const CountingEnv::Shared> shared_;
  std::unique_ptr<Pool> pool_;
  std::vector<ModelEnv> envs_;
  std::deque<Ids> requests_;      // sync: one batch each, in order
  std::vector<std::byte> saved_;  // one blob
  std::shared_ptr<const pool::StartSet> starts_;
  bool closed_ = false;
  bool failed_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  Sequence(input).Run();
  return 0;
}
