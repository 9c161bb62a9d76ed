// The checksum and the checks of snapshots.
#include "pool/snapshot.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace pool {
namespace {

/// Constants of FNV-1a, 64 bits (RFC 9923). nes/cartridge.h, which the pool
/// must not include, has them for the hash of bytes.
constexpr uint64_t kFnvOffsetBasis = 0xCBF29CE484222325;
constexpr uint64_t kFnvPrime = 0x100000001B3;

/// A step of FNV-1a with a word in place of a byte. A product carries changes
/// only upwards and finally out of the word; the rotation brings the top bits
/// down.
uint64_t MixWord(uint64_t hash, uint64_t word) {
  return std::rotl((hash ^ word) * kFnvPrime, 29);
}

/// Mixes 8-byte words, beginning with `hash`: first in eight strands, because a
/// single strand would wait for each product, then over the strands.
uint64_t HashBytes(std::span<const std::byte> bytes, uint64_t hash) {
  constexpr size_t kStrands = 8;
  uint64_t strands[kStrands];
  std::fill(strands, strands + kStrands, hash);
  const std::byte* from = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8 * kStrands; left -= 8 * kStrands) {
    for (uint64_t& strand : strands) {
      uint64_t word;
      std::memcpy(&word, from, 8);
      from += 8;
      strand = MixWord(strand, word);
    }
  }
  for (const uint64_t strand : strands) hash = MixWord(hash, strand);
  for (; left > 0; left -= std::min<size_t>(left, 8)) {
    uint64_t word = 0;
    std::memcpy(&word, from, std::min<size_t>(left, 8));
    from += std::min<size_t>(left, 8);
    hash = MixWord(hash, word);
  }
  return hash;
}

/// Computes the checksum over both parts, without the checksum field of the
/// header. It detects cut, shifted and damaged blobs.
uint64_t SnapshotChecksum(SnapshotHeader header,
                          std::span<const std::byte> env_part) {
  header.checksum = 0;
  const uint64_t hash =
      HashBytes(std::as_bytes(std::span(&header, 1)), kFnvOffsetBasis);
  return HashBytes(env_part, hash);
}

}  // namespace

void WriteSnapshotHeader(SnapshotHeader header, size_t env_bytes,
                         std::byte* out) {
  header.env_bytes = env_bytes;
  header.checksum = SnapshotChecksum(header, {out + sizeof(header), env_bytes});
  std::memcpy(out, &header, sizeof(header));
}

SnapshotHeader ReadSnapshotHeader(std::span<const std::byte> blob,
                                  int32_t max_episode_steps) {
  SnapshotHeader header;
  if (blob.size() < sizeof(header)) {
    throw std::invalid_argument(std::to_string(blob.size()) +
                                " bytes are too few for its header");
  }
  std::memcpy(&header, blob.data(), sizeof(header));
  const auto env_part = blob.subspan(sizeof(header));
  if (header.magic != SnapshotHeader::kMagic) {
    throw std::invalid_argument(
        "it does not start with a snapshot header; give a value that "
        "snapshot() returned");
  }
  if (header.version != SnapshotHeader::kVersion) {
    throw std::invalid_argument(
        "it has version " + std::to_string(header.version) + ", this build " +
        "reads version " + std::to_string(SnapshotHeader::kVersion));
  }
  if (header.env_bytes != env_part.size()) {
    throw std::invalid_argument("it holds an environment of " +
                                std::to_string(header.env_bytes) +
                                " bytes; in this pool an environment has " +
                                std::to_string(env_part.size()));
  }
  if (header.checksum != SnapshotChecksum(header, env_part)) {
    throw std::invalid_argument(
        "its checksum is wrong: the snapshot was damaged");
  }
  if (header.max_episode_steps != max_episode_steps) {
    throw std::invalid_argument(
        "it was saved with max_episode_steps=" +
        std::to_string(header.max_episode_steps) + ", this pool has " +
        std::to_string(max_episode_steps) +
        "; restore it with the options it was taken with");
  }
  constexpr int32_t kMaxSteps = std::numeric_limits<int32_t>::max();
  if (header.elapsed_steps < 0 || header.done > 1 || header.truncated > 1 ||
      (header.elapsed_steps == kMaxSteps && header.done == 0)) {
    throw std::invalid_argument("its counters have values that no pool writes");
  }
  return header;
}

}  // namespace pool
