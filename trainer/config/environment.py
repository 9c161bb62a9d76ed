"""Options of the environments and of exploration."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from mario_envpool import nes, states
from mario_envpool.actions import ACTION_SETS
from trainer.config.options import Need, any_of, flag_of, in_use, one_of, option
from trainer.config.tasks import is_native

# Rows and columns of observations (Mnih et al. 2015), and those of networks that
# need another size.
IMAGE_SIZE = 84
IMAGE_SIZES = {"cnn-72k": 40}
# The shape for `obs` tiles with any network (models/encoders.py): first the rows of
# tiles, then those of motion.
TILES_SHAPE = (1, 16, 16)
TILES_ROWS = 13

#: Options that a policy's observations, and what its actions do, depend on.
POLICY_OPTIONS = (
    "frame_skip", "stack_num", "img_height", "img_width", "hud", "timing", "turbo_swim",
)  # fmt: skip

# The game's random numbers repeat after one more frame.
MAX_RNG_FRAMES = 32766

_BUTTONS = {name.casefold(): name for name in (*nes.BUTTONS, "NOOP")}


def _without(option: str) -> Need:
    """The need that an option is left out."""
    return Need(
        (option,), f"a run without {flag_of(option)}", lambda run: not run[option]
    )


_MARIO = (
    Need(("task",), "a Super Mario Bros. task", lambda run: is_native(run["task"])),
)
_REWARD = (*_MARIO, _without("reward_fn"))
_PROGRESS = (*_MARIO, one_of("reward", "progress"), _without("reward_fn"))
_ACTION_SET = (*_MARIO, _without("custom_actions"))
_SEVERAL_LEVELS = Need(
    ("levels",), "several --levels", lambda run: len(run["levels"]) > 1
)
# Kinds of starts; others are the names of files.
_STARTS = ("level", "frontier", "backward")
_STATE_FILES = (states.SUFFIX, ".npy")
_AFTER_A_FILE = re.compile("|".join(rf"(?<={re.escape(s)})," for s in _STATE_FILES))
_SNAPSHOTS = Need(
    ("starts",),
    "--starts frontier, backward or files",
    lambda run: run["starts"] != "level",
)
_DEMONSTRATIONS = (
    _without("demos"),
    any_of(one_of("starts", "backward"), in_use("imitation"), in_use("guide")),
)


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """The environments: task, number and rewards."""

    task: str = "SuperMarioBros-1-1-v0"
    """Environment id: any task of mario_envpool, or an EnvPool task with image
    observations and discrete actions."""

    levels: tuple[str, ...] = ()
    """Levels to train on, such as 1-1,4-2, or all; each episode plays one of them.
    The default is the level or levels of --task. Several levels, or any level but 1-1
    on tiles, change other defaults (see the table in docs/many-levels.md)."""

    test_levels: tuple[str, ...] = ()
    """Levels to test on and never to train on, such as 1-3,2-2. A number holds out this
    many of --levels, the same ones for every seed. Evaluations report training and test
    levels separately."""

    obs: Literal["pixels", "tiles", "tiles+world"] = "pixels"
    """Observations. pixels: grey images. tiles: no images, but the contents of the
    cells around Mario and the motion of the objects there, for --model tiles
    (docs/observations.md). tiles+world: tiles, and the number of the world, for one
    network that learns many levels, some of which look alike."""

    num_envs: int = 64
    """Number of environments of the run. The processes of a torchrun job have equal
    shares."""

    groups: int = 2
    """Groups of environments: the network acts for one group while the other
    groups emulate. In sync mode the groups are fixed; in async mode a group is the
    environments that are ready first."""

    num_threads: int = 0
    """Emulation threads of each process. 0: one per core, but at most one per
    environment of a group; several processes on one machine share its cores equally."""

    max_replacements: int = option(0, needs=_MARIO, least=0)
    """Environments that may be replaced after an exception, counted since the start or
    the last --resume. The episode of a replaced environment is truncated. Each
    replacement is reported like an alarm. 0: the first exception ends the run."""

    replacement_episodes: int = option(
        0, needs=(*_MARIO, in_use("max_replacements")), least=0
    )
    """Each environment keeps a snapshot of the start of every n-th episode, where n is
    this number. An environment that replaces it begins its first episode there. 0: the
    first episode begins like any other."""

    frame_skip: int = 6
    """Frames per step. Mnih et al. 2015 use 4, which gives finer control. With 6 the
    clear rate of 1-1 reached 50 % after 155-180 k steps, with 4 after 240-330 k."""

    stack_num: int = 4
    """Frames in an observation (Mnih et al. 2015, table 1)."""

    img_height: int = option(0, flag=False, least=0)
    """Rows of an observation. 0: the size that the network is made for, 40 for cnn-72k
    and 84 for the other networks."""

    img_width: int = option(0, flag=False, least=0)
    """Columns of an observation; 0: the same as img_height."""

    hud: Literal["keep", "mask", "crop"] = option("crop", flag=False)
    """Whether to keep, mask or crop the 32 rows of the status bar. Without them more
    pixels show the level."""

    action_set: Literal["right_only", "simple", "complex"] = option(
        "right_only", needs=_ACTION_SET
    )
    """Set of 5, 7 or 12 actions. With 5 actions the clear rate of 1-1 reached 50 %
    after 218-267 k steps, with 7 after 340 k."""

    custom_actions: tuple[str, ...] = option((), needs=_MARIO)
    """Your own actions instead of --action-set, separated by commas. An action is NOOP,
    or buttons (A, B, up, down, left, right, start, select) joined by +. Example:
    NOOP,right+B,right+A+B,down."""

    rom_path: str = option("", needs=_MARIO, holds="path")
    """ROM file, or a folder with ROMs. The default is the environment variable
    MARIO_ROM, else the ROMs of the installed package gym-super-mario-bros."""

    timing: Literal["console", "nes_py"] = option("console", needs=_MARIO)
    """Where a frame ends. console: as on a console. nes_py: as in nes-py, the emulator
    of gym-super-mario-bros, for policies that will play in it (docs/migration.md)."""

    noop_max: int = 30
    """Largest number of idle frames at the start of an episode; each episode draws from
    0 to this number. Without idle frames a policy memorises one sequence of buttons."""

    rng_frames_max: int = option(
        0, needs=(*_MARIO, one_of("timing", "console")), between=(0, MAX_RNG_FRAMES)
    )
    """Largest number of frames by which the game's random numbers and counters are
    advanced at the start of an episode; each episode draws from 0 to this number. With
    0 a level has as many courses of events as idle frames, and a policy learns them by
    heart; 32766 gives all that exist, as in a whole game (docs/whole-game.md)."""

    repeat_action_probability: float = option(0.0, needs=_MARIO)
    """Probability per frame that the buttons stay as they were (sticky actions)."""

    turbo_swim: int = option(0, needs=_MARIO, between=(0, 255))
    """Turbo button in water, where each stroke needs a new press: frames after which A,
    while actions hold it, is released for one frame; the frames of a step suit best. 0:
    never. It multiplies the clears of water levels (docs/hard-levels.md)."""

    stall_steps: int = option(100, needs=_MARIO)
    """Truncate an episode after this many steps without a new best position."""

    max_episode_steps: int = 2000
    """Truncate an episode after this many steps. The game's clock runs out earlier."""

    reward: Literal["progress", "classic", "v9"] = option("progress", needs=_REWARD)
    """progress: a reward for new best positions, with the weights below. classic, v9:
    the rewards of gym-super-mario-bros 7.4 and 9.1 (docs/rewards.md). Each is
    multiplied by --reward-scale."""

    reward_fn: str = option("", needs=_MARIO, holds="code")
    """Your own reward as module:function, instead of --reward. The function takes the
    arrays of a batch and returns the rewards (docs/rewards.md). The losses are made for
    discounted returns within +-15. Videos show the built-in reward."""

    reward_progress: float = option(1.0, needs=_PROGRESS)
    """Reward per pixel of a new best position."""

    reward_step: float = option(-0.5, needs=_PROGRESS)
    """Reward per step; a clear of 1-1 takes about 260 steps."""

    reward_death: float = option(-50.0, needs=_PROGRESS)
    """Reward for a death."""

    reward_flag: float = option(50.0, needs=_PROGRESS)
    """Reward for the flag; values from 100 on made other levels worse."""

    reward_score: float = option(0.0, needs=_PROGRESS)
    """Reward per point of the game's score; a Goomba gives 100 points, the flag up to
    5,000."""

    reward_coins: float = option(0.0, needs=_PROGRESS)
    """Reward per coin."""

    reward_clock: float = option(0.0, needs=_PROGRESS)
    """Reward per unit that the game's clock counts down; 1-1 begins with 400."""

    reward_wrong_pass: float = option(-25.0, needs=_PROGRESS)
    """Reward for a wrong lane in a maze (4-4, 7-4, 8-4)."""

    reward_scale: float = option(0.01, needs=_REWARD, above=0)
    """Factor of any --reward. The critic's Huber loss and the gradient clip are made
    for discounted returns within +-15; with 0.01 the returns of all three rewards are
    within this range."""

    @property
    def sees_tiles(self) -> bool:
        """Whether observations are tiles and motion, of shape `TILES_SHAPE`."""
        return self.obs != "pixels"

    @property
    def actions(self) -> tuple[str, ...]:
        """The buttons of every action of a Super Mario Bros. task, such as "right+A".

        Raises ValueError if `custom_actions` has an unknown button.
        """
        if not self.custom_actions:
            return ACTION_SETS[self.action_set]
        # One text may hold several actions, separated by commas.
        texts = ",".join(self.custom_actions).split(",")
        return tuple(_action(text) for text in texts)

    def check(self) -> None:
        """Raises ValueError for groups or observations that are not possible."""
        if not 1 <= self.groups <= self.num_envs or self.num_envs % self.groups:
            raise ValueError(
                f"groups must divide num_envs={self.num_envs}, got {self.groups}"
            )
        if not self.sees_tiles:
            return
        if self.stack_num != 1:
            raise ValueError(
                f"obs={self.obs} needs stack_num=1, got {self.stack_num}: an "
                "observation already holds speeds; for more of the past use --memory "
                "gru"
            )
        size = self.img_height or TILES_SHAPE[1], self.img_width or TILES_SHAPE[2]
        if size != TILES_SHAPE[1:]:
            raise ValueError(
                f"obs={self.obs} has one size: leave out img_height={self.img_height} "
                f"and img_width={self.img_width}"
            )


