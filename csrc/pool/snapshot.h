// The header that the pool puts before an environment's own snapshot. It
// identifies the writer and has the counters that the pool keeps for the
// environment. It has no pointers or process-local values, so other processes
// can restore a blob.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace pool {

struct SnapshotHeader {
  static constexpr uint64_t kMagic = 0x31504e534c4f4f50;  // "POOLSNP1"
  static constexpr uint32_t kVersion = 4;

  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t elapsed_steps = 0;
  uint64_t env_bytes = 0;
  uint64_t checksum = 0;  // of both parts
  uint8_t done = 0;       // 1: the next action is a reset
  uint8_t truncated = 0;
  uint8_t reserved[2] = {};
  int32_t max_episode_steps = 0;  // the pool's limit, which affects later steps
};
static_assert(sizeof(SnapshotHeader) == 40 &&
              std::has_unique_object_representations_v<SnapshotHeader>);

/// Writes a header before an environment's part, which begins at `out` +
/// sizeof(header), and fills in its sizes and checksum.
void WriteSnapshotHeader(SnapshotHeader header, size_t env_bytes,
                         std::byte* out);

/// Reads and checks a header for a pool with that limit of steps; throws
/// std::invalid_argument naming the reason.
SnapshotHeader ReadSnapshotHeader(std::span<const std::byte> blob,
                                  int32_t max_episode_steps);

}  // namespace pool
