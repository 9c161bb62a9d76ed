"""Demonstrations as a Minari data set, with every frame of an environment.

A step is a frame, an action is the byte of buttons (bits as in `mario_envpool.nes`),
the reward is "classic", and an observation is (1, 84, 84) uint8, the brightness of the
picture. The data set names the environment, so that Minari can make it again.
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


def export(demonstrations: Sequence[Demonstration], name: str) -> Path:
    """Writes a data set with one episode per demonstration.

    Args:
        demonstrations: at least one; all of one level and ROM, with the same options.
        name: name of the data set, such as mario/1-1-v0. It is written to Minari's
            folder, MINARI_DATASETS_PATH or ~/.minari/datasets.

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
    game = (one.task, one.level, one.rom_sha1, dict(one.options))
    for other in demonstrations:
        if (other.task, other.level, other.rom_sha1, dict(other.options)) != game:
            raise ValueError(
                f"a data set needs one level, one ROM and one set of options, but "
                f"{other.level} {dict(other.options)} differs from {one.level} "
                f"{game[-1]}: make separate data sets"
            )
        if other.start == POWER_ON:
            raise ValueError(
                "a movie from power-on is not an episode of an environment, which a "
                "data set needs; give recordings or demonstrations from trainer.plan"
            )
    for made in demonstrations:
        verify(made)
    # Make it by its spec: by name, Gymnasium would recommend -v3 instead.
    env = gymnasium.make(
        gymnasium.spec(f"{NAMESPACE}/{one.task}"),
        stages=[one.level] if one.level else [],
        action_set="raw",
        frame_skip=1,
        stack_num=1,
        max_episode_steps=_MOST_STEPS,
        **one.options,
    )
    with closing(env), warnings.catch_warnings():
        # Minari warns that an e-mail address and an evaluation environment are
        # missing.
        warnings.simplefilter("ignore", UserWarning)
        dataset = minari.create_dataset_from_buffers(
            name,
            # One episode at a time, because each frame takes 7 KB.
            (_episode(env, made) for made in demonstrations),
            env,
            author="mario-envpool",
            algorithm_name="play, recorded or searched",
            description=f"{len(demonstrations)} episodes of "
            f"{one.level or 'the whole game'} of {one.task}, frame by frame; "
            f"ROM with SHA-1 {one.rom_sha1}.",
            requirements=[f"mario-envpool=={mario_envpool.__version__}"],
            data_format="hdf5",
            jpeg_encoding=False,
        )
        return Path(dataset.storage.data_path).parent


def _episode(env: gymnasium.Env[Any, Any], made: Demonstration) -> Any:
    """The frames of a demonstration in an environment, as an `EpisodeBuffer`."""
    from minari.data_collector import EpisodeBuffer

    obs, _ = env.reset(seed=0)
    rows = [(obs, 0.0, False)]
    for byte in made.buttons:
        obs, reward, terminated, _, _ = env.step(byte)
        rows.append((obs, float(reward), terminated))
    seen, rewards, terminations = zip(*rows, strict=True)
    truncations = np.zeros(made.frames, bool)
    truncations[-1] = not terminations[-1]
    return EpisodeBuffer(
        observations=np.stack(seen),
        actions=np.frombuffer(made.buttons, np.uint8).astype(np.int64),
        rewards=np.array(rewards[1:]),
        terminations=np.array(terminations[1:]),
        truncations=truncations,
    )
