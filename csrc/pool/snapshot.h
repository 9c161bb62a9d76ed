// What the pool puts in front of an environment's own snapshot: who wrote it,
// and the counters that the pool keeps for the environment. Without pointers
// or process-local values, so a blob may travel to another process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

namespace pool {

struct SnapshotHeader {
  static constexpr uint64_t kMagic = 0x31504e534c4f4f50;  // "POOLSNP1"
  static constexpr uint32_t kVersion = 1;

  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t elapsed_steps = 0;
  uint64_t env_bytes = 0;
  uint64_t checksum = 0;  // of the environment's part
  uint8_t done = 0;       // the next action is a reset
  uint8_t truncated = 0;
  uint8_t reserved[6] = {};
};
static_assert(sizeof(SnapshotHeader) == 40);

/// FNV-1a over 8-byte words: finds cut, shifted and damaged blobs.
inline uint64_t Checksum(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i,
                bytes.size() - i < 8 ? bytes.size() - i : 8);
    hash = (hash ^ word) * 0x100000001b3;
  }
  return hash;
}

/// Reads and checks a header; throws std::invalid_argument naming the reason.
inline SnapshotHeader ReadSnapshotHeader(std::span<const std::byte> blob) {
  SnapshotHeader header;
  std::memcpy(&header, blob.data(), sizeof(header));
  const auto env_part = blob.subspan(sizeof(header));
  if (header.magic != SnapshotHeader::kMagic) {
    throw std::invalid_argument(
        "it does not start with a snapshot header; only what snapshot() "
        "returned can be restored");
  }
  if (header.version != SnapshotHeader::kVersion) {
    throw std::invalid_argument(
        "it has version " + std::to_string(header.version) + ", this build " +
        "reads version " + std::to_string(SnapshotHeader::kVersion));
  }
  if (header.env_bytes != env_part.size()) {
    throw std::invalid_argument(
        "it holds an environment of " + std::to_string(header.env_bytes) +
        " bytes, this pool's have " + std::to_string(env_part.size()));
  }
  if (header.checksum != Checksum(env_part)) {
    throw std::invalid_argument("its checksum is wrong: it has been altered");
  }
  return header;
}

}  // namespace pool
