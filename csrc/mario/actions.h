// Action tables that map a discrete action to a byte of buttons. The three sets
// have the order of gym-super-mario-bros 7.4.0 (gym_super_mario_bros/actions).
#pragma once

#include <cctype>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "nes/console.h"

namespace mario {

inline constexpr uint8_t kComplexMovement[] = {
    0,
    nes::kRight,
    nes::kRight | nes::kA,
    nes::kRight | nes::kB,
    nes::kRight | nes::kA | nes::kB,
    nes::kA,
    nes::kLeft,
    nes::kLeft | nes::kA,
    nes::kLeft | nes::kB,
    nes::kLeft | nes::kA | nes::kB,
    nes::kDown,
    nes::kUp,
};
// Each smaller set is a prefix of the largest.
inline constexpr int kRightOnlyActions = 5;
inline constexpr int kSimpleActions = 7;
inline constexpr int kComplexActions = 12;
inline constexpr int kRawActions = 256;

/// Returns the button byte of one action: button names joined by '+', spaces or
/// commas, in any case; 'NOOP' presses nothing. Throws std::invalid_argument on
/// other words.
inline uint8_t ParseButtons(const std::string& text) {
  struct Name {
    const char* name;
    uint8_t button;
  };
  static constexpr Name kNames[] = {
      {"a", nes::kA},         {"b", nes::kB},         {"select", nes::kSelect},
      {"start", nes::kStart}, {"up", nes::kUp},       {"down", nes::kDown},
      {"left", nes::kLeft},   {"right", nes::kRight}, {"noop", 0},
  };
  uint8_t buttons = 0;
  bool any = false;
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ' ';
    if (c != '+' && c != ' ' && c != ',') {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (word.empty()) continue;
    const Name* found = nullptr;
    for (const Name& entry : kNames) {
      if (word == entry.name) found = &entry;
    }
    if (found == nullptr) {
      throw std::invalid_argument(
          "unknown button '" + word + "' in action '" + text +
          "'; buttons are A, B, select, start, up, down, left, right, joined "
          "by '+', or NOOP");
    }
    buttons |= found->button;
    any = true;
    word.clear();
  }
  if (!any) {
    throw std::invalid_argument(
        "an action of custom_actions is empty; write 'NOOP' for no button");
  }
  return buttons;
}

/// Returns the button bytes of a named action set, or of `custom` when it is
/// not empty; the name must be valid in both cases. Throws
/// std::invalid_argument on an unknown set or button.
inline std::vector<uint8_t> ActionTable(
    const std::string& action_set, const std::vector<std::string>& custom) {
  int count = 0;
  if (action_set == "raw") count = kRawActions;
  if (action_set == "right_only") count = kRightOnlyActions;
  if (action_set == "simple") count = kSimpleActions;
  if (action_set == "complex") count = kComplexActions;
  if (count == 0) {
    throw std::invalid_argument(
        "action_set '" + action_set +
        "' is unknown; choose right_only, simple, complex or raw, or give "
        "custom_actions");
  }
  std::vector<uint8_t> table;
  if (!custom.empty()) {
    for (const std::string& text : custom) table.push_back(ParseButtons(text));
  } else if (count == kRawActions) {
    for (int i = 0; i < count; ++i) table.push_back(static_cast<uint8_t>(i));
  } else {
    table.assign(kComplexMovement, kComplexMovement + count);
  }
  return table;
}

}  // namespace mario
