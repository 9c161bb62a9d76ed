// Memory of batches and their way through the ring; see batch_ring.h.
#include "pool/batch_ring.h"

#include <cassert>
#include <cstring>
#include <new>
#include <utility>

#include "pool/threads.h"

namespace pool {
namespace {

constexpr size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

RowLayout::RowLayout(std::vector<Field> fields)
    : fields_(std::move(fields)),
      record_offset_(fields_.size()),
      bulk_offset_(fields_.size()) {
  for (size_t i = 0; i < fields_.size(); ++i) {
    const size_t bytes = fields_[i].RowBytes();
    row_bytes_.push_back(bytes);
    if (fields_[i].bulk) {
      // Blocks of 8-byte multiples keep every dtype aligned in any slab.
      bulk_offset_[i] = bulk_row_bytes_;
      bulk_row_bytes_ += RoundUp(bytes, 8);
    } else {
      record_offset_[i] = RoundUp(record_bytes_, SizeOf(fields_[i].dtype));
      record_bytes_ = record_offset_[i] + bytes;
    }
  }
  record_bytes_ = RoundUp(record_bytes_, kCacheLineBytes);
}

size_t RowLayout::SlabBytes(int rows) const {
  return RoundUp(bulk_row_bytes_ * static_cast<size_t>(rows), PageBytes());
}

AlignedBytes::AlignedBytes(size_t bytes, size_t alignment)
    : alignment_(alignment),
      data_(bytes == 0 ? nullptr
                       : static_cast<std::byte*>(::operator new(
                             bytes, std::align_val_t{alignment}))) {}

AlignedBytes::~AlignedBytes() {
  if (data_) ::operator delete(data_, std::align_val_t{alignment_});
}

Slab::Slab(const RowLayout& layout, int row_count)
    : rows(row_count),
      bulk_bytes(layout.SlabBytes(row_count)),
      bulk_(bulk_bytes, PageBytes()),
      records_(layout.record_bytes() * static_cast<size_t>(row_count),
               kCacheLineBytes) {}

SlabStore::SlabStore(std::shared_ptr<const RowLayout> layout, int rows,
                     int count)
    : layout_(std::move(layout)),
      initial_count_(static_cast<size_t>(count)),
      process_id_(ProcessId()) {
  for (int i = 0; i < count; ++i) {
    PutBack(NewSlab(rows));
  }
}

Slab* SlabStore::Take(int rows) {
  const std::lock_guard lock(mutex_);
  for (auto at = free_.lower_bound(rows); at != free_.end(); ++at) {
    Slab* const slab = at->second;
    if (slab == nullptr) continue;
    at->second = slab->next_free_;
    return slab;
  }
  return NewSlab(rows);
}

Slab* SlabStore::NewSlab(int rows) {
  free_.try_emplace(rows);  // the slab's place, so that PutBack() cannot fail
  all_.push_back(std::make_unique<Slab>(*layout_, rows));
  return all_.back().get();
}

std::shared_ptr<SlabStore::Loan> SlabStore::NewLoan() {
  return std::make_shared<Loan>(shared_from_this());
}

std::shared_ptr<Slab> SlabStore::Lend(std::shared_ptr<Loan> loan,
                                      Slab* slab) noexcept {
  loan->slab_ = slab;
  return {std::move(loan), slab};
}

void SlabStore::PutBack(Slab* slab) noexcept {
  if (ProcessId() != process_id_) return;
  const std::lock_guard lock(mutex_);
  Slab*& last = free_.find(slab->rows)->second;
  slab->next_free_ = std::exchange(last, slab);
}

int SlabStore::growth() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(all_.size() - initial_count_);
}

std::vector<std::pair<uintptr_t, size_t>> SlabStore::Buffers() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<uintptr_t, size_t>> buffers;
  for (const auto& slab : all_) {
    if (slab->bulk_bytes == 0) continue;
    buffers.emplace_back(reinterpret_cast<uintptr_t>(slab->bulk()),
                         slab->bulk_bytes);
  }
  return buffers;
}

void Batch::Copy(size_t field, void* out) const {
  const RowLayout& layout = store_->layout();
  const size_t bytes = layout.row_bytes(field);
  const size_t stride = layout.record_bytes();
  const std::byte* from = At(field, 0);
  std::byte* to = static_cast<std::byte*>(out);
  for (int row = 0; row < rows_; ++row, from += stride, to += bytes) {
    switch (bytes) {  // the common sizes as single moves
      case 1:
        *to = *from;
        break;
      case 4:
        std::memcpy(to, from, 4);
        break;
      case 8:
        std::memcpy(to, from, 8);
        break;
      default:
        std::memcpy(to, from, bytes);
    }
  }
}

