// The memory in which a worker draws observations. The PPU's lines of the
// newest frame go directly into the resize, row by row of the result; a full
// picture is never stored. Rows over bands that show the same as in the frame
// before (nes::Bands) are neither drawn nor resized, but copied. With
// frame_max, the earlier of the two frames is kept as lines of brightness.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mario/observation.h"
#include "nes/canvas.h"
#include "nes/timing.h"
#include "preprocess/frame.h"

namespace mario {

class Pictures {
 public:
  Pictures(const ObservationSpec& spec, nes::Timing timing);
  // Canvases point into this object.
  Pictures(const Pictures&) = delete;
  Pictures& operator=(const Pictures&) = delete;

  /// The canvas for a frame that is kept until the next one is drawn.
  nes::Canvas* Keep() { return &kept_; }
  /// The canvas for the next frame of an observation; with `maximum`, it is
  /// combined with the kept frame.
  nes::Canvas* Make(Observation* observation, bool maximum);
  /// To be called after the console has run that frame.
  void Finish() { made_.Complete(); }
  /// Makes the next frame from two pictures of palette indices; `previous` may
  /// be null.
  void MakeOf(const uint8_t* indices, const uint8_t* previous,
              Observation* observation);

 private:
  /// Lines of brightness of all channels of all parts.
  class Memory : public nes::Canvas {
   public:
    void Allocate(const Pictures& owner, int lines_kept);

   private:
    std::vector<uint8_t> bytes_;
  };
  /// Lines that become rows of the frames as soon as they are drawn.
  class Rows : public Memory {
   public:
    void Begin(Pictures* owner, Observation* observation,
               const Memory* maximum);
    void Finished(int begin, int end) override;
    void Repeated(uint32_t bands) override;
    void Complete();

   private:
    void Take(int begin, int end);
    void MakeRows(int row, int end, bool repeated);
    bool IsRepeated(int row) const {
      const uint32_t bands = owner_->rows_[static_cast<size_t>(row)].bands;
      return bands != 0 && (bands & ~repeated_) == 0;
    }

    Pictures* owner_ = nullptr;
    Observation* observation_ = nullptr;
    const Memory* maximum_ = nullptr;
    int row_ = 0;    // next row of the frames to make
    int begin_ = 0;  // the lines before it have been taken
    uint32_t repeated_ = 0;
    bool wanted_[preprocess::kSourceHeight];
  };
  using Range = preprocess::FrameMaker::Range;
  /// The lines under a row of the frames, and their bands as bits.
  struct Row {
    Range lines;
    uint32_t bands;
  };

  // Of each part of the observation; nullptr if it is no picture. All have the
  // same rows.
  std::vector<const preprocess::FrameMaker*> makers_;
  std::vector<Row> rows_;
  // The lines under all rows over each band.
  Range near_[nes::kBands] = {};
  // If lines arrive in any order, rows are made when all lines are drawn.
  const bool in_order_;
  bool wanted_[preprocess::kSourceHeight] = {};
  std::vector<uint8_t> colours_;  // (planes, 64)
  Memory kept_;
  Rows made_;
};

}  // namespace mario
