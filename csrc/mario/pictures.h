// What a worker draws observations with. The newest frame goes from the PPU's
// lines straight into the resize, row by row of the result: no picture of it is
// ever there. Of two frames whose maximum counts, the one that is run first is
// kept as lines of brightness.
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
  // Canvases point into it.
  Pictures(const Pictures&) = delete;
  Pictures& operator=(const Pictures&) = delete;

  /// For a frame that is to be kept until the other one is drawn.
  nes::Canvas* Keep() { return &kept_; }
  /// For a frame to be made; with `maximum`, of it and the one that was kept.
  nes::Canvas* Make(bool maximum);
  /// To be called when that frame has been run.
  void Finish() { made_.Complete(); }
  /// Makes the frames of two pictures of palette indices instead; `previous`
  /// may be null.
  void MakeOf(const uint8_t* indices, const uint8_t* previous);

  /// The frames made last: those of all parts of the observation that are
  /// pictures, one after the other.
  const uint8_t* frames() const { return frames_.data(); }

 private:
  /// Lines of brightness, those of all channels of all parts.
  class Memory : public nes::Canvas {
   public:
    void Allocate(const Pictures& owner, int lines_kept);

   private:
    std::vector<uint8_t> bytes_;
  };
  /// Lines that become rows of the frames as soon as they are there.
  class Rows : public Memory {
   public:
    void Begin(Pictures* owner, const Memory* maximum);
    void Finished(int begin, int end) override;
    void Complete();

   private:
    void Take(int begin, int end);

    Pictures* owner_ = nullptr;
    const Memory* maximum_ = nullptr;
    int row_ = 0;    // of the frames, the next to be made
    int begin_ = 0;  // the lines before it have been taken
  };

  std::vector<const preprocess::FrameMaker*> makers_;
  // Where lines come in any order, rows are made when all are there.
  const bool in_order_;
  bool wanted_[preprocess::kSourceHeight] = {};
  std::vector<uint8_t> colours_;  // (planes, 64)
  std::vector<uint8_t> frames_;
  Memory kept_;
  Rows made_;
};

}  // namespace mario
