"""Augmented observations, for which a policy and its values should not change.

The losses are computed on the true observations. An extra term penalises the change of
logits and values on augmented observations (`losses.consistency`). That is DrAC
(Raileanu et al. 2021, arXiv:2006.12862, section 3): a policy gradient on augmented
observations would be wrong, because the actions were sampled on the true ones.

Shifts are those of DrQ (Kostrikov et al. 2021, arXiv:2004.13649). Everything runs on
the device, from random numbers that were drawn earlier: nothing here waits for the
device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mario_envpool import list_all_envs
from trainer.config.schema import TILES_ROWS, AugmentConfig, EnvConfig

KINDS = ("shift", "brightness", "flip")
# Largest shift to any side: in pixels of an 84x84 picture (Kostrikov et al. 2021), and
# in tiles.
SHIFT = 4
TILES_SHIFT = 1
# Pictures are multiplied by a factor from 1 - BRIGHTNESS to 1 + BRIGHTNESS.
BRIGHTNESS = 0.2
# Probability that a picture is mirrored.
FLIP = 0.5

# Random numbers of an item: shift down, shift to the right, brightness, flip.
_NUMBERS = 4


class Augmentation:
    """The changes that a run makes to observations; false if there are none."""

    def __init__(
        self, config: AugmentConfig, env: EnvConfig, device: torch.device
    ) -> None:
        self.kinds = tuple(
            dict.fromkeys(k.strip() for k in ",".join(config.augment).split(",") if k)
        )
        self.coef = config.augment_coef  # weight of `losses.consistency`
        _check(self.kinds, env)
        self._tiles = env.sees_tiles
        self._most = TILES_SHIFT if self._tiles else SHIFT
        if "flip" in self.kinds:
            # On the device: a list would be copied there each time, and while a CUDA
            # graph is recorded that fails.
            actions = mirrored(env.actions)
            self._mirrored = torch.tensor(actions, device=device)

    def __bool__(self) -> bool:
        """Whether there are changes."""
        return bool(self.kinds)

    def draw(
        self, items: int, generator: torch.Generator, device: torch.device
    ) -> Tensor:
        """Random numbers for `items` rows or unrolls, (4, items) in [0, 1).

        Without changes the result is (0, items), and the generator does not advance.
        """
        shape = (_NUMBERS if self.kinds else 0, items)
        return torch.rand(shape, generator=generator, device=device)

    def observations(self, obs: Tensor, numbers: Tensor) -> Tensor:
        """Changes observations (T, n, C, H, W) with numbers (4, n) from `draw`.

        All rows and frames of an item change in the same way.
        """
        down, right, bright, flip = numbers
        if "shift" in self.kinds:
            obs = self._shifted(obs, self._offsets(down), self._offsets(right))
        if "brightness" in self.kinds:
            obs = brightened(obs, 1 + BRIGHTNESS * (2 * bright - 1))
        if "flip" in self.kinds:
            where = (flip < FLIP)[:, None, None, None]
            obs = torch.where(where, obs.flip(-1), obs)
        return obs

    def logits(self, logits: Tensor, numbers: Tensor) -> Tensor:
        """Maps logits (T, n, A) on changed observations to actions in the true ones.

        In a mirrored picture every action becomes the mirrored action.
        """
        if "flip" not in self.kinds:
            return logits
        where = (numbers[3] < FLIP)[:, None]
        return torch.where(where, logits.index_select(-1, self._mirrored), logits)

    def _shifted(self, obs: Tensor, down: Tensor, right: Tensor) -> Tensor:
        """Moves pictures, or the grid of tiles; the rows of motion do not change."""
        if not self._tiles:
            return shifted(obs, down, right, self._most)
        rows = [TILES_ROWS, obs.shape[-2] - TILES_ROWS]
        grid, motion = torch.split(obs, rows, -2)
        return torch.cat([shifted(grid, down, right, self._most), motion], -2)

    def _offsets(self, numbers: Tensor) -> Tensor:
        """Uniform integers in a range that is symmetric around 0."""
        return (numbers * (2 * self._most + 1)).floor().long() - self._most


def _check(kinds: Sequence[str], env: EnvConfig) -> None:
    """Raises ValueError for changes that do not fit the observations of a run."""
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(
                f"augment must be a comma-separated list of {', '.join(KINDS)}; got "
                f"{kind!r}"
            )
    others = [kind for kind in kinds if kind != "shift"]
    if others and env.sees_tiles:
        raise ValueError(
            f"augment={','.join(others)} needs pictures, but observations are tiles, "
            "which can only be shifted: use --augment shift"
        )
    if "flip" in kinds and env.task not in list_all_envs():
        raise ValueError(
            f"augment=flip needs the actions of the Super Mario Bros. tasks, but "
            f"{env.task} has other actions; leave flip out"
        )


def shifted(obs: Tensor, down: Tensor, right: Tensor, most: int) -> Tensor:
    """Moves pictures (T, n, C, H, W) by (n,) pixels; new pixels repeat the edge."""
    if not most:
        return obs
    height, width = obs.shape[-2:]
    for dim in (-1, -2):
        first = obs.narrow(dim, 0, 1)
        last = obs.narrow(dim, obs.shape[dim] - 1, 1)
        obs = torch.cat([*[first] * most, obs, *[last] * most], dim)
    # All windows of the old size, without a copy; then one for each item.
    windows = obs.transpose(0, 1).unfold(-2, height, 1).unfold(-2, width, 1)
    items = torch.arange(len(windows), device=obs.device)
    chosen = windows[items, :, :, most - down, most - right]
    return chosen.transpose(0, 1)


def brightened(obs: Tensor, factor: Tensor) -> Tensor:
    """Multiplies pictures (T, n, C, H, W) uint8 by factors (n,), clipped to 0..255."""
    bright = obs * factor[:, None, None, None]
    return bright.round_().clamp_(0, 255).to(torch.uint8)


def mirrored(actions: Sequence[str]) -> list[int]:
    """The index of each action ("right+A") with left and right exchanged."""
    other = {"left": "right", "right": "left"}
    buttons = [frozenset(action.split("+")) for action in actions]
    result = []
    for action, pressed in zip(actions, buttons, strict=True):
        wanted = frozenset(other.get(button, button) for button in pressed)
        if wanted not in buttons:
            raise ValueError(
                f"augment=flip needs the mirror image of every action, but that of "
                f"{action!r} is missing; --action-set complex has all of them"
            )
        result.append(buttons.index(wanted))
    return result
