// Observations, in the parts that `obs_type` names: pictures, work RAM, tiles,
// motion. Pictures make their parts in place (see pictures.h), the other parts
// are made from RAM. If no part is a picture, nothing is drawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "mario/config.h"
#include "nes/canvas.h"
#include "pool/spec.h"
#include "preprocess/frame.h"

namespace mario {

/// The last `frames` frames of one environment, in one block of memory: a
/// ring that is copied out from the oldest to the newest.
class FrameStack {
 public:
  FrameStack(int frames, size_t frame_bytes)
      : frames_(frames),
        frame_bytes_(frame_bytes),
        data_(static_cast<size_t>(frames) * frame_bytes) {}

  /// The memory of the oldest frame, which Push makes the newest.
  uint8_t* next() { return data_.data() + oldest_ * frame_bytes_; }
  const uint8_t* newest() const { return data_.data() + last() * frame_bytes_; }
  void Push() { oldest_ = oldest_ + 1 == frames_ ? 0 : oldest_ + 1; }
  /// Makes every frame equal to the newest.
  void FillWithNewest() {
    const uint8_t* source = newest();
    for (int i = 0; i < frames_; ++i) {
      if (i == last()) continue;
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
  int last() const { return (oldest_ == 0 ? frames_ : oldest_) - 1; }

  int frames_;
  size_t frame_bytes_;
  int oldest_ = 0;
  std::vector<uint8_t> data_;
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
  /// The frame maker of each part; nullptr if it is no picture.
  std::vector<const preprocess::FrameMaker*> makers() const;
  /// Size of an observation: all frames of all parts.
  size_t bytes() const;
  /// Whether the bytes, which Observation::CopyTo may have written, contain
  /// only codes that exist.
  bool IsPlausible(const uint8_t* frames) const;

 private:
  friend class Observation;

  enum class Kind : uint8_t {
    kGray,
    kRgb,
    kRam,
    kTiles,
    kMotion,
    kMotionWorld
  };
  struct Part {
    Kind kind;
    pool::Field field;
    int frames;  // in its stack
    size_t frame_bytes;
    std::shared_ptr<const preprocess::FrameMaker> maker;  // of pictures
  };

  Part MakePart(Kind kind, const Config& config) const;

  std::vector<Part> parts_;
  int pictures_ = 0;
};

/// The observation of one environment: the last frames of each part. A copy of
/// the object copies the frames.
class Observation {
 public:
  explicit Observation(const ObservationSpec& spec);

  /// Adds a frame to each part and drops the oldest frame of each part. The
  /// frames of pictures are in next(), the others are made from work RAM.
  void Push(const uint8_t* ram);
  /// Makes every frame equal to the newest.
  void FillWithNewest();
  /// Writes part i to the row's field i.
  void Write(const pool::Row& row) const;
  size_t parts() const { return stacks_.size(); }
  /// The memory in which part i, a picture, is made before Push.
  uint8_t* next(size_t i) { return stacks_[i].next(); }
  const uint8_t* newest(size_t i) const { return stacks_[i].newest(); }
  /// What the newest picture shows, from the drawing of the newest to the
  /// drawing of the next; to be forgotten if a drawn picture is not pushed.
  nes::Bands& bands() { return bands_; }

  /// Copies all frames of all parts, oldest first.
  void CopyTo(uint8_t* out) const;
  /// The inverse of CopyTo.
  void CopyFrom(const uint8_t* in);

 private:
  const ObservationSpec* spec_;
  std::vector<FrameStack> stacks_;
  nes::Bands bands_;
};

}  // namespace mario
