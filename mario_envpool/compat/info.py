"""The info dictionaries of gym-super-mario-bros 7.4.0 and 9.x.

Numbers come from the native step. Fields that only 9.x has are read from a copy of work
RAM at the same moment, before the waits of the game are skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..codes import STATUS
from .ram import RamView
from .tasks import task_id_of, world_label

# Those that gym-super-mario-bros reads from RAM as numbers of NumPy.
_OF_NUMPY = ("life", "stage", "world", "x_pos", "y_pos")
_KEYS = "coins flag_get life score stage status time world x_pos y_pos".split()
# Fields of 9.x that are properties of RamView under the same name.
_FACTS = (
    "area enemy_types is_dead is_dying is_game_over is_stage_over is_world_over level "
    "player_state powerup_level status_value y_pixel y_viewport"
).split()
# Upstream's names of the reward terms, in its order, and the native names.
_PARTS = {
    "progress": "reward_progress",
    "time": "reward_clock",
    "score": "reward_score",
    "coins": "reward_coins",
    "powerup": "reward_powerup",
    "completion": "reward_flag",
    "death": "reward_death",
}
# Upstream's terms are multiples of 0.01; native terms are 32-bit floats.
_DECIMALS = 4


def as_float64(value: float) -> float:
    """Returns a native reward as the 64-bit float that upstream computes."""
    return round(value, _DECIMALS)


def classic_info(numbers: dict[str, Any], of_numpy: bool = False) -> dict[str, Any]:
    """Returns the ten keys of 7.4.0 from the native numbers.

    With ``of_numpy`` some numbers are int64 of NumPy, as programs in old Gym find them.
    """
    info = {key: numbers[key] for key in _KEYS}
    if of_numpy:
        info |= {key: np.int64(info[key]) for key in _OF_NUMPY}
    info["status"] = STATUS[info["status"]]
    return info


def full_info(
    numbers: dict[str, Any],
    facts: RamView,
    *,
    reward: float,
    x_pos_max: int,
    rom_mode: str,
    version: int,
    lost_levels: bool,
    target: tuple[int, int] | None,
) -> dict[str, Any]:
    """Returns all keys of 9.x.

    Args:
        numbers: the numbers of the native step, with ``reward="v9"``.
        facts: work RAM at that moment.
        reward: the reward of the step, in [-15, 15].
        x_pos_max: the best position of the attempt, in pixels.
        rom_mode: the ROM, as the constructor takes it.
        version: the version number in ids.
        lost_levels: whether the game is the Lost Levels.
        target: world and stage, or None for the whole game.
    """
    world, stage = target or (None, None)
    game = "lost_levels" if lost_levels else "smb1"
    parts = {name: as_float64(numbers[native]) for name, native in _PARTS.items()}
    return {
        **classic_info(numbers),
        **{key: getattr(facts, f"_{key}") for key in _FACTS},
        "left_x_pos": facts._left_x_position,
        "x_pos_max": x_pos_max,
        "clear": numbers["flag_get"],
        "death": facts._is_dying or facts._is_dead,
        "game": game,
        "game_family": game,
        "lives": numbers["life"],
        "progress": numbers["x_pos"],
        "progress_max": x_pos_max,
        "rom_mode": rom_mode,
        "single_stage": target is not None,
        "task_id": task_id_of(lost_levels, version, world, stage),
        "target_stage": stage,
        "target_world": world,
        "timeout": False,
        "world_label": world_label(numbers["world"]),
        "reward_components": parts,
        "reward_total_unclipped": sum(parts.values()),
        "reward_total_clipped": reward,
    }
