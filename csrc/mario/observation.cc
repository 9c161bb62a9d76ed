// The parts of an observation: their names, their shapes, and how their frames
// are made.
#include "mario/observation.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "mario/tiles.h"
#include "nes/state.h"

namespace mario {

namespace {

constexpr int kRamBytes = nes::kRamBytes;
// The names of ObservationSpec::Kind, in its order.
constexpr const char* kKinds[] = {"gray",  "rgb",    "ram",
                                  "tiles", "motion", "motion_world"};

[[noreturn]] void RefuseType(const std::string& given, const std::string& why) {
  throw std::invalid_argument(
      "obs_type='" + given + "' is not possible: " + why +
      "; choose gray, rgb, ram, tiles, motion or motion_world, or several of "
      "them such as ['tiles', 'motion']; text is possible alone, in MarioEnv "
      "and gymnasium.make");
}

/// Splits the option obs_type into a list: 'tiles+motion' -> 'tiles', 'motion'.
std::vector<std::string> SplitNames(const std::string& text) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

preprocess::FrameSpec MakeFrameSpec(const Config& config, bool gray) {
  preprocess::FrameSpec spec;
  spec.height = config.img_height;
  spec.width = config.img_width;
  spec.gray = gray;
  spec.area = config.use_inter_area_resize;
  const auto hud = preprocess::HudFromName(config.hud);
  if (!hud) {
    throw std::invalid_argument("hud='" + config.hud +
                                "' is not possible; choose keep, mask or crop");
  }
  spec.hud = *hud;
  return spec;
}

}  // namespace

ObservationSpec::ObservationSpec(const Config& config) {
  // The options are checked even if no part is a picture, so that a wrong value
  // is always reported.
  const preprocess::FrameMaker checked(MakeFrameSpec(config, true));
  const std::string& types = config.obs_type;
  for (std::string name : SplitNames(types)) {
    if (name == "gray" && !config.gray_scale) name = "rgb";
    const auto* known = std::find(std::begin(kKinds), std::end(kKinds), name);
    if (known == std::end(kKinds)) {
      RefuseType(types,
                 name.empty() ? "a name is empty" : "there is no " + name);
    }
    const auto kind = static_cast<Kind>(known - std::begin(kKinds));
    for (const Part& part : parts_) {
      if (part.kind == kind) RefuseType(types, "it names " + name + " twice");
    }
    parts_.push_back(MakePart(kind, config));
    if (kind == Kind::kGray || kind == Kind::kRgb) {
      pictures_ = config.frame_max ? 2 : 1;
    }
  }
  if (parts_.size() == 1) return;
  for (Part& part : parts_) {
    part.field.name = std::string("obs:") + kKinds[static_cast<int>(part.kind)];
  }
}

ObservationSpec::Part ObservationSpec::MakePart(Kind kind,
                                                const Config& config) const {
  Part part{kind,
            {"obs", pool::DType::kUint8, {}, 0, 255, /*bulk=*/true},
            config.stack_num,
            kTileRows * kTileColumns,
            nullptr};
  switch (kind) {
    case Kind::kGray:
    case Kind::kRgb: {
      part.maker = std::make_shared<const preprocess::FrameMaker>(
          MakeFrameSpec(config, kind == Kind::kGray));
      part.field.shape = {config.stack_num * part.maker->channels(),
                          config.img_height, config.img_width};
      part.frame_bytes = part.maker->frame_bytes();
      break;
    }
    case Kind::kRam:
      part.frames = 1;
      part.frame_bytes = kRamBytes;
      part.field.shape = {kRamBytes};
      break;
    case Kind::kTiles:
      part.field.shape = {config.stack_num, kTileRows, kTileColumns};
      part.field.high = kTileCount - 1;
      break;
    case Kind::kMotion:
    case Kind::kMotionWorld:
      part.frames = 1;
      part.frame_bytes = kMotionRows * kMotionColumns;
      part.field.dtype = pool::DType::kInt8;
      part.field.shape = {kMotionRows, kMotionColumns};
      part.field.low = -128, part.field.high = 127;
      break;
  }
  return part;
}

std::vector<pool::Field> ObservationSpec::Fields() const {
  std::vector<pool::Field> fields;
  for (const Part& part : parts_) fields.push_back(part.field);
  return fields;
}

size_t ObservationSpec::bytes() const {
  size_t sum = 0;
  for (const Part& part : parts_) {
    sum += static_cast<size_t>(part.frames) * part.frame_bytes;
  }
  return sum;
}

bool ObservationSpec::IsPlausible(const uint8_t* frames) const {
  for (const Part& part : parts_) {
    const uint8_t* end =
        frames + static_cast<size_t>(part.frames) * part.frame_bytes;
    if (part.kind == Kind::kTiles &&
        *std::max_element(frames, end) >= kTileCount) {
      return false;
    }
    frames = end;
  }
  return true;
}

std::vector<const preprocess::FrameMaker*> ObservationSpec::makers() const {
  std::vector<const preprocess::FrameMaker*> makers;
  for (const Part& part : parts_) makers.push_back(part.maker.get());
  return makers;
}

Observation::Observation(const ObservationSpec& spec) : spec_(&spec) {
  for (const auto& part : spec.parts_) {
    stacks_.emplace_back(part.frames, part.frame_bytes);
  }
}

void Observation::Push(const uint8_t* ram) {
  for (size_t i = 0; i < stacks_.size(); ++i) {
    uint8_t* const out = stacks_[i].next();
    switch (spec_->parts_[i].kind) {
      case ObservationSpec::Kind::kGray:
      case ObservationSpec::Kind::kRgb:
        break;
      case ObservationSpec::Kind::kRam:
        std::memcpy(out, ram, kRamBytes);
        break;
      case ObservationSpec::Kind::kTiles:
        MakeTiles(ram, out);
        break;
      case ObservationSpec::Kind::kMotion:
        MakeMotion(ram, reinterpret_cast<int8_t*>(out));
        break;
      case ObservationSpec::Kind::kMotionWorld:
        MakeMotion(ram, reinterpret_cast<int8_t*>(out));
        MakeWorld(ram, reinterpret_cast<int8_t*>(out));
        break;
    }
    stacks_[i].Push();
  }
}

void Observation::FillWithNewest() {
  for (auto& stack : stacks_) stack.FillWithNewest();
}

void Observation::Write(const pool::Row& row) const {
  for (size_t i = 0; i < stacks_.size(); ++i) {
    stacks_[i].CopyTo(row.at<uint8_t>(i));
  }
}

void Observation::CopyTo(uint8_t* out) const {
  for (const auto& stack : stacks_) {
    stack.CopyTo(out);
    out += stack.bytes();
  }
}

void Observation::CopyFrom(const uint8_t* in) {
  bands_.known = 0;
  for (auto& stack : stacks_) {
    stack.CopyFrom(in);
    in += stack.bytes();
  }
}

}  // namespace mario
