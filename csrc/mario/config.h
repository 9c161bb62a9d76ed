// Every option of the Super Mario Bros. task: type, name, default, help. This
// table is the only place where an option is declared; the native spec, its
// defaults and the documentation are generated from it. Names follow EnvPool's
// Atari environments where those have the option.
//
// obs_type is a string, as its default, 'gray', is part of EnvPool's spec and a
// list would change it. A list that a user gives is joined by '+' in
// mario_envpool/pool.py and taken apart again in observation.cc, nowhere else.
#pragma once

#include <string>
#include <vector>

namespace mario {

// clang-format off
#define MARIO_CONFIG(X)                                                       \
  X(std::string, rom, "vanilla",                                              \
    "ROM by content: vanilla, downsample, pixel, rectangle, world, "          \
    "lost-levels or lost-levels-downsample")                                  \
  X(std::string, rom_path, "",                                                \
    "path of the ROM file; empty: found in the installed packages")           \
  X(std::vector<std::string>, stages, {},                                     \
    "stages to play, e.g. ['1-1']: one: that stage; several: environment i "  \
    "plays number i mod n, or a random one per episode with random_stages; "  \
    "empty: the whole game")                                                  \
  X(bool, random_stages, false,                                               \
    "draw the stage of every episode at random: of stages, or of all (32; "   \
    "52 of the Lost Levels)")                                                 \
  X(bool, lost_levels, false,                                                 \
    "the ROM is Super Mario Bros. 2 (The Lost Levels); its worlds are 1 to "  \
    "9 and A to D")                                                           \
  X(int, power_on_ram, 0,                                                     \
    "what every byte of work RAM holds at power-on, 0 to 255; only the Lost " \
    "Levels notice: their first clock is 400 after 0 and 290 after 255")      \
  X(std::string, timing, "console",                                           \
    "where a frame ends: console: at the vertical blank; nes_py: where the "  \
    "emulator of gym-super-mario-bros ends it, for what was trained there")   \
  X(std::string, engine, "",                                                  \
    "what runs the program, to the same bytes: translated (to machine code, " \
    "where that is possible) or interpreter; empty: what MARIO_ENGINE names, " \
    "else translated")                                                        \
  X(std::string, action_set, "simple",                                        \
    "right_only (5 actions), simple (7), complex (12) or raw (all 256 "       \
    "button bytes)")                                                          \
  X(std::vector<std::string>, custom_actions, {},                             \
    "button lists such as 'NOOP', 'right', 'right+A'; replaces action_set")   \
  X(int, frame_skip, 4,                                                       \
    "frames per step, 1 to 16; rewards are summed, the last one is observed") \
  X(int, stack_num, 4, "frames in an observation, 1 to 16")                   \
  X(int, img_height, 84, "rows of an observation")                            \
  X(int, img_width, 84, "columns of an observation")                          \
  X(std::string, obs_type, "gray",                                            \
    "what is observed: gray or rgb (pictures), ram, tiles, motion; or "       \
    "several, such as ['tiles', 'motion']: a dict of them")                   \
  X(bool, gray_scale, true, "false: the obs_type 'gray' is 'rgb'")            \
  X(bool, use_inter_area_resize, true,                                        \
    "area resize (shrinks only); false: nearest neighbour")                   \
  X(bool, frame_max, false,                                                   \
    "observe the maximum of the last two frames (the game needs it not)")     \
  X(std::string, hud, "keep",                                                 \
    "the 32 rows of the status bar: keep, mask (black) or crop")              \
  X(bool, cut_waits, true,                                                    \
    "shorten waits between areas and lives as gym-super-mario-bros does, by "  \
    "writing to RAM; false: they play at full length inside a step, and the "  \
    "console gets nothing but buttons: a movie that any emulator plays")       \
  X(bool, episodic_life, false,                                               \
    "whole game: a lost life terminates, the next reset plays on (a "           \
    "stage always ends so)")          \
  X(bool, reward_clip, false, "reward becomes its sign: -1, 0 or 1")          \
  X(int, noop_max, 0,                                                         \
    "0 to this many idle frames at each reset, drawn from the seed")          \
  X(std::vector<int>, noops, {},                                              \
    "idle frames at each reset, exactly: environment i has number i mod n; "  \
    "replaces noop_max")                                                      \
  X(double, repeat_action_probability, 0.0,                                   \
    "chance, at every frame, that the buttons of the frame before stay "      \
    "pressed (sticky actions)")                                               \
  X(int, stall_steps, 0,                                                      \
    "truncate after this many steps without a new best position; 0: never")   \
  X(std::string, reward, "classic",                                           \
    "classic: gym-super-mario-bros 7.4.0; v9: gym-super-mario-bros 9.1.0 "    \
    "(with score, coins, power-ups, completion); progress: new best "         \
    "positions and the weights below")                                        \
  X(double, reward_progress, 1.0, "progress: per pixel of a new best")        \
  X(double, reward_score, 0.0, "progress: per point of the game's score")     \
  X(double, reward_coins, 0.0, "progress: per coin")                          \
  X(double, reward_clock, 0.0, "progress: per tick the clock lost")           \
  X(double, reward_step, -0.1, "progress: per step")                          \
  X(double, reward_death, -25.0, "progress: per death")                       \
  X(double, reward_flag, 50.0, "progress: per stage finished")                \
  X(double, reward_wrong_pass, -25.0,                                         \
    "progress: per wrong pass through a maze (4-4, 7-4, 8-4)")                \
  X(double, reward_scale, 0.0,                                                \
    "factor on the reward; 0: 0.1 for progress, 1 for classic and v9")        \
  X(bool, end_on_wrong_pass, false, "a wrong maze pass terminates")
// clang-format on

/// The options of one pool of environments; validated by EnvShared.
struct Config {
#define MARIO_MEMBER(type, name, value, help) type name = value;
  MARIO_CONFIG(MARIO_MEMBER)
#undef MARIO_MEMBER

  /// Calls visit("name", member, "help") for every option in order.
  template <class V>
  void Visit(V&& visit) {
#define MARIO_VISIT(type, name, value, help) visit(#name, name, help);
    MARIO_CONFIG(MARIO_VISIT)
#undef MARIO_VISIT
  }
  template <class V>
  void Visit(V&& visit) const {
#define MARIO_VISIT(type, name, value, help) visit(#name, name, help);
    MARIO_CONFIG(MARIO_VISIT)
#undef MARIO_VISIT
  }
};

#undef MARIO_CONFIG

}  // namespace mario
