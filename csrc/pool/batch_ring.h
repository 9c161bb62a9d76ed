// Collects results in a ring of batches. Workers fill a batch row by row, and
// the reader takes it when it is full. Observations are stored in slabs, which
// are page-aligned, recycled, and lent to the reader until the reader drops
// them. The small fields of a row are stored together in one record outside the
// slab, so that two workers never write to one cache line; they are copied out
// field by field.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "pool/spec.h"

namespace pool {

constexpr size_t kCacheLineBytes = 64;

/// The offset of each field of a row; equal for all slabs of a pool.
class RowLayout {
 public:
  explicit RowLayout(std::vector<Field> fields);

  const std::vector<Field>& fields() const { return fields_; }
  size_t record_bytes() const { return record_bytes_; }
  size_t row_bytes(size_t field) const { return row_bytes_[field]; }

  /// Bytes of a slab of `rows` rows, in whole pages; 0 without bulk fields.
  size_t SlabBytes(int rows) const;

  /// Small field: its offset in the record. Bulk field: the start of its block
  /// in a slab of `rows` rows.
  size_t Offset(size_t field, int rows) const {
    return fields_[field].bulk ? bulk_offset_[field] * static_cast<size_t>(rows)
                               : record_offset_[field];
  }

 private:
  std::vector<Field> fields_;
  std::vector<size_t> row_bytes_;
  std::vector<size_t> record_offset_;
  std::vector<size_t> bulk_offset_;  // per row of the slab
  size_t record_bytes_ = 0;
  size_t bulk_row_bytes_ = 0;
};

/// Memory with a chosen alignment.
class AlignedBytes {
 public:
  /// No bytes: no memory.
  AlignedBytes(size_t bytes, size_t alignment);
  ~AlignedBytes();
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  std::byte* data() const { return data_; }

 private:
  const size_t alignment_;
  std::byte* const data_;
};

/// The memory of one batch of up to `rows` rows.
struct Slab {
  Slab(const RowLayout& layout, int rows);

  const int rows;
  const size_t bulk_bytes;

  std::byte* bulk() const { return bulk_.data(); }
  std::byte* records() const { return records_.data(); }

 private:
  friend class SlabStore;
  Slab* next_free_ = nullptr;
  const AlignedBytes bulk_;
  const AlignedBytes records_;
};

/// Owns every slab of a pool, and outlives the pool while a reader holds a
/// slab. Thread-safe: the thread that drops the last view returns the slab. In
/// a forked child slabs are leaked instead: a thread that does not exist there
/// may hold the lock. A function that throws std::bad_alloc leaves the store
/// unchanged.
class SlabStore : public std::enable_shared_from_this<SlabStore> {
 public:
  /// Returns its slab to the store on destruction.
  class Loan {
   public:
    explicit Loan(std::shared_ptr<SlabStore> store)
        : store_(std::move(store)) {}
    ~Loan() {
      if (slab_ != nullptr) store_->PutBack(slab_);
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

   private:
    friend class SlabStore;
    const std::shared_ptr<SlabStore> store_;
    Slab* slab_ = nullptr;
  };

  SlabStore(std::shared_ptr<const RowLayout> layout, int rows, int count);

  /// Returns the smallest free slab of at least `rows` rows, or a new slab if
  /// there is none. Never waits, and looks at one slab of each size at most.
  Slab* Take(int rows);
  /// Returns an empty loan, with all the memory that lending a slab needs.
  std::shared_ptr<Loan> NewLoan();
  /// Returns a shared handle; the slab is free again when the last copy is
  /// destroyed.
  static std::shared_ptr<Slab> Lend(std::shared_ptr<Loan> loan,
                                    Slab* slab) noexcept;
  /// Does the same with a new loan. Throws std::bad_alloc; the slab then still
  /// belongs to the caller.
  std::shared_ptr<Slab> Lend(Slab* slab) { return Lend(NewLoan(), slab); }

  const RowLayout& layout() const { return *layout_; }
  /// Slabs allocated after construction.
  int growth() const;
  /// Address and bytes of every slab.
  std::vector<std::pair<uintptr_t, size_t>> Buffers() const;

 private:
  Slab* NewSlab(int rows);
  void PutBack(Slab* slab) noexcept;

  const std::shared_ptr<const RowLayout> layout_;
  const size_t initial_count_;
  const int64_t process_id_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Slab>> all_;  // guarded by mutex_
  // By rows: the slab of this size that was returned last, which is most likely
  // cached, and the others behind it. Guarded by mutex_.
  std::map<int, Slab*> free_;
};

/// One full batch, as handed to the reader.
class Batch {
 public:
  Batch(std::shared_ptr<const SlabStore> store, std::shared_ptr<Slab> slab,
        int rows) noexcept
      : store_(std::move(store)), slab_(std::move(slab)), rows_(rows) {}

  int rows() const { return rows_; }
  const std::shared_ptr<Slab>& slab() const { return slab_; }
  /// The rows of a bulk field, one after another; valid while slab() is held.
  std::byte* Bulk(size_t field) const {
    return slab_->bulk() + store_->layout().Offset(field, slab_->rows);
  }
  /// A small field of one row.
  const std::byte* At(size_t field, int row) const {
    const RowLayout& layout = store_->layout();
    return slab_->records() + layout.Offset(field, slab_->rows) +
           static_cast<size_t>(row) * layout.record_bytes();
  }
  /// Copies a small field of all rows to `out`.
  void Copy(size_t field, void* out) const;

 private:
  std::shared_ptr<const SlabStore> store_;
  std::shared_ptr<Slab> slab_;
  int rows_;
};

/// A row of the batch with ring index `slot`.
struct RowPosition {
  int slot;
  int row;
};

class BatchRing {
 public:
  /// Sync (`batch_size` == `num_envs`): each request opens a separate batch.
  /// Async: workers claim rows as results arrive.
  BatchRing(std::shared_ptr<SlabStore> store, int num_envs, int batch_size);

  /// Sync, called by the sender: opens a batch of `rows` rows and returns its
  /// slot. Throws std::bad_alloc; then nothing was opened.
  int Open(int rows);
  /// Async, called by a worker with a result: returns the next free row.
  RowPosition Claim();
  /// Points `fields` at the fields of a row.
  void Locate(RowPosition position, std::byte** fields) const;
  /// Called by a worker after it has written the row. Wakes the reader if the
  /// batch is full.
  void Complete(RowPosition position);

  /// Whether the oldest batch is full.
  bool Ready() const;
  /// Waits until Ready() or Close(); false if the deadline passes first.
  bool WaitUntil(std::chrono::steady_clock::time_point deadline);
  /// Takes the oldest batch, which must be full; readers take turns. Throws
  /// std::bad_alloc; then the batch can still be taken.
  Batch Take();
  /// Wakes all waiting threads.
  void Close();

 private:
  struct alignas(kCacheLineBytes) Slot {
    std::atomic<int> written{0};
    std::atomic<int> rows{-1};  // -1: not open
    Slab* slab = nullptr;
  };

  const std::shared_ptr<SlabStore> store_;
  const bool is_sync_;
  const int batch_size_;
  std::vector<Slot> slots_;
  uint64_t opened_ = 0;  // sync: batches opened, by the sender
  alignas(kCacheLineBytes) std::atomic<uint64_t> ticket_{0};  // async: rows
  alignas(kCacheLineBytes) std::atomic<uint64_t> taken_{0};   // batches
  std::atomic<int> waiting_{0};
  std::atomic<bool> closed_{false};
  std::mutex wake_mutex_;
  std::condition_variable wake_;
};

}  // namespace pool
