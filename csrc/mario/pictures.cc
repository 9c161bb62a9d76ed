// Stores lines of brightness and makes frames from them.
#include "mario/pictures.h"

#include <algorithm>
#include <cstring>

namespace mario {

using preprocess::FrameMaker;
using preprocess::kLineStride;
using preprocess::kSourceHeight;
using preprocess::kSourceWidth;

static_assert(kLineStride >= kSourceWidth + 2 * nes::Canvas::kMargin);

Pictures::Pictures(const ObservationSpec& spec, nes::Timing timing)
    : makers_(spec.makers()), in_order_(timing == nes::Timing::kConsole) {
  int lines_kept = 0;
  for (const FrameMaker* maker : makers_) {
    if (maker == nullptr) continue;
    colours_.insert(colours_.end(), maker->colours(),
                    maker->colours() + maker->channels() * 64);
    lines_kept = std::max(lines_kept, maker->lines_kept());
    if (!rows_.empty()) continue;
    for (int i = 0; i < maker->height(); ++i) {
      const auto [begin, end] = maker->LinesUnder(i);
      std::fill(wanted_ + begin, wanted_ + end, true);
      const uint32_t before = (1u << begin / 8) - 1;
      const uint32_t up_to = begin == end ? before : (2u << (end - 1) / 8) - 1;
      rows_.push_back({{begin, end}, up_to & ~before});
      for (int band = begin / 8; band * 8 < end; ++band) {
        Range& near = near_[band];
        if (near.end == 0) near.begin = begin;
        near.end = end;
      }
    }
  }
  if (rows_.empty()) return;
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

nes::Canvas* Pictures::Make(Observation* observation, bool maximum) {
  made_.Begin(this, observation, maximum ? &kept_ : nullptr);
  return &made_;
}

void Pictures::MakeOf(const uint8_t* indices, const uint8_t* previous,
                      Observation* observation) {
  for (size_t i = 0; i < makers_.size(); ++i) {
    if (makers_[i] == nullptr) continue;
    makers_[i]->Make(indices, previous, observation->next(i));
  }
  observation->bands().known = 0;
}

void Pictures::Rows::Begin(Pictures* owner, Observation* observation,
                           const Memory* maximum) {
  owner_ = owner;
  observation_ = observation;
  maximum_ = maximum;
  row_ = begin_ = 0;
  repeated_ = 0;
  wanted = owner->wanted_;
  before =
      owner->in_order_ && maximum == nullptr ? &observation->bands() : nullptr;
}

// Lines are taken a few at a time, because reading data that has just been
// stored is slow, and so is switching between drawing and resizing.
void Pictures::Rows::Finished(int /*begin*/, int end) {
  if (!owner_->in_order_ || end - begin_ < preprocess::kLinesAtOnce) return;
  Take(begin_, end);
  begin_ = end;
}

// A row that is over another band, too, needs all of its lines.
void Pictures::Rows::Repeated(uint32_t bands) {
  repeated_ |= bands;
  std::memset(wanted_, false, sizeof(wanted_));
  Range run = {0, 0};  // of wanted lines
  for (int band = 0; band < nes::kBands; ++band) {
    const Range& near = owner_->near_[band];
    if (repeated_ >> band & 1 || near.end == 0) continue;
    if (near.begin > run.end) {
      std::fill(wanted_ + run.begin, wanted_ + run.end, true);
      run.begin = near.begin;
    }
    run.end = near.end;
  }
  std::fill(wanted_ + run.begin, wanted_ + run.end, true);
  wanted = wanted_;
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
  const auto& rows = owner_->rows_;
  const auto stop = [&](int row) {
    return static_cast<size_t>(row) == rows.size() ||
           rows[static_cast<size_t>(row)].lines.end > end;
  };
  while (!stop(row_)) {
    const int first = row_;
    const bool repeated = IsRepeated(first);
    while (!stop(row_) && IsRepeated(row_) == repeated) ++row_;
    MakeRows(first, row_, repeated);
  }
}

// Makes the rows [row, end) of the frames of all parts.
void Pictures::Rows::MakeRows(int row, int end, bool repeated) {
  int plane = 0;
  for (size_t i = 0; i < owner_->makers_.size(); ++i) {
    const FrameMaker* maker = owner_->makers_[i];
    if (maker == nullptr) continue;
    uint8_t* const out = observation_->next(i);
    if (repeated) {
      maker->CopyRows(row, end, observation_->newest(i), out);
    } else {
      maker->MakeRows(row, end, {at(plane, 0), plane_bytes, line_mask}, out);
    }
    plane += maker->channels();
  }
}

}  // namespace mario