def _action(text: str) -> str:
    """A custom action as the action sets spell it, such as "right+A"."""
    words = text.replace("+", " ").split()
    names = [_BUTTONS.get(word.casefold(), "") for word in words]
    if not names or "" in names or ("NOOP" in names and len(names) > 1):
        raise ValueError(
            f"custom_actions has the action {text.strip()!r}; give buttons (A, B, up, "
            "down, left, right, start, select) joined by +, or NOOP, as in "
            "NOOP,right+B,right+A+B"
        )
    return "+".join(names)


@dataclasses.dataclass(frozen=True)
class ExploreConfig:
    """Starts of training episodes, and bonuses for new places."""

    starts: str = option("level", holds="path")
    """Where episodes begin. level: at the starts of levels. frontier: a share of them
    at snapshots of places that the run has reached (as in Go-Explore, Ecoffet et al.
    2021). backward: a share of them on a demonstration, first near its end, then
    earlier and earlier (Salimans & Chen 2018). Files, separated by commas: a share of
    them at these save states, .state of stable-retro or .npy of a campaign
    (docs/starts.md). Clear rates, videos and evaluations count only episodes from the
    start of a level."""

    demonstrations: int = option(4, needs=_DEMONSTRATIONS, least=1)
    """Largest number of searches per level. When the run begins, each search over
    snapshots finds a way to the end of the level within seconds (docs/planning.md), and
    shortens it. A way that leads there from nearly all starts is the last one, and
    after 1,000,000 steps no further search starts."""

    demos: tuple[str, ...] = option((), holds="path")
    """Files of demonstrations to learn from instead of a search: recordings of
    trainer.watch --record, or the files of trainer.plan. Before the first update the
    policy is cloned from them (--cloning-steps); --imitation, --guide and --starts
    backward use them too."""

    guide: float = option(0.0, least=0)
    """Reward for each step by which an episode advances along a demonstration; 0: none.
    It leads past places where more progress in the game is a dead end, such as the warp
    zone of 1-2 and the wrong lanes of mazes."""

    snapshot_share: float = option(0.5, needs=(_SNAPSHOTS,), between=(0, 1))
    """Share of episodes that begin at snapshots while a level is never cleared from its
    start. The share falls to 0 as the clear rate from the start rises to 1; that of
    files remains."""

    level_sampling: Literal["success", "learnability", "curriculum", "uniform"] = (
        option("success", needs=(_SEVERAL_LEVELS,))
    )
    """How often each of several levels is played, by its clear rate p in the last
    episodes. success: by 1 - p. learnability: by 4 p (1 - p) (Rutherford et al. 2024),
    or by the drop from the highest p. curriculum: four levels at a time, in the order
    of the game, until p is 0.9 or for 250,000 steps; learned levels are rehearsed.
    uniform: all levels equally often."""

    cell_size: int = option(32, flag=False, least=1)
    """Width and height in pixels of the cells that distinguish places, for the frontier
    and for the bonuses."""

    novelty: float = option(0.0, least=0)
    """Bonus at the start of the run for the first visit of a cell in an episode. It
    falls to 0 over --bonus-steps. For comparison, 32 pixels of progress give a reward
    of 0.32. With 0.1 there was no gain on 1-1."""

    novelty_by_count: bool = option(False, flag=False)
    """Divide novelty by the square root of the number of episodes that have visited the
    cell (as in Badia et al. 2020, who use a network for this count)."""

    count_bonus: float = option(0.0, least=0)
    """Weight, at the start of the run, of a bonus for rarely entered cells, UCB1's
    sqrt(2 ln t / n) (Auer et al. 2002). It falls to 0 over --bonus-steps. With 0.1
    there was no gain on 1-1."""

    bonus_steps: int = option(
        1_000_000, needs=(any_of(in_use("novelty"), in_use("count_bonus")),), least=0
    )
    """Environment steps of the linear schedule of the novelty and count bonuses."""

    @property
    def state_files(self) -> tuple[str, ...]:
        """The files of save states in `starts`; none if it is a word."""
        if self.starts in _STARTS:
            return ()
        return tuple(_AFTER_A_FILE.split(self.starts))  # names may have commas

    @property
    def pays(self) -> bool:
        """Whether the run ever has a bonus."""
        return self.novelty > 0 or self.count_bonus > 0

    def check(self) -> None:
        """Raises ValueError if no episode would begin at the start of a level.

        Also if `starts` is neither a word nor files.
        """
        if not all(file.endswith(_STATE_FILES) for file in self.state_files):
            raise ValueError(
                f"starts must be {', '.join(_STARTS)} or files "
                f"{' or '.join(_STATE_FILES)}, separated by commas, got {self.starts!r}"
            )
        if self.starts != "level" and self.snapshot_share == 1:
            raise ValueError(
                "snapshot_share must be below 1, got 1: no episode would begin at the "
                "start of a level, and clear rates count only such episodes"
            )
