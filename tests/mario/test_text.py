"""``obs_type="text"``: scenes in words, their length, and where the option exists.

Scenes are drawn with the signs of ``mario_envpool.tiles`` and written into an empty
RAM; they need no ROM.
"""

from __future__ import annotations

import importlib.util
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from screens import LEVELS, PAGES, start

import mario_envpool
from mario_envpool import _core, text
from mario_envpool.env import MarioEnv

Ram = np.ndarray[Any, np.dtype[np.uint8]]
AT = _core.ram_addresses
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "text_player.py"
METATILES = {"#": 0x54, "B": 0x51, "?": 0xC0, "P": 0x10, "o": 0xC2, "|": 0x25}
GROUND = ["#" * 16] * 2
SKY = [" " * 16]


def ram_of(rows: list[str], mario: int = 10) -> Ram:
    """RAM with these rows, the last ones of the screen; small Mario is in a row."""
    ram = np.zeros(2048, np.uint8)
    rows = SKY * (13 - len(rows)) + rows
    for row, signs in enumerate(rows):
        for column, sign in enumerate(signs):
            ram[AT["BlockBuffer"] + 16 * row + column] = METATILES.get(sign, 0)
    ram[AT["PlayerX"]], ram[AT["PlayerY"]] = 5 * 16, 16 * (mario + 1)
    ram[[AT["ViewportY"], AT["PlayerSize"]]] = 1
    ram[AT["PlayerState"]] = 8
    ram[AT["Time"] : AT["Time"] + 3] = 3, 9, 1
    return ram


def add_object(ram: Ram, slot: int, number: int, column: int, row: int) -> None:
    """Puts an object of a type into a cell."""
    ram[AT["EnemyFlag"] + slot], ram[AT["EnemyType"] + slot] = 1, number
    ram[AT["PlayerX"] + 1 + slot] = 16 * column
    ram[AT["PlayerY"] + 1 + slot] = 16 * (row + 1) + 32 - 25
    ram[AT["ViewportY"] + 1 + slot] = 1


def line(described: str, title: str) -> str:
    return re.search(rf"^{title}: (.*)\.$", described, re.M)[1]  # type: ignore[index]


@pytest.mark.parametrize(
    ("rows", "ahead"),
    [
        (GROUND, "level ground"),
        (["########  ######"] * 2, "pit 3 ahead, 2 wide"),
        (["########        "] * 2, "pit 3 ahead, 8 wide, or more"),
        (["#####           "] * 2, "pit 1 ahead, 10 wide, or more"),
        (["         PP     "] * 2 + GROUND, "pipe 4 ahead, 2 wide, 2 up"),
        (["             ###"] * 3 + GROUND, "ground 8 ahead, 3 up"),
        (["       #        "] * 11 + GROUND, "ground 2 ahead, 11 up, no way over"),
        (
            ["         #      ", "        ##      ", "       ###      ", *GROUND],
            "stairs 2 ahead, 3 wide, 3 up",
        ),
        (
            [" " * 13 + "###", *SKY, *["########        "] * 2],
            "pit 3 ahead, 5 wide; ground 8 ahead, 2 up",
        ),
    ],
)
def test_ground(rows: list[str], ahead: str) -> None:
    assert line(text.describe(ram_of(rows)), "Ahead") == ahead


def test_ground_lower_than_mario() -> None:
    ram = ram_of(["########        ", "########   #####", *GROUND], mario=8)
    expected = "ground 3 ahead, 3 wide, 2 down; ground 6 ahead, 1 down"
    assert line(text.describe(ram), "Ahead") == expected


def test_blocks_and_coins_above() -> None:
    rows = ["   ?  oo        ", *SKY * 2, " BBB    B?BB    ", *SKY * 3, *GROUND]
    expected = "box 4 ahead, 4 up; bricks 3 ahead, 4 up; bricks 5 ahead, 2 wide, 4 up"
    assert line(text.describe(ram_of(rows)), "Blocks") == expected
    two = [" " * 7 + "BB" + " " * 7] * 2 + SKY * 3
    blocks = line(text.describe(ram_of([*two, *GROUND])), "Blocks")
    assert blocks == "bricks 2 ahead, 2 wide, 4 to 5 up"


