// Stores lines of brightness and makes frames from them.
#include "mario/pictures.h"

#include <algorithm>

namespace mario {

using preprocess::kLineStride;
using preprocess::kSourceHeight;
using preprocess::kSourceWidth;

static_assert(kLineStride >= kSourceWidth + 2 * nes::Canvas::kMargin);

Pictures::Pictures(const ObservationSpec& spec, nes::Timing timing)
    : makers_(spec.makers()), in_order_(timing == nes::Timing::kConsole) {
  if (makers_.empty()) return;
  size_t bytes = 0;
  int lines_kept = 0;
  for (const preprocess::FrameMaker* maker : makers_) {
    colours_.insert(colours_.end(), maker->colours(),
                    maker->colours() + maker->channels() * 64);
    for (int y = 0; y < kSourceHeight; ++y) wanted_[y] |= maker->NeedsLine(y);
    lines_kept = std::max(lines_kept, maker->lines_kept());
    bytes += maker->frame_bytes();
  }
  frames_.resize(bytes);
  made_.Allocate(*this, in_order_ ? lines_kept : preprocess::kMostLinesKept);
  if (spec.pictures() == 2) kept_.Allocate(*this, preprocess::kMostLinesKept);
}

void Pictures::Memory::Allocate(const Pictures& owner, int lines_kept) {
  planes = static_cast<int>(owner.colours_.size() / 64);
  stride = kLineStride;
  plane_bytes = static_cast<size_t>(lines_kept) * kLineStride;
  // Lines are aligned for vector instructions, with free space before the first
  // line.
  constexpr size_t kAlignment = 64;
  bytes_.resize(static_cast<size_t>(planes) * plane_bytes + 2 * kAlignment);
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
  lines = bytes_.data() + (2 * kAlignment - address % kAlignment);
  line_mask = static_cast<unsigned>(lines_kept) - 1;
  has_margins = true;
  colours = owner.colours_.data();
  wanted = owner.wanted_;
}

nes::Canvas* Pictures::Make(bool maximum) {
  made_.Begin(this, maximum ? &kept_ : nullptr);
  return &made_;
}

void Pictures::MakeOf(const uint8_t* indices, const uint8_t* previous) {
  uint8_t* out = frames_.data();
  for (const preprocess::FrameMaker* maker : makers_) {
    maker->Make(indices, previous, out);
    out += maker->frame_bytes();
  }
}

void Pictures::Rows::Begin(Pictures* owner, const Memory* maximum) {
  owner_ = owner;
  maximum_ = maximum;
  row_ = begin_ = 0;
}

// Lines are taken a few at a time, because reading data that has just been
// stored is slow, and so is switching between drawing and resizing.
void Pictures::Rows::Finished(int /*begin*/, int end) {
  if (!owner_->in_order_ || end - begin_ < preprocess::kLinesAtOnce) return;
  Take(begin_, end);
  begin_ = end;
}

// This also makes the rows that no line of the picture changes.
void Pictures::Rows::Complete() {
  Take(owner_->in_order_ ? begin_ : 0, kSourceHeight);
}

void Pictures::Rows::Take(int begin, int end) {
  if (maximum_ != nullptr) {
    for (int plane = 0; plane < planes; ++plane) {
      for (int line = begin; line < end; ++line) {
        if (!wanted[line]) continue;  // its memory may hold another line by now
        uint8_t* to = at(plane, line);
        const uint8_t* other = maximum_->at(plane, line);
        for (int x = 0; x < kSourceWidth; ++x)
          to[x] = std::max(to[x], other[x]);
      }
    }
  }
  uint8_t* out = owner_->frames_.data();
  int plane = 0, row = row_;
  for (const preprocess::FrameMaker* maker : owner_->makers_) {
    row =
        maker->MakeRows(row_, end, {at(plane, 0), plane_bytes, line_mask}, out);
    plane += maker->channels();
    out += maker->frame_bytes();
  }
  row_ = row;
}

}  // namespace mario
