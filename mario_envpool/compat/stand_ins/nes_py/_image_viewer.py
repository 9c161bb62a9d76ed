"""Stands in for nes_py._image_viewer."""

from __future__ import annotations

from collections.abc import Container
from typing import Any


class ImageViewer:
    """A window that shows pictures and tells which keys are pressed; needs pygame.

    Args:
        caption: title of the window.
        height: of a picture, in pixels.
        width: of a picture, in pixels.
        monitor_keyboard: whether to look at keys.
        relevant_keys: the character codes of the keys that count; None: all.
    """

    def __init__(
        self,
        caption: str,
        height: int,
        width: int,
        monitor_keyboard: bool = False,
        relevant_keys: Container[int] | None = None,
    ) -> None:
        try:
            import pygame
        except ImportError as error:
            raise ImportError(
                "ImageViewer needs pygame; run: pip install pygame"
            ) from error
        self._pygame = pygame
        self.caption, self.height, self.width = caption, height, width
        self.monitor_keyboard, self.relevant_keys = monitor_keyboard, relevant_keys
        self._window: Any = None
        self._pressed: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Whether the window is open."""
        return self._window is not None

    @property
    def is_escape_pressed(self) -> bool:
        """Whether the Escape key is pressed."""
        return self._pygame.K_ESCAPE in self._pressed

    @property
    def pressed_keys(self) -> tuple[int, ...]:
        """The character codes of the relevant keys that are pressed, sorted."""
        relevant = self.relevant_keys
        return tuple(
            sorted(k for k in self._pressed if relevant is None or k in relevant)
        )

    def open(self) -> None:
        """Opens the window."""
        self._pygame.display.init()
        self._window = self._pygame.display.set_mode((self.width, self.height))
        self._pygame.display.set_caption(self.caption)

    def close(self) -> None:
        """Closes the window; a second call does nothing."""
        if self._window is not None:
            self._pygame.display.quit()
            self._window = None

    def show(self, frame: Any) -> None:
        """Shows a picture, (height, width, 3) uint8, and looks at the keys."""
        pygame = self._pygame
        if self._window is None:
            self.open()
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                self.close()
                return
            if self.monitor_keyboard and event.type == pygame.KEYDOWN:
                self._pressed.add(event.key)
            elif self.monitor_keyboard and event.type == pygame.KEYUP:
                self._pressed.discard(event.key)
        pygame.surfarray.blit_array(self._window, frame.swapaxes(0, 1))
        pygame.display.flip()