def test_enemies_and_others() -> None:
    ram = ram_of([*SKY * 3, " " * 12 + "|   ", *GROUND])
    add_object(ram, 0, 0x06, 8, 10)  # a goomba
    ram[AT["SpeedX"] + 1] = 0xF8
    add_object(ram, 1, 0x00, 3, 8)  # a koopa
    add_object(ram, 2, 0x0D, 9, 10)  # a plant, in its pipe
    ram[AT["BlockBuffer"] + 16 * 9 + 9] = METATILES["P"]
    add_object(ram, 5, 0x2E, 6, 10)  # a flower
    ram[AT["PowerUpType"]] = 1
    described = text.describe(ram)
    expected = "koopa 2 behind, 2 up; goomba 3 ahead, level, moving left"
    assert line(described, "Enemies") == expected
    assert line(described, "Other") == "flower 1 ahead, level; flag pole 7 ahead, 1 up"


def test_a_fire_bar() -> None:
    ram = ram_of([*SKY * 9, *GROUND])
    add_object(ram, 0, 0x1B, 8, 7)
    ram[AT["SpeedY"] + 1], ram[AT["FirebarSpeed"]] = 8, 0x28  # an eighth of 32 angles
    sides = set()
    for angle in range(0, 32, 4):
        ram[AT["SpeedY"] + 1] = angle
        said = line(text.describe(ram), "Enemies")
        assert said.startswith("fire bar 3 ahead, ")
        sides.add(re.search(r"pointing (.*), turning clockwise", said)[1])  # type: ignore[index]
    assert sides == set(text._SIDES)
    ram[AT["FirebarDirection"]] = 1
    assert "turning counterclockwise" in text.describe(ram)


def test_mario() -> None:
    ram = ram_of(GROUND, mario=7)
    ram[AT["SpeedX"]], ram[AT["SpeedY"]] = 0x28, 0xFC
    ram[AT["FloatState"]], ram[AT["ButtonsBefore"]] = 1, 0x80
    said = "small, in the air, 3 above ground, rising, running right, A is held"
    assert text.describe(ram).startswith(f"World 1-1, time 391.\nMario: {said}.\n")
    ram = ram_of(["#####     ######"] * 2)
    ram[AT["FloatState"]], ram[AT["PowerStatus"]] = 2, 2
    ram[AT["PlayerSize"]] = 0
    said = "fire, in the air, over a pit, falling, not moving"
    assert line(text.describe(ram), "Mario") == said
    ram[AT["PlayerState"]] = 0x0B
    assert line(text.describe(ram), "Mario") == "fire, dying"


def test_ram_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="array of 2,048 bytes, got shape"):
        text.describe(np.zeros((2, 1024), np.uint8))


def test_any_ram_has_a_text() -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        ram = rng.integers(256, size=2048, dtype=np.uint8)
        assert text.SPACE.contains(text.describe(ram))


def tokens(described: str) -> int:
    """More than tokenizers make: four letters, a digit or a sign are a token.

    For 175,708 texts from 84 levels, cl100k, o200k and those of Qwen, Claude 2 and
    DeepSeek made fewer, at most 110; that of Mistral 7B made at most 119.
    """
    pieces = re.findall(r"[A-Za-z]{1,4}|\d|[^\w\s]|\n", described)
    return len(pieces)


