"""Named places where episodes can begin: ``make(..., starts="1-1/*")``.

For every level the catalogue has its regular start ("1-1/start"), positions along its
main room, one per page of 256 pixels ("1-1/page-03"), and positions in the rooms behind
its pipes ("1-1/room-66/page-00", where 66 is ``info["area_pointer"]``). ``scout`` finds
these places by playing on your own ROM when they are first needed. They are kept in a
folder of the user (``folder``) and are not part of this package.

>>> from mario_envpool import starts
>>> starts.names("1-1/*")  # needs the ROM
['1-1/start', '1-1/page-00', ...]

docs/starts.md describes starts in full.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from . import _core, nes, scout
from . import rom as roms
from .scout import Place

#: A name or pattern (``*``, ``?``, ``[...]``), a list of these, or their weights.
Starts = str | Sequence[str] | Mapping[str, float]

#: Version of the places that ``scout`` finds; increase it when its code changes.
VERSION = 1

STAGES = [f"{world}-{stage}" for world in range(1, 9) for stage in range(1, 5)]
# The conversion of the Lost Levels has no other levels.
_STAGES_OF_LOST_LEVELS = STAGES[:16]
_START = "start"


def names(pattern: str = "*", rom: str = "vanilla", rom_path: str = "") -> list[str]:
    """Returns the names in the catalogue of a ROM that match a pattern.

    Args:
        pattern: such as "1-1/*". Only levels that can match are scouted; the first use
            of a level takes about a second, the catalogue of all levels a minute.
        rom: which revision, as the option of ``make``.
        rom_path: a ROM file or folder, as the option of ``make``.

    Raises:
        RomError: there is no such ROM.
        ValueError: no name matches; the message has similar names.
    """
    catalogue = Catalogue(roms.load(rom, rom_path), rom.startswith("lost-levels"))
    return [place.name for place in catalogue.find(pattern)]


def folder() -> Path:
    """Returns the folder of catalogues: ``MARIO_ENVPOOL_CACHE``, else a user cache."""
    given = os.environ.get("MARIO_ENVPOOL_CACHE", "")
    if given:
        return Path(given)
    caches = os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache"
    return Path(caches) / "mario_envpool"


class Catalogue:
    """The places of one ROM, one level at a time.

    Args:
        image: the iNES image, as ``rom.load`` returns it.
        lost_levels: whether the image is the Lost Levels.
        stages: the levels to consider; None: all levels.
    """

    def __init__(
        self, image: bytes, lost_levels: bool = False, stages: list[str] | None = None
    ) -> None:
        self._all = _STAGES_OF_LOST_LEVELS if lost_levels else STAGES
        self.stages = [s for s in self._all if stages is None or s in stages]
        self._image = image
        self._lost_levels = lost_levels
        revision = hashlib.sha1(image).hexdigest()
        self._folder = folder() / f"starts-v{VERSION}" / revision

    def find(self, pattern: str) -> list[Place]:
        """Returns the places whose names match, in the order of the game.

        Raises:
            ValueError: no name matches; the message has similar names.
        """
        meant, slash, _ = pattern.partition("/")
        if not slash and "*" in meant:  # the * may stand for the slash too
            meant = meant.partition("*")[0] + "*"
        stages = [stage for stage in self.stages if fnmatchcase(stage, meant)]
        elsewhere = [stage for stage in self._all if fnmatchcase(stage, meant)]
        if elsewhere and not stages:
            raise ValueError(
                f"starts: {pattern!r} is in {elsewhere[0]}, but these environments "
                f"play {', '.join(self.stages)} only; add {elsewhere[0]} to stages=, "
                "or use the id of the whole game"
            )
        known = [place for stage in stages for place in self.places(stage)]
        found = [place for place in known if fnmatchcase(place.name, pattern)]
        if found:
            return found
        among = [place.name for place in known] or [f"{s}/*" for s in self.stages]
        near = difflib.get_close_matches(pattern, among, n=3, cutoff=0.4) or among[:3]
        raise ValueError(
            f"starts: there is no start {pattern!r}; similar names are "
            f"{', '.join(map(repr, near))}. All names are listed by: "
            "python -m mario_envpool starts"
        )

    def places(self, stage: str) -> list[Place]:
        """Returns the places of a level, from the user's folder or by playing."""
        file = self._folder / f"{stage}.npz"
        places = _read(file, self._image)
        if places is None:
            places = list(scout.places(self._image, stage, self._lost_levels))
            try:
                _write(file, places)
            except OSError as error:
                warnings.warn(
                    f"the starts of {stage} cannot be kept in {file.parent} "
                    f"({error.strerror}), so every process searches for them again; "
                    "set the variable MARIO_ENVPOOL_CACHE to another folder",
                    stacklevel=2,
                )
        return places


