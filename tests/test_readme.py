"""The examples of README.md run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.rom
@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_runs(code: str) -> None:
    exec(compile(code, str(README), "exec"), {})


def test_there_is_an_example_for_each_api() -> None:
    for call in (
        "envpool.make(",
        "mario_envpool.make(",
        '"dm"',
        ".make(",
        ".make_vec(",
    ):
        assert any(call in code for code in EXAMPLES), call
