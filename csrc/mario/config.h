// Every option of the Super Mario Bros. task: type, name, default, help. This
// table is the only place where an option is declared; the native spec, its
// defaults and the documentation are generated from it. Names follow EnvPool's
// Atari environments where those have the option.
//
// obs_type is a string, because its default, 'gray', is part of EnvPool's spec,
// which a list would change. mario_envpool/pool.py joins the names of a list
// with '+', and observation.cc splits the text again; no other code does
// either.
#pragma once

#include <string>
#include <vector>

#include "pool/spec.h"

namespace mario {

// clang-format off
#define MARIO_CONFIG(X)                                                       \
  X(std::string, rom, "vanilla",                                              \
    "ROM revision, recognised by its content: vanilla, downsample, pixel, "   \
    "rectangle, world, lost-levels or lost-levels-downsample")                \
  X(std::string, rom_path, "",                                                \
    "path of a ROM file or folder; empty: the path in MARIO_ROM, else the "   \
    "files of the installed gym-super-mario-bros")                            \
  X(std::vector<std::string>, stages, {},                                     \
    "levels to play, such as ['1-1']; one: every episode plays it; several: " \
    "environment i plays entry i mod n, or each episode draws one if "        \
    "random_stages is set; empty: the whole game")                            \
  X(bool, random_stages, false,                                               \
    "draw the level of every episode at random, from stages or, where "       \
    "stages is empty, from all levels (32; 52 in the Lost Levels)")           \
  X(bool, lost_levels, false,                                                 \
    "the ROM is Super Mario Bros. 2 (The Lost Levels), with worlds 1 to 9 "   \
    "and A to D")                                                             \
  X(int, power_on_ram, 0,                                                     \
    "value of every byte of work RAM at power-on, 0 to 255; it matters only " \
    "in the Lost Levels, where the first clock is 400 after 0 and 290 after " \
    "255")                                                                    \
  X(std::string, timing, "console",                                           \
    "where a frame ends; console: at the vertical blank; nes_py: where the "  \
    "emulator of gym-super-mario-bros ends it, for policies trained there")   \
  X(std::string, engine, "",                                                  \
    "what executes the game's program, with identical results: translated "   \
    "(machine code, where the system allows it) or interpreter; empty: the "  \
    "engine that MARIO_ENGINE names, else translated")                        \
  X(std::string, action_set, "simple",                                        \
    "right_only (5 actions), simple (7), complex (12) or raw (all 256 "       \
    "button bytes)")                                                          \
  X(std::vector<std::string>, custom_actions, {},                             \
    "actions as button lists such as 'NOOP', 'right', 'right+A'; replaces "   \
    "action_set")                                                             \
  X(int, frame_skip, 4,                                                       \
    "frames per step, 1 to 16; rewards are summed over the frames, and the "  \
    "last frame is observed")                                                 \
  X(int, stack_num, 4, "frames in an observation, 1 to 16")                   \
  X(int, img_height, 84,                                                      \
    "pixel rows of a gray or rgb observation, 1 to 1024")                     \
  X(int, img_width, 84,                                                       \
    "pixel columns of a gray or rgb observation, 1 to 1024")                  \
  X(std::string, obs_type, "gray",                                            \
    "what is observed: gray or rgb (pictures), ram, tiles, motion or "        \
    "motion_world; a list such as ['tiles', 'motion'] gives a dict of them; " \
    "text: sentences (only in MarioEnv)")                                     \
  X(bool, gray_scale, true, "false: obs_type 'gray' means 'rgb'")             \
  X(bool, use_inter_area_resize, true,                                        \
    "resize by averaging areas, which only shrinks; false: nearest "          \
    "neighbour")                                                              \
  X(bool, frame_max, false,                                                   \
    "observe the pixel-wise maximum of the last two frames (not needed for "  \
    "this game)")                                                             \
  X(std::string, hud, "keep",                                                 \
    "the 32 pixel rows of the status bar: keep, mask (black) or crop")        \
  X(bool, cut_waits, true,                                                    \
    "shorten the waits between areas and lives by writing to RAM, as "        \
    "gym-super-mario-bros does; false: waits run at full length inside a "    \
    "step, and the console receives only buttons (a movie that any emulator " \
    "plays)")                                                                 \
  X(bool, step_ends_at_waits, false,                                          \
    "a step ends early where a wait was skipped, so that no button is held "  \
    "into the next level or life; false: the rest of its frames follow, as "  \
    "in gym-super-mario-bros")                                                \
  X(bool, pause_for_rng, false,                                               \
    "in the whole game with cut_waits=False: press Start before each level "  \
    "and life and pause until the game's random numbers are those of the "    \
    "level's own task, then wait 0 to noop_max idle frames, as that task "    \
    "does; within a level, such as in a pipe, pause until they are those "    \
    "after a cut wait, without ending the step; a pause takes up to nine "    \
    "minutes of the game's time")                                             \
  X(bool, episodic_life, false,                                               \
    "in the whole game, losing a life terminates the episode, and the next "  \
    "reset continues the game (an episode of one level always ends with the " \
    "life)")                                                                  \
  X(bool, reward_clip, false, "replace the reward by its sign: -1, 0 or 1")   \
  X(int, noop_max, 0,                                                         \
    "most idle frames at a reset; each reset draws 0 to this many from the "  \
    "seed")                                                                   \
  X(std::vector<int>, noops, {},                                              \
    "exact number of idle frames at each reset; environment i uses entry i "  \
    "mod n; replaces noop_max")                                               \
  X(int, rng_frames_max, 0,                                                   \
    "most frames by which a reset advances the game's random numbers, frame " \
    "counter and slow timers, as if the game had run longer before; each "    \
    "reset draws 0 to this many from the seed (32766: all that exist)")       \
  X(double, repeat_action_probability, 0.0,                                   \
    "probability, at every frame, that the buttons of the frame before stay " \
    "pressed (sticky actions)")                                               \
  X(int, turbo_swim, 0,                                                       \
    "turbo button in water, where each stroke needs a new press: frames "     \
    "after which A, while an action holds it, is released for one frame; 2 "  \
    "to 255; 0: never")                                                       \
  X(int, stall_steps, 0,                                                      \
    "truncate after this many steps without a new best position; 0: never")   \
  X(std::string, reward, "classic",                                           \
    "classic: that of gym-super-mario-bros 7.4.0; v9: that of "               \
    "gym-super-mario-bros 9.1.0 (adds score, coins, power-ups and "           \
    "completion); progress: new best positions, with the weights "            \
    "reward_progress to reward_wrong_pass")                                   \
  X(double, reward_progress, 1.0,                                             \
    "progress reward: weight of each pixel of a new best position")           \
  X(double, reward_score, 0.0,                                                \
    "progress reward: weight of each point of the game's score")              \
  X(double, reward_coins, 0.0, "progress reward: weight of each coin")        \
  X(double, reward_clock, 0.0,                                                \
    "progress reward: weight of each tick that the clock loses")              \
  X(double, reward_step, -0.1, "progress reward: added in each step")         \
  X(double, reward_death, -25.0, "progress reward: added for a death")        \
  X(double, reward_flag, 50.0,                                                \
    "progress reward: added for each level that is finished")                 \
  X(double, reward_wrong_pass, -25.0,                                         \
    "progress reward: added for each wrong pass through a maze (4-4, 7-4, "   \
    "8-4)")                                                                   \
  X(double, reward_scale, 0.0,                                                \
    "factor on the reward; 0: 0.1 for progress, 1 for classic and v9")        \
  X(bool, end_on_wrong_pass, false,                                           \
    "a wrong pass through a maze terminates the episode")
// clang-format on

/// The options of one pool of environments; validated by EnvShared.
struct Config {
#define MARIO_MEMBER(type, name, value, help) type name = value;
  MARIO_CONFIG(MARIO_MEMBER)
#undef MARIO_MEMBER

  /// Every option, in order.
  std::vector<pool::Option> Options() {
#define MARIO_OPTION(type, name, value, help) {#name, &name, help},
    return {MARIO_CONFIG(MARIO_OPTION)};
#undef MARIO_OPTION
  }
};

#undef MARIO_CONFIG

}  // namespace mario