// Async: at most num_envs rows are unread, so they span at most ceil(num_envs /
// batch_size) batches; one more is allowed for. Sync: every open batch contains
// at least one environment that no other batch contains.
BatchRing::BatchRing(std::shared_ptr<SlabStore> store, int num_envs,
                     int batch_size)
    : store_(std::move(store)),
      is_sync_(batch_size == num_envs),
      batch_size_(batch_size),
      slots_(static_cast<size_t>(
          is_sync_ ? num_envs : (num_envs + batch_size - 1) / batch_size + 1)) {
  if (is_sync_) return;
  for (Slot& slot : slots_) {
    slot.slab = store_->Take(batch_size_);
    slot.rows.store(batch_size_, std::memory_order_relaxed);
  }
}

int BatchRing::Open(int rows) {
  const size_t index = opened_ % slots_.size();
  Slot& slot = slots_[index];
  assert(slot.rows.load() == -1);
  slot.slab = store_->Take(rows);  // may throw: then nothing was opened
  ++opened_;
  slot.written.store(0, std::memory_order_relaxed);
  slot.rows.store(rows, std::memory_order_release);
  return static_cast<int>(index);
}

RowPosition BatchRing::Claim() {
  // Acquire and release: a slow worker may be the first to write into a slot
  // that the reader has just renewed. It sees the renewal through earlier
  // tickets of workers whose tasks were sent after the renewal.
  const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
  const auto batch = static_cast<uint64_t>(batch_size_);
  return {static_cast<int>(ticket / batch % slots_.size()),
          static_cast<int>(ticket % batch)};
}

void BatchRing::Locate(RowPosition position, std::byte** fields) const {
  const Slab& slab = *slots_[static_cast<size_t>(position.slot)].slab;
  const RowLayout& layout = store_->layout();
  const auto row = static_cast<size_t>(position.row);
  std::byte* record = slab.records() + row * layout.record_bytes();
  for (size_t i = 0; i < layout.fields().size(); ++i) {
    const size_t offset = layout.Offset(i, slab.rows);
    fields[i] = layout.fields()[i].bulk
                    ? slab.bulk() + offset + row * layout.row_bytes(i)
                    : record + offset;
  }
}

void BatchRing::Complete(RowPosition position) {
  Slot& slot = slots_[static_cast<size_t>(position.slot)];
  const int rows = slot.rows.load(std::memory_order_relaxed);
  if (slot.written.fetch_add(1, std::memory_order_seq_cst) + 1 != rows) return;
  if (waiting_.load(std::memory_order_seq_cst) == 0) return;
  {
    const std::lock_guard lock(wake_mutex_);
  }
  wake_.notify_all();
}

bool BatchRing::Ready() const {
  const uint64_t taken = taken_.load(std::memory_order_acquire);
  const Slot& slot = slots_[taken % slots_.size()];
  return slot.written.load(std::memory_order_seq_cst) ==
         slot.rows.load(std::memory_order_acquire);
}

bool BatchRing::WaitUntil(std::chrono::steady_clock::time_point deadline) {
  const auto done = [this] {
    return closed_.load(std::memory_order_relaxed) || Ready();
  };
  // The reader does not spin: it would take a core from the workers that it
  // waits for (on a busy machine with 2 cores a step of one env took 60 us, not
  // 9 us).
  if (done()) return true;
  std::unique_lock lock(wake_mutex_);
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  const bool in_time = wake_.wait_until(lock, deadline, done);
  waiting_.fetch_sub(1, std::memory_order_seq_cst);
  return in_time;
}

Batch BatchRing::Take() {
  const uint64_t taken = taken_.load(std::memory_order_relaxed);
  Slot& slot = slots_[taken % slots_.size()];
  const int rows = slot.rows.load(std::memory_order_relaxed);
  assert(Ready());
  // The step that may fail comes first, so that after a failure the batch can
  // still be taken.
  auto loan = store_->NewLoan();
  Slab* next = is_sync_ ? nullptr : store_->Take(batch_size_);
  Batch batch(store_, SlabStore::Lend(std::move(loan), slot.slab), rows);
  slot.slab = next;
  slot.written.store(0, std::memory_order_relaxed);
  if (is_sync_) slot.rows.store(-1, std::memory_order_release);
  taken_.store(taken + 1, std::memory_order_release);
  return batch;
}

void BatchRing::Close() {
  const std::lock_guard lock(wake_mutex_);
  closed_.store(true, std::memory_order_relaxed);
  wake_.notify_all();
}

}  // namespace pool