def apply(pool: Any, starts: Starts) -> None:
    """Makes the episodes of a pool begin at places of the catalogue.

    Args:
        pool: a pool of this package; only places of the levels it plays are known.
        starts: a name or pattern, or a list of these: all matching places are equally
            likely. A dictionary has a weight for each name or pattern; places that
            match the same pattern share its weight equally.

    Raises:
        ValueError: a name is not known, or a weight is not allowed.
        TypeError: ``starts`` has another type.
    """
    config = pool.config
    stages = list(config["stages"])
    everything = not stages
    catalogue = Catalogue(
        roms.load(config["rom"], config["rom_path"]),
        config["lost_levels"],
        None if everything else stages,
    )
    # The pool begins its own stages, in its order, at their regular starts.
    if everything:
        stages = catalogue.stages[: pool.num_stages]
    own = np.zeros(pool.num_stages)
    others: dict[str, Place] = {}
    weights: dict[str, float] = {}
    for place, weight in _weighed(catalogue, starts):
        stage, _, where = place.name.partition("/")
        if where == _START and stage in stages:
            own[stages.index(stage)] += weight
        else:
            others[place.name] = place
            weights[place.name] = weights.get(place.name, 0.0) + weight
    if not own.sum() + sum(weights.values()):
        raise ValueError(
            f"starts={starts!r} has no place with a weight above 0; give one, such as "
            "'1-1/start'"
        )
    snapshots = _core.start_snapshots(
        pool.spec,
        [place.save for place in others.values()],
        [place.buttons for place in others.values()],
    )
    pool.set_starts([*own, *weights.values()], snapshots)


def _weighed(catalogue: Catalogue, starts: Starts) -> list[tuple[Place, float]]:
    """Returns the selected places with their weights."""
    if isinstance(starts, Mapping):
        found: list[tuple[Place, float]] = []
        given: Mapping[Any, Any] = starts
        for pattern, weight in given.items():
            if not isinstance(pattern, str):
                raise TypeError(
                    f"starts has the name {pattern!r}; give text such as '1-1/page-03'"
                )
            if not isinstance(weight, Real) or not 0 <= float(weight) < float("inf"):
                raise ValueError(
                    f"starts: the weight of {pattern!r} is {weight!r}; weights are "
                    "finite numbers of 0 or more"
                )
            places = catalogue.find(pattern)
            found += [(place, float(weight) / len(places)) for place in places]
        return found
    patterns = [starts] if isinstance(starts, str) else starts
    if not isinstance(patterns, Sequence) or not all(
        isinstance(pattern, str) for pattern in patterns
    ):
        raise TypeError(
            f"starts={starts!r} is not possible; give a name such as '1-1/page-03', a "
            "pattern such as '1-1/*', a list of them, or a dictionary of weights"
        )
    once = {place.name: place for each in patterns for place in catalogue.find(each)}
    return [(place, 1.0) for place in once.values()]


def _write(file: Path, places: list[Place]) -> None:
    """Writes a file completely or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez_compressed(
                stream,
                names=np.array([place.name for place in places]),
                saves=np.array([np.frombuffer(p.save, np.uint8) for p in places]),
                buttons=np.frombuffer(b"".join(p.buttons for p in places), np.uint8),
                frames=np.array([len(place.buttons) for place in places]),
            )
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def _read(file: Path, image: bytes) -> list[Place] | None:
    """Reads a file; returns None if it does not exist or is damaged.

    The archive has checksums, and the console refuses saves of another ROM, saves of
    another version, and states that no game reaches.
    """
    try:
        with file.open("rb") as stream, np.load(stream) as data:
            ends = np.cumsum(data["frames"])
            buttons = np.split(data["buttons"], ends[:-1])
            places = [
                Place(str(name), save.tobytes(), pressed.tobytes())
                for name, save, pressed in zip(
                    data["names"], data["saves"], buttons, strict=True
                )
            ]
        console = nes.Console(image)
        for place in places:
            console.load(place.save)
    except Exception:  # a damaged archive has more ways to fail than can be listed
        return None
    return places
