// Observations, in the parts that `obs_type` names: pictures, work RAM, tiles,
// motion. A part is made from the last pictures (see pictures.h) or from RAM
// only. If no part is a picture, nothing is drawn.
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

/// The data that frames of all parts are made from.
struct FrameSources {
  const uint8_t* frames;  // Pictures::frames(), if any part is a picture
  const uint8_t* ram;     // 2 KiB
};

/// The parts of an observation; immutable, shared by all environments.
class ObservationSpec {
 public:
  /// Throws std::invalid_argument on unknown names and on values out of range.
  explicit ObservationSpec(const Config& config);

  /// Returns one field for each part: "obs", or "obs:<part>" if there are
  /// several parts.
  std::vector<pool::Field> Fields() const;
  /// How many of the last pictures the observation needs: 0, 1 or 2.
  int pictures() const { return pictures_; }
  /// The frame makers of the parts that are pictures.
  std::vector<const preprocess::FrameMaker*> makers() const;
  /// Size of an observation: all frames of all parts.
  size_t bytes() const;
  /// Whether the bytes, which Observation::CopyTo may have written, contain
  /// only codes that exist.
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

/// The observation of one environment: the last frames of each part. A copy of
/// the object copies the frames.
class Observation {
 public:
  explicit Observation(const ObservationSpec& spec);

  /// Adds a frame to each part and drops the oldest frame of each part.
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
