"""Stands in for nes_py.app.play_human."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._image_viewer import ImageViewer


def play_human(env: Any, callback: Callable[..., object] | None = None) -> None:
    """Plays an environment with 4-tuples by keyboard until Escape; needs pygame.

    Args:
        env: the environment; its ``get_keys_to_action`` has the keys.
        callback: called after each step with the observation before it, the action,
            the reward, done and the next observation.
    """
    actions = env.get_keys_to_action()
    height, width, _ = env.unwrapped.screen.shape
    viewer = ImageViewer(
        "NES" if env.spec is None else env.spec.id,
        height,
        width,
        monitor_keyboard=True,
        relevant_keys={key for pressed in actions for key in pressed},
    )
    import pygame  # ImageViewer explains its absence

    viewer.open()
    clock = pygame.time.Clock()
    done = True
    while viewer.is_open and not viewer.is_escape_pressed:
        clock.tick(env.metadata["video.frames_per_second"])
        if done:
            obs = env.reset()
        action = actions.get(viewer.pressed_keys, 0)
        next_obs, reward, done, _ = env.step(action)
        viewer.show(env.unwrapped.screen)
        if callback is not None:
            callback(obs, action, reward, done, next_obs)
        obs = next_obs
    viewer.close()