@pytest.mark.slow
@pytest.mark.rom
def test_texts_are_short_and_objects_agree_with_motion(
    load_rom: Callable[[str], bytes],
) -> None:
    rom, rng = load_rom("vanilla"), np.random.default_rng(0)
    texts = set()
    for world, stage in LEVELS:
        for page in PAGES:
            console = start(rom, world, stage, page)
            for frame in range(0 if console is None else 160):
                if frame % 10 == 0:
                    buttons = int(rng.choice((128, 129, 130, 131, 131, 64, 0)))
                console.step(buttons, False)
                if frame % 20 == 19:
                    check_objects(console.ram)
                    texts.add(text.describe(console.ram))
    print(len(texts), max(map(tokens, texts)))
    assert len(texts) > 1000
    assert max(map(tokens, texts)) <= 120
    assert all(map(text.SPACE.contains, texts))
    for name in ("pit", "pipe", "stairs", "goomba", "koopa", "lift", "fire bar", "box"):
        assert sum(name in each for each in texts) > 5, name


def check_objects(ram: Ram) -> None:
    """The nearest objects are the rows of motion."""
    left = int(ram[0x6D]) * 256 + int(ram[0x86])
    left -= int(ram[AT["ScreenLeftPage"]]) * 256 + int(ram[AT["ScreenLeftX"]])
    shown = [
        (abs(x) + abs(y), x, y, kind, speed_x, speed_y)
        for kind, _, x, y, width, _, speed_x, speed_y in _core.objects(ram).tolist()
        if -width < left + x < 256
    ]
    rows = np.zeros((7, 5), int)
    for row, (_, x, y, kind, *speeds) in zip(rows, sorted(shown), strict=False):
        row[:] = np.clip((kind, x, y, *speeds), -128, 127)
    assert (rows == _core.motion(ram)[1:, :5]).all()


def make(**options: Any) -> MarioEnv:
    return MarioEnv("SuperMarioBros-1-1-v0", obs_type="text", **options)


@pytest.mark.rom
def test_the_environment_speaks() -> None:
    env, twin = make(), MarioEnv("SuperMarioBros-1-1-v0", obs_type="ram")
    for _ in range(2):
        said, _ = env.reset(seed=1)
        ram, _ = twin.reset(seed=1)
        for action in np.random.default_rng(0).integers(7, size=60).tolist():
            assert said == text.describe(ram)
            assert said in env.observation_space
            said, ram = env.step(action)[0], twin.step(action)[0]
    saved = env.snapshot()
    env.step(1)
    assert env.restore(saved)[0] == said
    assert pickle.loads(pickle.dumps(env)).reset(seed=1)[0] == env.reset(seed=1)[0]
    check_env(MarioEnv(obs_type=["text"]), skip_render_check=True)


@pytest.mark.rom
def test_a_vector_of_texts() -> None:
    envs = gymnasium.make_vec(
        "mario_envpool:SuperMarioBros-1-1-v3", 2, "sync", obs_type="text"
    )
    said, _ = envs.reset(seed=1)
    assert said[0].startswith("World 1-1, time 400.\n")
    envs.close()


@pytest.mark.rom
@pytest.mark.parametrize("types", ["text", ["text", "ram"]])
def test_pools_refuse_text(types: Any) -> None:
    for call in (
        lambda: mario_envpool.make("SuperMarioBros-1-1-v0", obs_type=types),
        lambda: gymnasium.make_vec("SuperMarioBros-1-1-v3", 2, obs_type=types),
        lambda: MarioEnv(obs_type=["text", "ram"]),
    ):
        with pytest.raises(ValueError, match=r"no text; .* alone, in MarioEnv"):
            call()


@pytest.mark.slow
@pytest.mark.rom
def test_the_text_is_enough_to_clear_a_level() -> None:
    spec = importlib.util.spec_from_file_location("text_player", EXAMPLE)
    assert spec
    assert spec.loader
    player = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(player)
    env = make(noop_max=30)
    for seed in range(3):
        said, info = env.reset(seed=seed)
        ended = False
        while not ended:
            action = mario_envpool.SIMPLE_MOVEMENT.index(player.choose(said))
            said, _, ended, _, info = env.step(action)
        assert info["flag_get"], info
