"""Learning from files: how they become a run's steps, cloning, and whole runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import CPU, differences, essence, make_config, run_in_parts

from mario_envpool import nes, rom
from trainer.config.schema import EnvConfig
from trainer.explore import demonstrations
from trainer.explore.demonstrations import find_ways, read_ways, walk
from trainer.film.filmed_env import FilmedEnv, game_config
from trainer.film.recorder import Recorder
from trainer.learn.gradients import Imitation
from trainer.models import build_model, checkpoint
from trainer.planning import demonstration
from trainer.planning.demonstration import Demonstration
from trainer.run import main
from trainer.session.training import run_training

SMALL = {"obs": "tiles", "stack_num": 1, "noop_max": 4, "num_threads": 1}
OPTIONS = {
    "rom": "vanilla", "lost_levels": False, "timing": "console", "power_on_ram": 0,
    "cut_waits": True,
}  # fmt: skip


def made_of(buttons, **fields):
    one = Demonstration("SuperMarioBros-v0", "1-1", OPTIONS, "0" * 40, b"", 0.0, "")
    return replace(one, buttons=bytes(buttons), **fields)


def held(byte, frames):
    return [byte] * frames


# -- steps ---------------------------------------------------------------------

ENV = EnvConfig(noop_max=9, frame_skip=4)


@pytest.mark.parametrize(
    ("buttons", "idle", "steps"),
    [
        (held(128, 8), 0, [128, 128]),
        (held(128, 6), 0, [128, 128]),  # the flag ends a step
        (held(0, 3) + held(128, 4), 3, [128]),
        # As many as can be: nobody decided on them.
        (held(0, 8) + held(128, 4), 8, [128]),
        (held(0, 11) + held(128, 4), 7, [0, 128]),
        (held(128, 4) + held(0, 4) + held(129, 3), 0, [128, 0, 129]),
    ],
)
def test_frames_become_steps(buttons, idle, steps):
    found = demonstrations._steps("a.json", made_of(buttons), ENV)
    assert (found[0], found[1].tolist()) == (idle, steps)


@pytest.mark.parametrize(
    ("buttons", "frame"),
    [
        (held(128, 6) + held(129, 2), 6),
        (held(0, 2) + held(128, 5) + held(0, 9), 7),
        (held(0, 12) + held(128, 5) + held(130, 4), 17),
    ],
)
def test_buttons_that_change_within_a_step_are_refused(buttons, frame):
    with pytest.raises(ValueError, match=f"a.json changes .* in frame {frame}: a rec"):
        demonstrations._steps("a.json", made_of(buttons), ENV)


def test_other_idle_frames_are_refused():
    frames = made_of(held(0, 3) + held(128, 4))
    with pytest.raises(ValueError, match="at most --noop-max 0 idle frames"):
        demonstrations._steps("a.json", frames, replace(ENV, noop_max=0))


def test_buttons_that_are_no_action_are_refused():
    files = [made_of([128, 0]), made_of([0, nes.DOWN, 0])]
    first, second = (np.frombuffer(one.buttons, np.uint8) for one in files)
    with pytest.raises(ValueError, match=r"b\.json has down in step 1, but") as error:
        demonstrations._numbers("b.json", second, files, ENV)
    assert str(error.value).endswith("--custom-actions NOOP,down,right")
    assert demonstrations._numbers("a.json", first, files, ENV).tolist() == [1, 0]


# -- the run's own environments ------------------------------------------------


@pytest.fixture(scope="module")
def env():
    return EnvConfig(task="SuperMarioBros-1-1-v0", **SMALL)


@pytest.fixture(scope="module")
def kept(env, tmp_path_factory):
    """A way through 1-1 from two starts, and its recordings, played again."""
    folder = tmp_path_factory.mktemp("kept")
    ways = find_ways(env, ("1-1",), 1, per_level=2, log=lambda _: None)[:2]
    game = FilmedEnv(game_config(env))
    recorder = Recorder(folder / "way.json")
    for way in ways:
        game.restore(way.start.tobytes())
        recorder.begin(game)
        for action in way.actions.tolist():
            game.step(action)
        recorder.end()
    paths = [folder / "way.json", folder / "way-2.json"]
    assert [demonstration.load(path).ending for path in paths] == ["cleared"] * 2
    return ways, paths


@pytest.mark.slow
@pytest.mark.rom
def test_recordings_become_the_ways_they_were(env, kept, tmp_path):
    ways, paths = kept
    short = tmp_path / "short.json"
    one = demonstration.load(paths[0])
    replace(one, buttons=one.buttons[:40], ending="stopped", reward=0.0).save(short)
    lines = []
    found = read_ways(env, ("1-1",), 7, [*paths, short], lines.append)
    assert "2 files" in lines[0]
    assert "1 that end earlier are left out" in lines[0]
    for way, again in zip(ways, found, strict=True):
        # Without steps that press nothing before the first that presses something.
        cut = len(way.actions) - len(again.actions)
        assert not way.actions[:cut].any()
        assert np.array_equal(way.actions[cut:], again.actions)
    seen = walk(env, found, 7, 32)
    assert [len(way.obs) for way in seen] == [len(way.actions) for way in found]
    with pytest.raises(ValueError, match="none of the 1 demonstrations of --demos"):
        read_ways(env, ("1-1",), 7, [short], lines.append)


@pytest.mark.rom
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"level": "1-2"}, "is a demonstration of 1-2, but the run plays 1-1"),
        ({"level": ""}, "is a demonstration of the whole game, but the run plays 1-1"),
        (
            {"options": OPTIONS | {"cut_waits": False}},
            "was made with cut_waits=False, but the run has True",
        ),
        ({"rom_sha1": "0" * 40}, "needs the ROM with SHA-1 0000"),
    ],
)
def test_files_of_another_game_are_refused(env, tmp_path, changes, message):
    path = tmp_path / "other.json"
    made_of(held(128, 8), **changes).save(path)
    with pytest.raises(ValueError, match=message):
        read_ways(env, ("1-1",), 1, [path], lambda _: None)


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize("skip", [2, 3, 6])
def test_play_at_60_frames_a_second_is_held(env, kept, tmp_path, skip):
    """In some steps one frame has the buttons of the step before."""
    one = demonstration.load(kept[1][0])
    env = replace(env, frame_skip=skip)
    idle, buttons = demonstrations._steps("a", one, env)
    frames = np.frombuffer(one.buttons, np.uint8).copy()
    late = np.flatnonzero(np.diff(buttons))[::3] + 1
    if skip > 2:  # of two frames neither is most of them: the first counts
        frames[idle + late * skip] = frames[idle + late * skip - 1]
    else:
        frames[idle + late * skip + 1] = frames[idle + late * skip - 1]
    path = tmp_path / "a.json"
    played = replace(one, buttons=frames.tobytes())
    played.save(path)
    lines = []
    (way,) = read_ways(env, ("1-1",), 7, [path], lines.append)
    assert lines[0].startswith(f"{path}: buttons change within {len(late)} of ")
    assert lines[0].endswith("it reaches the flag")
    assert (way.actions == demonstrations._numbers("a", buttons, [one], env)).all()
    assert len(walk(env, [way], 7, 32)[0].obs) == len(buttons)


@pytest.mark.rom
def test_play_that_is_lost_when_held_is_left_out(env, tmp_path):
    path = tmp_path / "a.json"
    rom_sha1 = hashlib.sha1(rom.load()).hexdigest()
    made_of([128, 129] * 9 + [128, 129, 129], rom_sha1=rom_sha1).save(path)
    lines = []
    with pytest.raises(ValueError, match=r"none of the 1 .* with --frame-skip 6; give"):
        read_ways(env, ("1-1",), 1, [path], lines.append)
    assert lines == [
        f"{path}: buttons change within 4 of 4 steps; with the buttons of most frames "
        "of each step it stopped: left out"
    ]


@pytest.mark.rom
def test_a_file_is_played_with_the_turbo_of_the_run(env):
    rom_sha1 = hashlib.sha1(rom.load()).hexdigest()
    options = OPTIONS | {"turbo_swim": 0, "pause_for_rng": False}
    swum = made_of(held(129, 60), level="2-2", rom_sha1=rom_sha1, options=options)
    lines = []
    assert demonstrations._held("a", swum, env, lines.append) is swum
    turbo = replace(env, turbo_swim=6)
    again = demonstrations._held("a", swum, turbo, lines.append)
    assert lines == ["a: with --turbo-swim 6 it stopped: left out"]
    assert again.options == options | {"turbo_swim": 6}
    assert (again.buttons, again.ending) == (swum.buttons, "stopped")
    assert demonstrations._held("a", again, turbo, lines.append) is again


@pytest.mark.rom
def test_a_recording_under_turbo_is_the_same_again(env, tmp_path):
    env = replace(env, task="SuperMarioBros-2-2-v0", turbo_swim=6)
    game = FilmedEnv(game_config(env))
    game.reset()
    recorder = Recorder(tmp_path / "a.json")
    recorder.begin(game)
    for _ in range(12):
        game.step(env.actions.index("right+A"))
    recorder.end()
    made = demonstration.load(tmp_path / "a.json")
    again = demonstration.environment(made)
    again.reset()
    for byte in made.buttons:
        again.step(byte)
    assert np.array_equal(again.ram, game.ram)
    assert set(made.buttons) <= {0, 129}  # what the actions hold


# -- cloning -------------------------------------------------------------------


@pytest.mark.slow
def test_cloning_takes_the_actions_that_were_shown(tmp_path):
    torch.manual_seed(0)
    model = build_model(make_config(tmp_path).model, (1, 36, 36), 5)
    chosen = torch.arange(100) % 5
    obs = (chosen * 60).to(torch.uint8)[:, None, None, None].expand(-1, 1, 36, 36)
    made = Imitation(
        model, obs, chosen, dtype=None, generator=torch.Generator().manual_seed(1)
    )
    losses = list(made.clone(300))
    assert losses[0] == pytest.approx(np.log(5), abs=0.3)
    assert losses[-1] < 0.3
    output, _ = model(obs[None], torch.zeros(100, 0), torch.zeros(1, 100).bool())
    assert torch.equal(output.logits[0].argmax(-1), chosen)
    assert list(made.clone(0)) == []


# -- whole runs ----------------------------------------------------------------


def small(folder, paths, **options):
    demos = tuple(map(str, paths))
    config = make_config(
        folder, log_seconds=100.0, demos=demos, cloning_steps=60, **SMALL, **options
    )
    return replace(config, model=replace(config.model, name="tiles"))


@pytest.mark.slow
@pytest.mark.rom
def test_a_run_is_cloned_first_and_goes_on_exactly(tmp_path, kept, capsys):
    whole = small(tmp_path / "whole", kept[1], max_steps=960, keep_checkpoints=99)
    run_training(whole)
    said = capsys.readouterr().out
    assert "cloned in 60 steps" in said
    (*_, first) = checkpoint.list_files(whole.run_dir)
    assert (first.name, checkpoint.load(first, CPU)["steps"]) == (
        *("step-000000000.pt", 0),
    )
    parts = run_in_parts(whole, tmp_path / "parts" / "run", 480)
    assert capsys.readouterr().out.count("cloned in") == 1  # once
    assert differences(essence(whole.run_dir), essence(parts.run_dir)) == []


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize(
    "options", [{"imitation": 0.1}, {"starts": "backward"}, {"guide": 0.1}]
)
def test_files_are_used_wherever_ways_are(tmp_path, kept, options):
    config = small(tmp_path / "run", kept[1], max_steps=480, **options)
    run_training(config)
    state = checkpoint.load(config.run_dir, CPU)
    assert len(state["ways"]) == 2
    row = json.loads((config.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    name = {"imitation": "learn/loss/imitation", "guide": "explore/guide"}.get(
        next(iter(options)), "explore/demonstration_left"
    )
    assert row[name] is not None


@pytest.mark.slow
@pytest.mark.rom
def test_the_command(tmp_path, kept, capsys):
    flags = "--obs tiles --noop-max 4 --max-steps 512 --no-videos --dashboard off"
    words = [*flags.split(), "--device", "cpu", "--cloning-steps", "20", "--demos"]
    run = ["--run-dir", str(tmp_path / "run")]
    assert main([*words, *map(str, kept[1]), *run]) == 0
    assert "cloned in 20 steps" in capsys.readouterr().out
    assert main([*words, "none.json", "--run-dir", str(tmp_path / "other")]) == 2
    assert "error: none.json does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": "gru"}, "--demos is for networks without --memory"),
        ({"task": "SuperMarioBros-v0"}, "--demos needs demonstrations of single"),
        ({"repeat_action_probability": 0.25}, "--demos needs demonstrations, which"),
        ({"cloning_steps": -1}, "cloning_steps must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_cloned_is_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        make_config(tmp_path, demos=("a.json",), **options).validate()


def test_what_needs_files_or_a_search_says_so(capsys):
    for words, message in (
        (["--cloning-steps", "5"], "--demos"),
        (["--demos", "a.json", "--demonstrations", "2"], "a run without --demos"),
    ):
        assert main([*words, "--device", "cpu"]) == 2
        assert message in capsys.readouterr().err
