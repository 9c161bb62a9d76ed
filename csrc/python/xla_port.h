// What functions that XLA has compiled may do with a pool. The modules _core
// and _xla are compiled apart and share this header, so it speaks in standard
// types only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace xla_port {

/// Of the capsule that takes a port to _xla. Ends in a hash of this file, so
/// that a module left over from another build is refused, and not misread.
inline constexpr char kPortName[] = "mario_envpool.Port " MARIO_XLA_PORT_HASH;

class Port {
 public:
  virtual ~Port() = default;

  /// Bytes of each array of a batch, in the order of the pool's fields.
  virtual std::span<const size_t> array_bytes() const = 0;
  /// As AsyncPool::Send.
  virtual void Send(std::span<const int32_t> ids,
                    std::span<const int32_t> actions) = 0;
  /// Waits for the next batch and copies it to `arrays`; false if `timeout`
  /// passed first. Throws what AsyncPool::Recv throws, and std::logic_error for
  /// a batch of fewer rows than batch_size, which the next recv returns.
  virtual bool Recv(std::chrono::milliseconds timeout,
                    std::span<void* const> arrays) = 0;
};

}  // namespace xla_port
