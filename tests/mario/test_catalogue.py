"""The catalogue of starts: found by playing, kept by ROM, true frame stacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mario_envpool
from mario_envpool import _core, _testing, nes, rom, scout, starts

pytestmark = pytest.mark.rom

RIGHT, JUMP = 3, 4  # right+B, right+A+B
# Ground, underground, water, castle; mazes, and rooms within a room.
STAGES = ["1-1", "1-2", "2-2", "4-2", "8-4"]


def catalogue(**options: Any) -> starts.Catalogue:
    return starts.Catalogue(rom.load("vanilla"), **options)


def restored(stage: str, timing: str = "console") -> tuple[Any, Any, list[scout.Place]]:
    """A pool with an environment for each place of a stage, and snapshots of them."""
    places = catalogue().places(stage)
    pool = mario_envpool.make(
        f"SuperMarioBros-{stage}-v0",
        num_envs=len(places),
        obs_type="tiles",
        reward="progress",
        timing=timing,
    )
    blobs = _core.start_snapshots(
        pool.spec, [p.save for p in places], [p.buttons for p in places]
    )
    return pool, blobs, places


def put(pool: Any, blobs: Any) -> dict[str, Any]:
    pool.restore(np.arange(len(blobs), dtype=np.int32), blobs)
    info: dict[str, Any] = pool.recv()[4]
    return info


@pytest.mark.parametrize(
    ("stage", "timing"),
    [*((stage, "console") for stage in STAGES), ("1-1", "nes_py"), ("8-4", "nes_py")],
)
def test_every_place_is_alive_and_can_be_played(stage: str, timing: str) -> None:
    pool, blobs, places = restored(stage, timing)
    names = [place.name for place in places]
    count = len(places)
    info = put(pool, blobs)
    world, number = (int(part) for part in stage.split("-"))
    assert set(info["world"].tolist()) == {world}
    assert set(info["stage"].tolist()) == {number}
    main = info["area_pointer"][0]
    for i, name in enumerate(names):
        *_, room, where = ["", *name.split("/")[1:]]
        assert info["area_pointer"][i] == (int(room[5:]) if room else main), name
        if where != "start":
            assert info["x_pos"][i] // 256 == int(where[5:]), name
    for _ in range(15):
        info = pool.step(np.zeros(count, np.int32))
        assert not info[2].any(), np.array(names)[info[2]]
    rng = np.random.default_rng(0)
    gained = np.zeros(count, np.bool_)
    for _ in range(20):
        before = put(pool, blobs)
        dead = np.zeros(count, np.bool_)
        for _ in range(15):
            action = rng.choice([RIGHT, JUMP, JUMP], count)
            *_, terminated, _, info = pool.step(action)
            dead |= terminated & ~info["flag_get"]
        moved = info["x_pos"] - before["x_pos"] >= 32
        moved |= info["area_pointer"] != before["area_pointer"]
        gained |= ~dead & (moved | info["flag_get"])
    assert gained.all(), np.array(names)[~gained]


@pytest.mark.parametrize("frame_max", [False, True])
def test_a_place_under_nes_pys_timing_is_the_same_one_step_later(
    frame_max: bool,
) -> None:
    """It was found under the console's; single frames to the right from there."""
    seen = {}
    for timing in ("console", "nes_py"):
        for start in ("1-1/page-03", "1-1/room-66/page-00"):
            pool = mario_envpool.make(
                "SuperMarioBros-1-1-v0",
                num_envs=1,
                starts=start,
                timing=timing,
                frame_skip=1,
                frame_max=frame_max,
            )
            obs, info = pool.reset()
            again, _ = pool.reset()
            assert np.array_equal(obs, again)
            positions = [int(info["x_pos"][0])]
            for _ in range(40):
                info = pool.step(np.array([RIGHT]))[4]
                positions.append(int(info["x_pos"][0]))
            seen[timing, start] = positions
    for (timing, start), positions in seen.items():
        if timing == "console":
            assert seen["nes_py", start][1:] == positions[:-1]
            assert positions[-1] > positions[0] + 20


def test_what_there_is() -> None:
    found = [place.name for place in catalogue().places("1-1")]
    assert found[0] == "1-1/start"
    assert {f"1-1/page-{page:02d}" for page in range(1, 12)} <= set(found)
    assert "1-1/room-66/page-00" in found
    assert len(set(found)) == len(found)
    behind = {place.name for place in catalogue().places("1-2")}
    assert "1-2/room-37/page-12" in behind  # the flag is in another room
    assert "8-4/room-02/page-00" in {p.name for p in catalogue().places("8-4")}


def test_playing_finds_the_same_again() -> None:
    image = rom.load("vanilla")
    assert list(scout.places(image, "1-1")) == catalogue().places("1-1")


