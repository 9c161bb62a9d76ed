// Copies into and out of the ring.
#include "preprocess/frame_stack.h"

#include <cstring>

namespace preprocess {

void FrameStack::FillWithNewest() {
  const int newest = oldest_ == 0 ? frames_ - 1 : oldest_ - 1;
  const uint8_t* source = data_.data() + newest * frame_bytes_;
  for (int i = 0; i < frames_; ++i) {
    if (i == newest) continue;
    std::memcpy(data_.data() + i * frame_bytes_, source, frame_bytes_);
  }
}

void FrameStack::CopyTo(uint8_t* out) const {
  const size_t head = oldest_ * frame_bytes_;
  std::memcpy(out, data_.data() + head, data_.size() - head);
  std::memcpy(out + data_.size() - head, data_.data(), head);
}

void FrameStack::CopyFrom(const uint8_t* in) {
  oldest_ = 0;
  std::memcpy(data_.data(), in, data_.size());
}

}  // namespace preprocess
