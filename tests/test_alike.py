"""bench/alike.py: what counts as a conflict, and levels that have one."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "bench" / "alike.py"


@pytest.fixture(scope="module")
def alike():
    spec = importlib.util.spec_from_file_location("alike", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_conflicts_are_observations_with_different_actions(alike):
    levels = {
        "1-1": {
            b"a": Counter(right=3),
            b"b": Counter(right=2, jump=5),
            b"c": Counter(up=1),
        },
        "1-2": {b"a": Counter(right=1), b"b": Counter(right=4)},
        "1-3": {b"b": Counter(jump=2), b"d": Counter(up=1)},
    }
    found = alike.compare(levels)
    assert found[:3] == (4, 2, 1)
    assert found.pairs == {("1-1", "1-2"): 1, ("1-2", "1-3"): 1}
    assert found.steps == {"1-1": 7, "1-2": 4, "1-3": 2}


@pytest.mark.rom
@pytest.mark.slow
def test_released_policies_of_water_levels_have_conflicts(alike, capsys):
    alike.main(["--levels", "2-2,7-2,1-4", "--episodes", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  2-2 and 7-2: ") for line in lines)
    assert not any("1-4" in line for line in lines)
    with pytest.raises(SystemExit):
        alike.main(["--episodes", "0"])
    assert "--episodes must be at least 1, got 0" in capsys.readouterr().err
    for arguments, message in (
        (["nowhere", "--levels", "1-1"], "error: no policy at nowhere/1-1.safetensors"),
        (["--levels", "9-9"], "error: there is no level '9-9' in SuperMarioBros-v0"),
    ):
        with pytest.raises(SystemExit):
            alike.main(arguments)
        assert message in capsys.readouterr().err.splitlines()[-1]
