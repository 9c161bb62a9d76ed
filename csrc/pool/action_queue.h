// The queue from callers to workers: one producer at a time pushes many
// environment ids, and many workers claim a few each. The task of an
// environment is in its own entry, which the pool fills before the push.
//
// Lock-free while there is work. A worker first copies the ids at the head and
// then claims them with one compare-exchange. Positions have 64 bits and never
// repeat, so a worker cannot claim a copy that the producer has overwritten.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "pool/threads.h"

namespace pool {

class ActionQueue {
 public:
  /// `capacity`: the most ids that are queued at once. A worker looks for work
  /// `spins` times before it sleeps.
  ActionQueue(int capacity, int num_consumers, int spins)
      : ring_(std::bit_ceil(static_cast<size_t>(capacity))),
        mask_(ring_.size() - 1),
        consumers_(static_cast<size_t>(num_consumers)),
        share_(2 * consumers_),
        spins_(spins) {}

  ActionQueue(const ActionQueue&) = delete;
  ActionQueue& operator=(const ActionQueue&) = delete;

  /// Publishes all ids at once. Callers take turns (the pool's lock). With
  /// `caller_pops` one consumer less is woken: the caller runs Poll next.
  void Push(std::span<const int32_t> ids, bool caller_pops = false) {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    assert(tail + ids.size() - head_.load(std::memory_order_acquire) <=
           ring_.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      ring_[(tail + i) & mask_].store(ids[i], std::memory_order_relaxed);
    }
    tail_.store(tail + ids.size(), std::memory_order_seq_cst);
    const int sleepers = sleepers_.load(std::memory_order_seq_cst);
    const size_t wanted =
        std::min(ids.size(), consumers_) - (caller_pops ? 1 : 0);
    if (sleepers > 0 && wanted > 0) {
      Wake(std::min(wanted, static_cast<size_t>(sleepers)));
    }
  }

  /// Claims one id without waiting; nothing if none is queued.
  std::optional<int32_t> Poll() {
    int32_t id = 0;
    if (closed() || TryPop({&id, 1}) == 0) return std::nullopt;
    return id;
  }

  /// Wakes every consumer that sleeps.
  void WakeAll() { Wake(consumers_); }

  /// Waits for work and claims some. Returns the number of ids written to
  /// `out`, or 0 once the queue is closed. The fewer ids are left, the fewer a
  /// worker claims, so that workers finish together.
  int Pop(std::span<int32_t> out) {
    for (;;) {
      for (int spin = 0; spin <= spins_; ++spin) {
        if (closed_.load(std::memory_order_acquire)) return 0;
        if (const int count = TryPop(out)) return count;
        SpinHint();
      }
      Sleep();
    }
  }

  /// Makes every Pop return 0. Ids that are still queued are dropped.
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_.store(true, std::memory_order_release);
    wake_.notify_all();
  }

  bool closed() const { return closed_.load(std::memory_order_acquire); }

 private:
  int TryPop(std::span<int32_t> out) {
    uint64_t head = head_.load(std::memory_order_acquire);
    for (;;) {
      const uint64_t queued = tail_.load(std::memory_order_acquire) - head;
      if (queued == 0) return 0;
      const uint64_t count =
          std::clamp<uint64_t>(queued / share_, 1, out.size());
      for (uint64_t i = 0; i < count; ++i) {
        out[i] = ring_[(head + i) & mask_].load(std::memory_order_relaxed);
      }
      if (head_.compare_exchange_weak(head, head + count,
                                      std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
        return static_cast<int>(count);
      }
    }
  }

  void Sleep() {
    std::unique_lock lock(mutex_);
    // A worker announces itself before its last look at the tail, and Push
    // publishes the tail before it looks for sleepers: one of the two sees the
    // other.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, [this] {
      return closed_.load(std::memory_order_relaxed) ||
             tail_.load(std::memory_order_seq_cst) !=
                 head_.load(std::memory_order_seq_cst);
    });
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

  void Wake(size_t count) {
    // Taking the lock waits for a worker that has announced itself but does not
    // sleep yet.
    {
      const std::lock_guard lock(mutex_);
    }
    if (count >= static_cast<size_t>(sleepers_.load())) {
      wake_.notify_all();
    } else {
      for (size_t i = 0; i < count; ++i) wake_.notify_one();
    }
  }

  std::vector<std::atomic<int32_t>> ring_;
  const uint64_t mask_;
  const size_t consumers_;
  const uint64_t share_;
  const int spins_;
  alignas(64) std::atomic<uint64_t> tail_{0};  // written by the producer
  alignas(64) std::atomic<uint64_t> head_{0};  // written by workers
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace pool
