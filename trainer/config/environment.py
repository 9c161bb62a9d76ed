"""Options of the environments, and of where and why a run explores."""

from __future__ import annotations

import dataclasses
from typing import Literal

from mario_envpool import nes
from mario_envpool.actions import ACTION_SETS
from trainer.config.options import Need, in_use, one_of, option
from trainer.config.tasks import is_native

# Rows and columns of observations (Mnih et al. 2015), and of the networks that are
# made for others.
IMAGE_SIZE = 84
IMAGE_SIZES = {"cnn-72k": 40}
# Of `obs` tiles, whatever the network (models/tiles.py): rows of tiles come first,
# and then those of motion.
TILES_SHAPE = (1, 16, 16)
TILES_ROWS = 13

LevelSampling = Literal["success", "learnability", "curriculum", "uniform"]

_MARIO = Need("task", "a Super Mario Bros. task", is_native)
_OWN_REWARD = Need("reward_fn", "a run without --reward-fn", lambda name: not name)
_REWARD = (_MARIO, _OWN_REWARD)
_PROGRESS = (_MARIO, one_of("reward", "progress"), _OWN_REWARD)
_ACTION_SET = (
    _MARIO,
    Need("custom_actions", "a run without --custom-actions", lambda own: not own),
)
_BUTTONS = {name.casefold(): name for name in (*nes.BUTTONS, "NOOP")}
_SEVERAL_LEVELS = Need("levels", "several --levels", lambda levels: len(levels) > 1)
_DEMONSTRATIONS = (
    Need("demos", "a run without --demos", lambda files: not files),
    (one_of("starts", "backward"), in_use("imitation"), in_use("guide")),
)
_A_BONUS = ((in_use("novelty"), in_use("count_bonus")),)


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """Environments: which, how many, and their rewards."""

    task: str = "SuperMarioBros-1-1-v0"
    """Environment id: any of mario_envpool's, or an image task of EnvPool with
    discrete actions."""

    levels: tuple[str, ...] = ()
    """Levels to train on, such as 1-1,4-2, or all; each episode plays one of them.
    With several levels, or any level but 1-1 on tiles, other defaults apply
    (docs/training.md has a table). By default the task says what is played."""

    test_levels: tuple[str, ...] = ()
    """Levels never to train on, such as 1-3,2-2, or a number of --levels to hold out,
    the same ones for every seed. Evaluations report both sets."""

    obs: Literal["pixels", "tiles"] = "pixels"
    """Observations. pixels: grey images; tiles: the contents of the cells around Mario
    and the motion of the objects there (docs/observations.md), without images, for the
    network of the same name."""

    num_envs: int = 64
    """Environments of the run; several processes (torchrun) have equal shares."""

    groups: int = 2
    """Groups of environments: the network acts for one group while the others
    emulate. In sync mode the groups are fixed; in async mode a group is whichever
    environments are ready first."""

    num_threads: int = 0
    """Emulation threads of each process; 0: the number of cores, at most one per
    environment of a group, or an equal share of the cores for each process of a
    machine."""

    max_replacements: int = option(0, needs=_MARIO, least=0)
    """Environments that may be replaced, from a run's start or --resume on, because
    they raised an exception; their episodes end there, truncated. Each is told like an
    alarm. 0: the first exception ends the run."""

    replacement_episodes: int = option(
        0, needs=(_MARIO, in_use("max_replacements")), least=0
    )
    """Of every environment the start of each so-many-th episode is kept, for the one
    that replaces it to begin in. 0: it begins as any episode does."""

    frame_skip: int = 6
    """Frames per step. Mnih et al. 2015 use 4, which gives finer control; with 6, half
    of all episodes cleared 1-1 after 155-180 k steps instead of 240-330 k."""

    stack_num: int = 4
    """Frames in an observation (Mnih et al. 2015, table 1)."""

    img_height: int = option(0, flag=False, least=0)
    """Rows of an observation; 0: what the network is made for, 40 with cnn-72k and 84
    with the others."""

    img_width: int = option(0, flag=False, least=0)
    """Columns of an observation; 0: as img_height."""

    hud: Literal["keep", "mask", "crop"] = option("crop", flag=False)
    """The 32 rows of the status bar; without them more pixels show the level."""

    action_set: Literal["right_only", "simple", "complex"] = option(
        "right_only", needs=_ACTION_SET
    )
    """5, 7 or 12 actions. With 5 actions half of all episodes cleared 1-1 after 218-267
    k steps, with 7 after 340 k."""

    custom_actions: tuple[str, ...] = option((), needs=_MARIO)
    """Actions of your own instead of --action-set, with commas between: buttons (A, B,
    up, down, left, right, start, select) joined by +, or NOOP. Example:
    NOOP,right+B,right+A+B,down."""

    rom_path: str = option("", needs=_MARIO)
    """ROM file, or a folder with ROMs. By default the one that the variable MARIO_ROM
    names, else those of the installed package gym-super-mario-bros."""

    timing: Literal["console", "nes_py"] = option("console", needs=_MARIO)
    """Where a frame ends. console: as on a console. nes_py: as in nes-py, the emulator
    of gym-super-mario-bros, for policies that are to play there (docs/migration.md)."""

    noop_max: int = 30
    """Most idle frames before an episode, drawn from 0 to this number. Without them a
    policy memorises one sequence of buttons."""

    repeat_action_probability: float = option(0.0, needs=_MARIO)
    """Chance per frame that the buttons stay as they were (sticky actions)."""

    stall_steps: int = option(100, needs=_MARIO)
    """Truncate an episode after this many steps without a new best position."""

    max_episode_steps: int = 2000
    """Truncate an episode after this many steps; the game's clock is shorter."""

    reward: Literal["progress", "classic", "v9"] = option("progress", needs=_REWARD)
    """progress: new best positions and the weights below; classic, v9: the rewards of
    gym-super-mario-bros 7.4 and 9.1 (docs/rewards.md). All are multiplied by
    --reward-scale."""

    reward_fn: str = option("", needs=_MARIO)
    """Reward of your own as module:function, instead of --reward. The function takes
    the arrays of a batch and returns its rewards (docs/rewards.md). Discounted returns
    within +-15 fit the losses. Films show the built-in reward."""

    reward_progress: float = option(1.0, needs=_PROGRESS)
    """Reward per pixel of a new best position."""

    reward_step: float = option(-0.5, needs=_PROGRESS)
    """Reward per step; a run to the flag of 1-1 takes about 260 steps."""

    reward_death: float = option(-50.0, needs=_PROGRESS)
    """Reward for a death."""

    reward_flag: float = option(50.0, needs=_PROGRESS)
    """Reward for the flag; 100 and more made other levels worse."""

    reward_score: float = option(0.0, needs=_PROGRESS)
    """Reward per point of the game's score; a Goomba has 100, the flag up to 5,000."""

    reward_coins: float = option(0.0, needs=_PROGRESS)
    """Reward per coin."""

    reward_clock: float = option(0.0, needs=_PROGRESS)
    """Reward per unit of time that the game's clock lost; 1-1 begins with 400."""

    reward_wrong_pass: float = option(-25.0, needs=_PROGRESS)
    """Reward for a wrong way through a maze (4-4, 7-4, 8-4)."""

    reward_scale: float = option(0.01, needs=_REWARD, above=0)
    """Factor of --reward, whichever it is. Discounted returns within +-15 fit the
    critic's Huber loss and the clip of the gradient; with .01 those of all three
    rewards are."""

    @property
    def actions(self) -> tuple[str, ...]:
        """The buttons of every action, such as "right+A", of a Super Mario Bros. task.

        Those of `custom_actions` may be several in one text, with commas between.

        Raises:
            ValueError: an action of `custom_actions` has a button that is none.
        """
        own = ",".join(self.custom_actions)
        if own:
            return tuple(_action(action) for action in own.split(","))
        return ACTION_SETS[self.action_set]

    def check(self) -> None:
        """Raises ValueError for groups or observations that cannot be."""
        if not 1 <= self.groups <= self.num_envs or self.num_envs % self.groups:
            raise ValueError(
                f"groups must divide num_envs={self.num_envs}, got {self.groups}"
            )
        if self.obs != "tiles":
            return
        if self.stack_num != 1:
            raise ValueError(
                f"obs=tiles needs stack_num=1, got {self.stack_num}: an observation "
                "holds speeds; for more of the past use --memory gru"
            )
        size = self.img_height or TILES_SHAPE[1], self.img_width or TILES_SHAPE[2]
        if size != TILES_SHAPE[1:]:
            raise ValueError(
                f"obs=tiles has one size: leave out img_height={self.img_height} and "
                f"img_width={self.img_width}"
            )