def test_lost_levels_have_places_too() -> None:
    try:
        image = rom.load("lost-levels")
    except rom.RomError as error:
        pytest.skip(str(error))
    found = starts.Catalogue(image, lost_levels=True).find("1-1/*")
    assert len(found) > 5
    pool = mario_envpool.make(
        "SuperMarioBros2-1-1-v0", num_envs=4, starts="1-1/page-0[2-5]"
    )
    assert (pool.reset()[1]["x_pos"] >= 512).all()


@pytest.mark.parametrize(("skip", "stack"), [(4, 4), (6, 3), (1, 2), (16, 16)])
@pytest.mark.parametrize("frame_max", [False, True])
def test_frame_stacks_are_those_of_the_last_frames(
    skip: int, stack: int, frame_max: bool
) -> None:
    """Tiles of the frames that a console shows, at the spacing of the steps."""
    place = catalogue().find("1-1/page-05")[0]
    pool = mario_envpool.make(
        "SuperMarioBros-1-1-v0",
        num_envs=1,
        obs_type=["tiles", "gray"],
        frame_skip=skip,
        stack_num=stack,
        frame_max=frame_max,
        starts=place.name,
    )
    obs, info = pool.reset()
    assert (info["start"][0], info["elapsed_step"][0]) == (1, 0)
    console = nes.Console(rom.load("vanilla"))
    console.load(place.save)
    tiles, gray, screens = [], [], []
    for number, pressed in enumerate(place.buttons):
        console.step(pressed)
        screens.append(console.palette_indices())
        if number > 0 and (len(place.buttons) - 1 - number) % skip == 0:
            tiles.append(_core.tiles(console.ram))
            previous = screens[-2] if frame_max else None
            gray.append(_testing.preprocess_frame(screens[-1], previous)[0])
    tiles = [tiles[0]] * stack + tiles  # where there is no more, the first again
    gray = [gray[0]] * stack + gray
    np.testing.assert_array_equal(obs["tiles"][0], tiles[-stack:])
    np.testing.assert_array_equal(
        obs["gray"][0], np.concatenate(gray[-stack:]).reshape(stack, 84, 84)
    )
    # And it continues from there.
    after = pool.step(np.zeros(1, np.int32))[0]
    for _ in range(skip):
        console.step(0)
    np.testing.assert_array_equal(after["tiles"][0, -1], _core.tiles(console.ram))


