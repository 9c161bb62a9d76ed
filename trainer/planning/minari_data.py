"""Demonstrations as a data set of Minari: what an environment shows frame by frame.

A step is a frame, an action the byte of buttons (bits as in `mario_envpool.nes`), the
reward "classic", an observation (1, 84, 84) uint8: the brightness of the picture. The
data set names the environment, so that Minari makes it again.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import mario_envpool
from mario_envpool.registration import NAMESPACE
from trainer.planning.demonstration import POWER_ON, Demonstration, verify

_MOST_STEPS = 10**9


def export(demonstrations: Sequence[Demonstration], name: str) -> Path:
    """Writes a data set, an episode for each demonstration.

    Args:
        demonstrations: of one level and ROM, with the same options; at least one.
        name: of the data set, such as mario/1-1-v0. It is written to Minari's folder,
            MINARI_DATASETS_PATH or ~/.minari/datasets.

    Returns:
        The folder of the data set.

    Raises:
        ImportError: Minari is not installed.
        ValueError: the name is none or taken, the demonstrations differ, begin at
            power-on, or do not play.
    """
    try:
        import minari
        from minari.dataset.minari_dataset import parse_dataset_id
    except ImportError:
        raise ImportError(
            "a data set of Minari needs minari and h5py: pip install "
            "'mario-envpool[minari]'"
        ) from None
    parse_dataset_id(name)
    if name in minari.list_local_datasets():
        raise ValueError(f"there is a data set {name} already; give another name")
    one = demonstrations[0]
    game = (one.task, one.level, one.rom_sha1, dict(one.options))
    for other in demonstrations:
        if (other.task, other.level, other.rom_sha1, dict(other.options)) != game:
            raise ValueError(
                f"a data set is of one level, ROM and set of options: {other.level} "
                f"{dict(other.options)} does not go with {one.level} {game[-1]}"
            )
        if other.start == POWER_ON:
            raise ValueError(
                "a movie from power-on is no episode of an environment, of which a "
                "data set is made; give recordings or what trainer.plan found"
            )
    for made in demonstrations:
        verify(made)
    env = _environment(one)
    try:
        with warnings.catch_warnings():
            # About an e-mail address, and an environment for evaluation.
            warnings.simplefilter("ignore", UserWarning)
            dataset = minari.create_dataset_from_buffers(
                name,
                # One at a time: an episode is 7 KB a frame.
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
    finally:
        env.close()


def _environment(made: Demonstration) -> gymnasium.Env[Any, Any]:
    """An environment in which a demonstration plays, a step for each frame."""
    # By its spec: by name, Gymnasium advises to take the ROM of -v3.
    return gymnasium.make(
        gymnasium.spec(f"{NAMESPACE}/{made.task}"),
        stages=[made.level] if made.level else [],
        action_set="raw",
        frame_skip=1,
        stack_num=1,
        max_episode_steps=_MOST_STEPS,
        **made.options,
    )


def _episode(env: gymnasium.Env[Any, Any], made: Demonstration) -> Any:
    """What the environment shows of a demonstration: an `EpisodeBuffer`."""
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
