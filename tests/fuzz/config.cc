// Every option of the task and of the pool with any value. A refusal must have
// a message; with small accepted values, an environment is stepped.
#include <cmath>
#include <limits>

#include "fuzz.h"
#include "mario/env.h"
#include "pool/pool_config.h"

namespace {

constexpr const char* kWords[] = {
    "",          "vanilla",    "1-1",     "8-4",    "9-1",       "A-2",
    "D-4",       "0-0",        "1-",      "1-11",   "keep",      "mask",
    "crop",      "right_only", "simple",  "raw",    "NOOP",      "complex",
    "right + A", "a,b,,up",    "classic", "v9",     "SELECT",    "progress",
    "gray",      "rgb",        "ram",     "motion", "ram+tiles", "gray+gray",
    "console",   "nes_py",
};

void Draw(fuzz::Input& input, bool* value) { *value = input.Flag(); }
void Draw(fuzz::Input& input, int* value) {
  *value = static_cast<int>(input.Number());
}
void Draw(fuzz::Input& input, double* value) {
  constexpr double kEdges[] = {0.0,
                               -0.0,
                               0.25,
                               1.0,
                               0x1.fffffffffffffp-1,
                               -1.0,
                               1e9,
                               1.1e9,
                               std::numeric_limits<double>::max(),
                               std::numeric_limits<double>::denorm_min(),
                               std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};
  *value = input.Flag() ? kEdges[input.Below(std::size(kEdges))]
                        : input.Take<double>();
}
void Draw(fuzz::Input& input, std::string* value) {
  *value =
      input.Once(4) ? input.Text(40) : kWords[input.Below(std::size(kWords))];
}
template <class T>
void Draw(fuzz::Input& input, std::vector<T>* value) {
  value->resize(input.Below(6));
  for (T& item : *value) Draw(input, &item);
}

/// Draws up to four of `options` again.
void DrawSome(fuzz::Input& input, const std::vector<pool::Option>& options) {
  for (uint32_t changes = input.Below(5); changes > 0; --changes) {
    const uint32_t chosen = input.Below(static_cast<uint32_t>(options.size()));
    std::visit([&](auto* value) { Draw(input, value); }, options[chosen].value);
  }
}

/// Rows of one environment, with separate memory for each field.
class Rows {
 public:
  explicit Rows(const std::vector<pool::Field>& fields) {
    for (const pool::Field& field : fields) {
      memory_.emplace_back(field.RowBytes());
    }
    for (auto& bytes : memory_) pointers_.push_back(bytes.data());
  }
  pool::Row row() const { return pool::Row{pointers_.data()}; }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::byte*> pointers_;
};

void Play(fuzz::Input& input,
          const std::shared_ptr<const mario::Env::Shared>& shared) {
  const Rows rows(shared->Fields());
  mario::Env::Scratch scratch(*shared);
  mario::Env env(shared, static_cast<int>(input.Below(3)), input.Take<char>());
  const int actions = shared->NumActions();
  try {
    env.Reset(scratch);
    for (int i = 0; i < 3; ++i) {
      env.Step(static_cast<int>(input.Below(static_cast<uint32_t>(actions))),
               scratch);
      env.Write(rows.row());
    }
    std::vector<std::byte> blob(env.SnapshotBytes());
    env.Snapshot(blob.data());
    shared->CheckSnapshot(blob);
    env.Restore(blob.data(), pool::RngMode::kSaved);
  } catch (const std::runtime_error& error) {
    fuzz::Require(error.what()[0] != '\0', "a failure says why");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto cartridge = fuzz::StandIn();
  fuzz::Input input(data, size);
  const bool play = input.Once(8);
  mario::Config config;
  if (input.Flag()) config.img_height = config.img_width = 16;
  DrawSome(input, config.Options());
  std::shared_ptr<const mario::Env::Shared> shared;
  if (!fuzz::Refused([&] {
        shared = std::make_shared<const mario::Env::Shared>(config, cartridge);
      })) {
    fuzz::Require(!shared->Fields().empty(), "there are fields");
    fuzz::Require(shared->NumActions() > 0, "there are actions");
    if (play) Play(input, shared);
  }

  pool::PoolConfig pool_config;
  DrawSome(input, pool_config.Options());
  if (!fuzz::Refused([&] { pool_config.Validate(); })) {
    fuzz::Require(1 <= pool_config.batch_size &&
                      pool_config.batch_size <= pool_config.num_envs,
                  "a checked batch_size");
    static_cast<void>(pool_config.SeedOf(pool_config.num_envs - 1));
  }
  return 0;
}