def test_weights_and_patterns_decide_where_episodes_begin() -> None:
    pool = mario_envpool.make(
        "SuperMarioBros-v0",
        num_envs=300,
        stages=["1-2", "1-1"],
        obs_type="ram",
        starts={"1-1/start": 2, "1-1/page-0[34]": 1, "1-2/page-05": 0},
        seed=3,
    )
    info = pool.reset()[1]
    assert (info["stage"] == 1).all()
    counts = np.bincount(info["start"], minlength=5)
    # The pool's own stages first: 1-2, 1-1.
    assert counts[0] == counts[4] == 0
    assert 170 < counts[1] < 230
    assert 30 < counts[2] < 70
    assert counts[1:4].sum() == 300
    assert set(info["x_pos"][info["start"] == 1].tolist()) == {40}
    assert set((info["x_pos"] // 256)[info["start"] == 3].tolist()) == {4}


def test_lists_count_each_place_once() -> None:
    pool = mario_envpool.make(
        "SuperMarioBros-1-1-v0",
        num_envs=8,
        starts=["1-1/page-03", "1-1/page-03", "1-1/page-0[3]"],
    )
    info = pool.reset()[1]
    assert set(info["start"].tolist()) == {1}
    with pytest.raises(ValueError, match=r"here 1 \+ 0"):
        pool.set_starts([1, 1])


def test_a_star_may_stand_for_the_slash() -> None:
    some = catalogue(stages=["1-1", "1-2"])
    for pattern in ("*start", "1-*start", "1-?/start"):
        assert [p.name for p in some.find(pattern)] == ["1-1/start", "1-2/start"]
    assert [p.name for p in some.find("1-2*t")] == ["1-2/start"]


def test_a_pool_knows_the_places_of_its_stages_only() -> None:
    pool = mario_envpool.make("SuperMarioBros-1-1-v0", num_envs=64, starts="*")
    assert set(pool.reset()[1]["stage"].tolist()) == {1}
    with pytest.raises(
        ValueError, match="in 8-4, but these environments play 1-1 only"
    ):
        mario_envpool.make("SuperMarioBros-1-1-v0", num_envs=1, starts="8-4/*")
    whole = mario_envpool.make("SuperMarioBros-v0", num_envs=2, starts="8-4/page-18")
    assert whole.reset()[1]["world"].tolist() == [8, 8]
    assert whole.reset()[1]["start"].tolist() == [1, 1]
    random_stages = mario_envpool.make(
        "SuperMarioBrosRandomStages-v0", num_envs=2, starts="8-4/start"
    )
    assert random_stages.reset()[1]["start"].tolist() == [31, 31]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            "1-1/page-3",
            ValueError,
            r"start '1-1/page-3'; similar names are '1-1/page-\d3'",
        ),
        ("1-1/strat", ValueError, "similar names are '1-1/start'"),
        ("9-9/*", ValueError, r"similar names are '1-1/\*'"),
        ("", ValueError, "there is no start ''"),
        ({"1-1/start": -1}, ValueError, "the weight of '1-1/start' is -1"),
        ({"1-1/start": "2"}, ValueError, "the weight of '1-1/start' is '2'"),
        ({"1-1/start": float("nan")}, ValueError, "weights are finite numbers of 0"),
        ({"1-1/start": 0}, ValueError, "weight above 0"),
        ({"1-1/start": np.int64(0)}, ValueError, "weight above 0"),
        ({"1-1/start": np.float32(-1)}, ValueError, "weights are finite numbers of 0"),
        ({5: 1}, TypeError, "starts has the name 5; give text"),
        ({}, ValueError, "weight above 0"),
        ([], ValueError, "weight above 0"),
        (3, TypeError, "starts=3 is not possible; give a name such as"),
        (["1-1/start", 4], TypeError, "is not possible"),
    ],
)
def test_mistakes_are_told(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mario_envpool.make("SuperMarioBros-1-1-v0", num_envs=1, starts=given)


def file_of(folder: Path, stage: str) -> Path:
    (file,) = folder.glob(f"starts-v{starts.VERSION}/*/{stage}.npz")
    return file


def test_a_stage_is_kept_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIO_ENVPOOL_CACHE", str(tmp_path))
    first = starts.names("1-1/*")
    file = file_of(tmp_path, "1-1")
    assert [path.name for path in file.parent.iterdir()] == ["1-1.npz"]
    assert rom.SHA1["vanilla"] in str(file)

    def nothing(*_: object) -> Any:
        raise AssertionError("it is there already")

    monkeypatch.setattr(scout, "places", nothing)
    assert starts.names("1-1/*") == first
    with pytest.raises(AssertionError):
        starts.names("1-4/*")


@pytest.mark.parametrize(
    "damage", ["cut", "changed", "version", "empty", "foreign", "other"]
)
def test_a_damaged_file_is_made_again(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIO_ENVPOOL_CACHE", str(tmp_path))
    wanted = starts.names("1-4/*")
    file = file_of(tmp_path, "1-4")
    good = file.read_bytes()
    middle = len(good) // 2
    flipped = bytes([good[middle] ^ 255])
    version = good.index(b"PK\1\2") + 6  # that zipfile must have to read it
    if damage == "other":  # another ROM's
        places = list(scout.places(rom.load("pixel"), "1-4"))[:2]
        starts._write(file, places)
    else:
        file.write_bytes(
            {
                "cut": good[:middle],
                "changed": good[:middle] + flipped + good[middle + 1 :],
                "version": good[:version] + b"\xff" + good[version + 1 :],
                "empty": b"",
                "foreign": b"not an archive",
            }[damage]
        )
    assert starts.names("1-4/*") == wanted
    assert starts._read(file, rom.load("vanilla")) is not None


def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARIO_ENVPOOL_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="1-4 cannot be kept .* MARIO_ENVPOOL_CACHE"):
        assert "1-4/start" in starts.names("1-4/start")


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIO_ENVPOOL_CACHE", "/some/where")
    assert starts.folder() == Path("/some/where")
    monkeypatch.delenv("MARIO_ENVPOOL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert starts.folder() == Path("/caches/mario_envpool")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert starts.folder() == Path.home() / ".cache" / "mario_envpool"


def test_the_command_lists_them() -> None:
    command = [sys.executable, "-m", "mario_envpool", "starts", "1-1/*"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == starts.names("1-1/*")
    command[-1] = "1-1/pages"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "similar names are" in done.stderr


def test_saves_and_buttons_are_checked() -> None:
    spec = mario_envpool.make_spec("SuperMarioBros-1-1-v0")
    place = catalogue().find("1-1/start")[0]
    with pytest.raises(ValueError, match="one movie of buttons for each save"):
        _core.start_snapshots(spec, [place.save], [])
    with pytest.raises(ValueError, match="2 frames or more, got those of 1"):
        _core.start_snapshots(spec, [place.save], [b"\0"])
    with pytest.raises(ValueError, match="its size of"):
        _core.start_snapshots(spec, [place.save[:-1]], [bytes(2)])
    assert _core.start_snapshots(spec, [], []).shape[0] == 0


def test_a_place_of_another_stage_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'1-2/start' is in 1-2.*play 1-1 only"):
        mario_envpool.make("SuperMarioBros-1-1-v0", starts="1-2/start")
    with pytest.raises(ValueError, match="no place with a weight above 0"):
        mario_envpool.make("SuperMarioBros-1-1-v0", starts=[])