def _action(text: str) -> str:
    """An action of the user's own as the action sets have it: "right+A".

    Raises:
        ValueError: it has a button that is none.
    """
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
    """Where training episodes begin, and bonuses for new places."""

    starts: Literal["level", "frontier", "backward"] = "level"
    """Where episodes begin. level: at the starts of levels. frontier: a share of them
    at snapshots of places that the run has reached (as in Go-Explore, Ecoffet et al.
    2021). backward: a share of them on a demonstration, first near its end, then
    earlier and earlier (Salimans & Chen 2018). Only episodes from the start of a level
    count in rates, films and evaluations."""

    demonstrations: int = option(4, needs=_DEMONSTRATIONS, least=1)
    """Demonstrations of each level, at most: ways to its end that a search over
    snapshots finds when the run begins, in seconds each (docs/planning.md). After
    500,000 steps of search it looks for no further one."""

    demos: tuple[str, ...] = ()
    """Files of demonstrations to learn from instead of a search: recordings of
    trainer.watch --record, or what trainer.plan found. Before the first update the
    policy is cloned from them (--cloning-steps); --imitation, --guide and --starts
    backward use them, too."""

    guide: float = option(0.0, least=0)
    """Reward for each step of a demonstration that an episode has got on by: it leads
    past dead ends of the game's own progress, such as the warp zone of 1-2 and wrong
    lanes of mazes; 0: none."""

    snapshot_share: float = option(
        0.5, needs=one_of("starts", "frontier", "backward"), between=(0, 1)
    )
    """Share of episodes from snapshots in a level that is never cleared from its
    start; the share falls to 0 as that clear rate rises to 1."""

    level_sampling: LevelSampling = option(  # noqa: RUF009 (a string)
        "success", needs=_SEVERAL_LEVELS
    )
    """How often each of several levels is played, by its share p of clears in the
    last episodes. success: by 1 - p. learnability: by 4 p (1 - p) (Rutherford et al.
    2024), or by the drop from the highest p. curriculum: four levels at a time, in the
    order of the game, until p is .9 or for 250,000 steps; learned levels are
    rehearsed. uniform: all alike."""

    cell_size: int = option(32, flag=False, least=1)
    """Width and height in pixels of the cells by which places are told apart, for
    the frontier and for the bonuses."""

    novelty: float = option(0.0, least=0)
    """Bonus for the first visit of a cell in an episode, at the start of the run (32
    pixels of progress give a reward of 0.32); it falls to 0 over --bonus-steps. No gain
    on 1-1 with .1."""

    novelty_by_count: bool = option(False, flag=False)
    """Divide novelty by the square root of the number of episodes that were in the
    cell (as in Badia et al. 2020, whose life-long part is a network)."""

    count_bonus: float = option(0.0, least=0)
    """Weight, at the start of the run, of a bonus for rarely entered cells, UCB1's
    sqrt(2 ln t / n) (Auer et al. 2002); it falls to 0 over --bonus-steps. No gain on
    1-1 with .1."""

    bonus_steps: int = option(1_000_000, needs=_A_BONUS, least=0)
    """Environment steps of the linear schedule of both bonuses."""

    @property
    def pays(self) -> bool:
        """Whether there is any bonus at any time."""
        return self.novelty > 0 or self.count_bonus > 0

    def check(self) -> None:
        """Raises ValueError where no episode would begin at the start of a level."""
        if self.starts != "level" and self.snapshot_share == 1:
            raise ValueError(
                "snapshot_share must be below 1, got 1: no episode would begin at the "
                "start of a level, and only those count in clear rates"
            )
