"""The example of upstream's README runs with its imports replaced, and nothing else.

The text is read from the installed gym-super-mario-bros 7.4; it is not ours to copy.
"""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from mario_envpool.compat import SuperMarioBrosEnv

IMPORTS = {
    "from nes_py.wrappers import": "from mario_envpool.compat.wrappers import",
    "import gym_super_mario_bros\n": (
        "import mario_envpool.compat as gym_super_mario_bros\n"
    ),
    "from gym_super_mario_bros.actions import": (
        "from mario_envpool.compat.actions import"
    ),
}
FRAMES = 400  # of the example's 5,000


def readme_example() -> str:
    try:
        metadata = importlib.metadata.metadata("gym-super-mario-bros")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("gym-super-mario-bros, whose README has the example, is not here")
    if not metadata["Version"].startswith("7.4."):
        pytest.skip(f"gym-super-mario-bros {metadata['Version']} is not 7.4")
    text = metadata["Description"] or str(metadata.get_payload())  # type: ignore[attr-defined]
    example = re.search(r"```python\n(from nes_py.*?)```", text, re.DOTALL)
    assert example is not None
    return example.group(1)


@pytest.mark.rom
def test_the_example_of_7_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame", reason="the example renders to a window")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(SuperMarioBrosEnv.metadata, "render_fps", 0)  # no waiting
    code = readme_example()
    for theirs, ours in IMPORTS.items():
        assert code.count(theirs) == 1, theirs
        code = code.replace(theirs, ours)
    assert code.count("range(5000)") == 1
    code = code.replace("range(5000)", f"range({FRAMES})")
    names: dict[str, object] = {}
    exec(compile(code, "README of gym-super-mario-bros", "exec"), names)
    assert names["step"] == FRAMES - 1
    assert names["info"]["time"] < 400  # type: ignore[index]
    assert names["state"].shape == (240, 256, 3)  # type: ignore[attr-defined]
