"""Demonstrations as a Minari data set, with every frame of an environment.

A step is a frame, an action is the byte of buttons (bits as in `mario_envpool.nes`),
and the reward is "classic". The data set names the environment, so that Minari can make
it again, and has the world and the stage of every row as infos.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import mario_envpool
from mario_envpool.registration import NAMESPACE
from trainer.machine.imports import extra
from trainer.planning.demonstration import POWER_ON, Demonstration, verify

_MOST_STEPS = 10**9

#: What a data set observes, and the options of its environment.
OBSERVATIONS: dict[str, dict[str, Any]] = {
    "gray": {},
    "rgb": {"obs_type": "rgb"},
    "tiles": {"obs_type": ["tiles", "motion"]},
}


def export(
    demonstrations: Sequence[Demonstration], name: str, obs: str = "gray"
) -> Path:
    """Writes a data set with one episode per demonstration.

    Args:
        demonstrations: at least one; all of one ROM, with the same options, and either
            of single levels or of whole games.
        name: name of the data set, such as mario/1-1-v0. It is written to Minari's
            folder, MINARI_DATASETS_PATH or ~/.minari/datasets.
        obs: one of `OBSERVATIONS`: "gray" is the brightness of the picture, (1, 84, 84)
            uint8; "rgb" its colours, (3, 84, 84) uint8; "tiles" a dictionary of tiles,
            (1, 13, 16) uint8, and motion, (8, 6) int8.

    Returns:
        The folder of the data set.

    Raises:
        ImportError: Minari is not installed.
        ValueError: the name is invalid or taken, or the demonstrations differ, begin
            at power-on or do not replay.
    """
    with extra("minari", "a Minari data set needs minari and h5py"):
        import minari
        from minari.dataset.minari_dataset import parse_dataset_id
    parse_dataset_id(name)
    if name in minari.list_local_datasets():
        raise ValueError(f"the data set {name} already exists; give another name")
    one = demonstrations[0]
    game = (one.task, bool(one.level), one.rom_sha1, dict(one.options))
    for other in demonstrations:
        its = (other.task, bool(other.level), other.rom_sha1, dict(other.options))
        if its != game:
            raise ValueError(
                f"a data set needs one game, one ROM and one set of options, but "
                f"{other.level or 'the whole game'} {its[-1]} differs from "
                f"{one.level or 'the whole game'} {game[-1]}: make separate data sets"
            )
        if other.start == POWER_ON:
            raise ValueError(
                "a movie from power-on is not an episode of an environment, which a "
                "data set needs; give recordings or demonstrations from trainer.plan"
            )
    for made in demonstrations:
        verify(made)
    levels = tuple(dict.fromkeys(made.level for made in demonstrations if made.level))
    what = ", ".join(levels) or "the whole game"
    with closing(_environment(one, levels, obs)) as env, warnings.catch_warnings():
        # Minari warns that an e-mail address and an evaluation environment are
        # missing.
        warnings.simplefilter("ignore", UserWarning)
        dataset = minari.create_dataset_from_buffers(
            name,
            # One episode at a time, because each frame takes 7 KB or more.
            (_episode(made, obs) for made in demonstrations),
            env,
            author="mario-envpool",
            algorithm_name="play, recorded or searched",
            description=f"{len(demonstrations)} episodes of {what} of {one.task}, "
            f"frame by frame; ROM with SHA-1 {one.rom_sha1}.",
            requirements=[f"mario-envpool=={mario_envpool.__version__}"],
            data_format="hdf5",
            jpeg_encoding=False,
        )
        return Path(dataset.storage.data_path).parent


def _environment(
    one: Demonstration, levels: Sequence[str], obs: str
) -> gymnasium.Env[Any, Any]:
    """The environment of levels, () for the whole game, with a demonstration's options.

    Made by its spec: by name, Gymnasium would recommend -v3 instead.
    """
    return gymnasium.make(
        gymnasium.spec(f"{NAMESPACE}/{one.task}"),
        stages=list(levels),
        random_stages=len(levels) > 1,
        action_set="raw",
        frame_skip=1,
        stack_num=1,
        max_episode_steps=_MOST_STEPS,
        **OBSERVATIONS[obs],
        **one.options,
    )


def _episode(made: Demonstration, obs: str) -> Any:
    """The frames of a demonstration, as an `EpisodeBuffer`."""
    from minari.data_collector import EpisodeBuffer

    levels = (made.level,) if made.level else ()
    with closing(_environment(made, levels, obs)) as env:
        seen, info = env.reset(seed=0)
        rows = [(seen, 0.0, False, info)]
        for byte in made.buttons:
            seen, reward, terminated, _, info = env.step(byte)
            rows.append((seen, float(reward), terminated, info))
    observed, rewards, terminations, infos = zip(*rows, strict=True)
    truncations = np.zeros(made.frames, bool)
    truncations[-1] = not terminations[-1]
    together: Any = observed
    if isinstance(observed[0], dict):
        together = {key: np.stack([o[key] for o in observed]) for key in observed[0]}
    else:
        together = np.stack(observed)
    return EpisodeBuffer(
        observations=together,
        actions=np.frombuffer(made.buttons, np.uint8).astype(np.int64),
        rewards=np.array(rewards[1:]),
        terminations=np.array(terminations[1:]),
        truncations=truncations,
        infos={key: np.array([i[key] for i in infos]) for key in ("world", "stage")},
    )
