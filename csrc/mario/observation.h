// What an environment shows of itself, in the parts that `obs_type` names:
// pictures, work RAM, tiles, motion. A part is made of the last pictures (see
// pictures.h) or of RAM alone; where no part wants pictures, nothing is drawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mario/config.h"
#include "pool/spec.h"
#include "preprocess/frame.h"
#include "preprocess/frame_stack.h"

namespace mario {

/// What a frame of each part is made from.
struct FrameSources {
  const uint8_t* frames;  // Pictures::frames(), if any part is a picture
  const uint8_t* ram;     // 2 KiB
};

/// The parts of an observation; immutable, shared by all environments.
class ObservationSpec {
 public:
  /// Throws std::invalid_argument on options that it does not know or take.
  explicit ObservationSpec(const Config& config);

  /// One field for each part: "obs", or "obs:<part>" where there are several.
  std::vector<pool::Field> Fields() const;
  /// How many of the last pictures it needs: 0, 1 or 2.
  int pictures() const { return pictures_; }
  /// What makes frames of them, for each part that is a picture.
  std::vector<const preprocess::FrameMaker*> makers() const;
  /// Of an observation: all frames of all parts.
  size_t bytes() const;
  /// Whether bytes that Observation::CopyTo may have written hold only codes
  /// that there are.
  bool IsPlausible(const uint8_t* frames) const;

 private:
  friend class Observation;

  enum class Kind : uint8_t { kGray, kRgb, kRam, kTiles, kMotion };
  struct Part {
    Kind kind;
    pool::Field field;
    int frames;  // in its stack
    size_t frame_bytes;
    std::shared_ptr<const preprocess::FrameMaker> maker;  // of pictures
  };

  Part MakePart(Kind kind, const Config& config) const;
  static void MakeFrame(const Part& part, FrameSources* sources, uint8_t* out);

  std::vector<Part> parts_;
  int pictures_ = 0;
};

/// The observation of one environment: for each part its last frames. To copy
/// it is to copy them.
class Observation {
 public:
  explicit Observation(const ObservationSpec& spec);

  /// Adds the newest frame of each part; the oldest ones go.
  void Push(FrameSources sources);
  /// Makes every frame equal to the newest.
  void FillWithNewest();
  /// Writes part i to the row's field i.
  void Write(const pool::Row& row) const;
  size_t parts() const { return stacks_.size(); }

  /// Copies all frames of all parts, oldest first.
  void CopyTo(uint8_t* out) const;
  /// The inverse of CopyTo.
  void CopyFrom(const uint8_t* in);

 private:
  const ObservationSpec* spec_;
  std::vector<preprocess::FrameStack> stacks_;
};

}  // namespace mario
