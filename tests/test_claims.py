"""bench/claims.py: README's figures, and what is said of measurements of any kind."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from material import ROOT

README = (ROOT / "README.md").read_text()
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the benches need Linux"
)


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    module = importlib.import_module("claims")
    monkeypatch.setattr(module, "loop_rate", lambda: 10.0)
    monkeypatch.setattr(module.rom, "load", lambda: b"")
    return module


def says(claims: Any, **found: Any) -> Callable[..., Any]:
    """A stand-in for `execute`: what a command prints, or the exception it raises."""

    def execute(argv: list[str], folder: Path) -> Any:
        command = " ".join(argv)
        for name, content in found.items():
            claim = next(claim for claim in claims.CLAIMS if claim.name == name)
            if command.startswith(" ".join(claim.argv(folder, 4, 9))):
                if isinstance(content, BaseException):
                    raise content
                return claims.Output(f"a table\n{json.dumps(content)}\n", folder, 41.0)
        raise AssertionError(command)

    return execute


def ratios(*values: float) -> dict[str, Any]:
    """What sps.py prints about a peer."""
    return {"peers": [{"ratio_each": list(values)}], "peers_missing": []}


def rows(rate: float) -> dict[str, Any]:
    """What sps.py prints about its modes."""
    each = [rate * (1 + number / 100) for number in range(9)]
    return {
        "rows": [
            {"mode": mode, "num_threads": threads, "env_steps_per_s_each": each}
            for mode in ("sync", "async")
            for threads in (1, 2)
        ]
    }


def test_every_figure_of_the_table_is_a_claim_word_for_word(claims):
    block = README.split(claims.BEGIN)[1].split(claims.END)[0]
    about = block.partition("\n")[0]
    assert "AVX2" in about  # the vector instructions
    figures = {claim.name: claims.claimed(claim, README) for claim in claims.CLAIMS}
    assert claims.markdown(about, figures) == block
    section = README.split("\n## Speed\n")[1].split("\n## ")[0]
    commands = {claim.command for claim in claims.CLAIMS}
    told = set(re.findall(r"`([^`]*python (?:bench|-m)[^`]*)`", section))
    assert told - commands == {"python bench/claims.py"}


def test_performance_has_the_same_figures(claims):
    page = (ROOT / "docs/performance.md").read_text()
    for claim in claims.CLAIMS:
        if claim.row:
            assert f"| {claims.claimed(claim, README)}" in page, claim.name


def test_every_claim_is_in_readme_with_its_command(claims):
    for claim in claims.CLAIMS:
        figure = claims.claimed(claim, README)
        assert claim.shown(float(figure.replace(",", ""))) == figure
        assert claim.command in README
        for place in claim.places():
            at = place.search(README).start(1)
            for other in (f"1{README[at:]}", README[at + len(figure) :]):
                if other[0] == "1" and len(claim.places()) == 1:
                    continue  # another figure, as --write leaves it
                with pytest.raises(ValueError, match=f"differ in {claim.name}"):
                    claims.claimed(claim, README[:at] + other)


def test_the_default_takes_a_quarter_of_an_hour(claims):
    assert sum(claim.minutes for claim in claims.CLAIMS if claim.default) <= 15


@pytest.mark.slow
def test_every_command_parses(claims, tmp_path):
    for claim in claims.CLAIMS:
        python, *words = claim.argv(tmp_path, 2.0, 9)
        assert python == sys.executable
        if words[0] == "-m":
            module, out = importlib.import_module(words[1]), io.StringIO()
            with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
                module.main(["--help"])
            flags = {word for word in words if word.startswith("--")}
            assert flags <= set(re.findall(r"--[a-z-]+", out.getvalue())), claim.name
        else:
            module = importlib.import_module(Path(words[0]).stem)
            known = module.parse_arguments(words[1:])
            assert known.json
            assert claim.name == "tiles" or not getattr(known, "flags", [])


def test_an_interval_of_a_median(claims):
    assert claims.interval(range(9)) == (1, 7)  # 96.1 %; of 2 to 6: 82.0 %
    assert claims.interval(range(5)) == (0, 4)
    assert claims.interval([3.0]) == (3.0, 3.0)
    assert claims.interval(range(100)) == (39, 60)  # 96.5 %, a table's ranks 40 and 61


@pytest.mark.parametrize(
    ("factor", "verdict", "status"),
    [(0.9, "no: less", 1), (1.0, "holds", 0), (1.1, "no: more", 1)],
)
def test_a_ratio_fails_only_if_its_interval_excludes_it(
    claims, monkeypatch, capsys, factor, verdict, status
):
    claim = next(claim for claim in claims.CLAIMS if claim.name == "gsm")
    middle = factor * float(claims.claimed(claim, README))
    values = [middle * (1 + number / 100) for number in (-9, -4, -3, -2, 0, 1, 3, 4, 9)]
    monkeypatch.setattr(claims, "execute", says(claims, gsm=ratios(*values)))
    assert claims.main(["--only", "gsm"]) == status
    assert verdict in capsys.readouterr().out


def test_a_figure_stands_for_all_that_it_rounds(claims):
    claim = next(claim for claim in claims.CLAIMS if claim.name == "turbo")
    assert claims.Result(claim, "6.3", [6.34] * 9).verdict() == "holds"
    assert claims.Result(claim, "6.3", [6.36] * 9).verdict() == "no: more"


def test_rates_are_shown_beside_the_loop_and_never_fail(claims, monkeypatch, capsys):
    found = {"one-core": rows(1.0), "planner": {}}
    monkeypatch.setattr(claims, "execute", says(claims, **found))
    assert claims.main(["--only", "one-core", "planner"]) == 0
    out = capsys.readouterr().out
    assert out.count("shown") == 2
    assert out.count("10.0 M/s") == 2
    assert "41" in out


def test_a_missing_peer_and_a_failure_have_a_line_each(claims, monkeypatch, capsys):
    why = "/x/python does not exist; create it with bench/peers.sh"
    missing = {"peers": [], "peers_missing": [f"turbo: not measured, {why}"]}
    found = {"turbo": missing, "pong": RuntimeError("no memory")}
    monkeypatch.setattr(claims, "execute", says(claims, **found))
    assert claims.main(["--only", "turbo"]) == 0
    assert f"\nturbo: skipped: {why}\n" in capsys.readouterr().out
    assert claims.main(["--only", "turbo", "pong"]) == 1
    assert "\npong: failed: no memory\n" in capsys.readouterr().out


def test_ctrl_c_prints_what_was_measured(claims, monkeypatch, capsys):
    found = {"one-core": rows(20_700), "two-cores": KeyboardInterrupt()}
    monkeypatch.setattr(claims, "execute", says(claims, **found))
    before = README
    assert claims.main(["--write", "--markdown"]) == 130
    out, error = capsys.readouterr()
    assert "one-core" in out
    assert "two-cores: " not in out
    assert error.endswith("\ninterrupted after 1 of 9 claims\n")
    assert (ROOT / "README.md").read_text() == before


def test_write_replaces_every_figure(claims, monkeypatch, capsys, tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(README)
    monkeypatch.setattr(claims, "README", copy)
    found: dict[str, Any] = {
        "one-core": rows(31_000),
        "two-cores": rows(50_000),
        "emulator": {"frames_per_s_each": {"no picture": [300_000.0]}},
    }
    peers = {"gsm": 300.4, "gsm-async": 200.0, "turbo": 7.26, "pong": 9.0}
    found |= {name: ratios(*[value] * 9) for name, value in peers.items()}
    monkeypatch.setattr(claims, "execute", says(claims, **found))
    assert claims.main(["--only", "gsm", "--write"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: --write changed nothing; not measured: one-core, t")
    assert copy.read_text() == README
    assert claims.main(["--only", *found, "--write", "--markdown"]) == 1
    text = copy.read_text()
    assert claims.markdown("", {}).splitlines()[2] in text
    block = text.split(claims.BEGIN)[1].split(claims.END)[0]
    assert capsys.readouterr().out.endswith(block)
    assert re.match(r"\d+ cores of .+ \(\w.*\); Python loop: 10 M rounds/s\.\n", block)
    assert len(text.split()) <= 1_200 + 10  # the name of a processor may be long
    assert "One core plays 32,200 steps a second, and level 1-1 300 times" in text
    shown = {claim.name: claims.claimed(claim, text) for claim in claims.CLAIMS}
    assert (shown["gsm"], shown["turbo"]) == ("300", "7.3")
    engine = next(claim for claim in claims.CLAIMS if claim.name == "engine")
    assert shown["engine"] == claims.claimed(engine, README)  # was not measured
    copy.write_text(text.replace(claims.END, ""))
    assert claims.main(["--only", *found, "--write"]) == 2
    assert "lacks" in capsys.readouterr().err
    assert copy.read_text() == text.replace(claims.END, "")
    assert text.split(claims.END)[1] == README.split(claims.END)[1]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["--only", "gsm", "nes"],
            "error: unknown claims: nes; known: one-core, two-c",
        ),
        (["--pairs", "5"], "error: --pairs must be 6 or more"),
        (["--seconds", "nan"], "error: --pairs must be 6 or more and --seconds posit"),
    ],
)
def test_bad_input_is_one_line(claims, capsys, words, error):
    assert claims.main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith(error)
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_no_rom_is_one_line(claims, monkeypatch, capsys, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("MARIO_ROM", str(tmp_path / "none.nes"))
    assert claims.main([]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: MARIO_ROM=")
    assert said.err.count("\n") == 1


@pytest.mark.slow
def test_an_interrupted_command_leaves_no_process(tmp_path):
    """The command starts another process, which does not end by SIGINT."""
    stubborn = (
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"pathlib.Path({str(tmp_path / 'new')!r}).write_text(str(os.getpid()))\n"
        f"os.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'pid')!r})\n"
        "time.sleep(200)\n"
    )
    parent = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {stubborn!r}])"
    )
    code = (
        "import signal\n"  # which the parent of pytest may ignore
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r})\n"
        "import claims, pathlib\n"
        f"claims.execute([sys.executable, '-c', {parent!r}], pathlib.Path())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    child = int((tmp_path / "pid").read_text())
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(child, 0)
            state = Path(f"/proc/{child}/stat")
            if (
                state.exists()
                and state.read_text().rpartition(")")[2].split()[0] == "Z"
            ):
                return
            time.sleep(0.1)
        raise AssertionError("the process is still there")


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.rom
def test_the_benches_print_what_is_read(claims, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    names = ["one-core", "turbo", "emulator", "engine"]
    monkeypatch.setenv("MARIO_BENCH_PEERS", str(ROOT / "tests"))  # no peer is there
    claims.main(["--only", *names, "--seconds", "0.02", "--pairs", "6"])
    out = capsys.readouterr().out
    assert "failed" not in out
    assert [out.count(f"{name}: ") for name in names] == [1, 2, 1, 1]
    assert "turbo: skipped: " in out
