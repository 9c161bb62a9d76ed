// The stack of an environment's last frames: a ring that is copied out from the
// oldest to the newest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace preprocess {

/// The last `frames` frames of one environment, in one block of memory.
class FrameStack {
 public:
  FrameStack(int frames, size_t frame_bytes)
      : frames_(frames),
        frame_bytes_(frame_bytes),
        data_(static_cast<size_t>(frames) * frame_bytes) {}

  /// Drops the oldest frame; returns the memory for the newest frame.
  uint8_t* Push() {
    uint8_t* slot = data_.data() + oldest_ * frame_bytes_;
    oldest_ = oldest_ + 1 == frames_ ? 0 : oldest_ + 1;
    return slot;
  }
  /// Makes every frame equal to the newest.
  void FillWithNewest() {
    const int newest = oldest_ == 0 ? frames_ - 1 : oldest_ - 1;
    const uint8_t* source = data_.data() + newest * frame_bytes_;
    for (int i = 0; i < frames_; ++i) {
      if (i == newest) continue;
      std::memcpy(data_.data() + i * frame_bytes_, source, frame_bytes_);
    }
  }

  size_t bytes() const { return data_.size(); }
  /// Copies all frames, oldest first.
  void CopyTo(uint8_t* out) const {
    const size_t head = oldest_ * frame_bytes_;
    std::memcpy(out, data_.data() + head, data_.size() - head);
    std::memcpy(out + data_.size() - head, data_.data(), head);
  }
  /// The inverse of CopyTo.
  void CopyFrom(const uint8_t* in) {
    oldest_ = 0;
    std::memcpy(data_.data(), in, data_.size());
  }

 private:
  int frames_;
  size_t frame_bytes_;
  int oldest_ = 0;
  std::vector<uint8_t> data_;
};

}  // namespace preprocess
