"""Attempts at the whole game, by one network or by a policy for each level."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mario_envpool import _core, nes, rom
from trainer.config.network import GRU
from trainer.config.plain import to_dict
from trainer.config.schema import EnvConfig, ModelConfig
from trainer.config.tasks import all_levels, level_number
from trainer.evaluate import main
from trainer.evaluation.play import _ByLevel
from trainer.evaluation.protocol import (
    Protocol,
    evaluate_checkpoint,
    evaluate_game,
    evaluate_whole_game,
)
from trainer.evaluation.whole_game import Attempts, game_result
from trainer.film.filmed_env import (
    FilmedEnv,
    GamePlayer,
    film_episode,
    game_config,
    whole_game,
    whole_game_config,
)
from trainer.models import build_model, released
from trainer.models.level_policies import POOL_OPTIONS, load_level_policies
from trainer.models.released import FOLDER, PolicyFile, read_policy, write_policy
from trainer.plan import main as plan
from trainer.video import main as video
from trainer.watch import main as watch

LEVELS = all_levels("SuperMarioBros-v0")
CPU = torch.device("cpu")


def rows(env_id, level, **columns):
    """Rows of one recv, like `StepColumns`."""
    count = len(env_id)
    names = "is_first done truncated cleared lost_life".split()
    defaults = {name: np.zeros(count, bool) for name in names}
    defaults |= {name: np.array(value) for name, value in columns.items()}
    return SimpleNamespace(
        env_id=np.array(env_id),
        level=np.array([level_number(name) for name in level]),
        step=np.array(columns.pop("step", [7] * count)),
        **{k: v for k, v in defaults.items() if k != "step"},
    )


def test_an_attempt_is_followed_through_the_levels():
    attempts = Attempts(2, LEVELS)
    attempts.observe(rows([0, 1], ["1-1", "1-1"], is_first=[True, True]))
    attempts.observe(rows([1], ["1-1"]))
    attempts.observe(rows([0], ["1-2"]))
    attempts.observe(rows([0], ["4-1"]))  # 1-3 to 3-4 are left out
    attempts.observe(rows([0, 1], ["4-1", "1-1"], lost_life=[True, True]))
    attempts.observe(rows([0, 1], ["4-1", "1-1"], lost_life=[False, True]))
    attempts.observe(rows([0, 1], ["4-2", "1-1"], done=[False, True]))
    attempts.observe(rows([0], ["4-2"], done=[True], truncated=[True], step=[90]))
    over, stopped = attempts.ended
    assert (over.passed, over.lost, over.game_over) == (0, ["1-1"] * 3, True)
    assert (stopped.passed, stopped.skipped, stopped.steps) == (3, 10, 90)
    assert stopped.passed_before_death == 2
    assert stopped.entered == ["1-1", "1-2", "4-1", "4-2"]
    assert (stopped.lost, stopped.game_over) == (["4-1"], False)
    result = game_result(
        attempts.ended, LEVELS, argmax=False, repeat_action_probability=0.0
    )
    assert (result.episodes, result.finished) == (2, 0)
    assert result.passed_before_death_mean == 1
    # 1.96 standard errors of 0 and 2.
    assert result.passed_before_death_95 == pytest.approx((0, 1 + 1.959964))
    assert result.reached == {"1-1": 2, "1-2": 1, "4-1": 1, "4-2": 1}
    assert (result.lost, result.ended) == ({"1-1": 3, "4-1": 1}, {"1-1": 1})


def test_the_last_castle_and_the_next_attempt():
    attempts = Attempts(1, LEVELS)
    attempts.observe(rows([0], ["1-1"], is_first=[True]))
    attempts.observe(rows([0], ["8-4"]))
    attempts.observe(rows([0], ["8-4"], done=[True], cleared=[True]))
    attempts.observe(rows([0], ["1-1"], is_first=[True]))
    attempts.observe(rows([0], ["1-1"], done=[True]))
    finished, lost = attempts.ended
    assert (finished.finished, finished.passed, finished.skipped) == (True, 2, 30)
    assert (finished.lost, finished.passed_before_death) == ([], 2)
    assert (lost.passed, lost.entered, lost.lost) == (0, ["1-1"], ["1-1"])


def test_a_level_outside_the_game_is_no_progress():
    attempts = Attempts(1, LEVELS)
    attempts.observe(rows([0], ["1-1"], is_first=[True]))
    attempts.observe(rows([0], ["36-1"]))
    attempts.observe(rows([0], ["36-1"], done=[True]))
    (attempt,) = attempts.ended
    assert (attempt.passed, attempt.lost) == (0, ["1-1"])


@pytest.mark.rom
def test_a_policy_for_each_level():
    game = load_level_policies("released:all")
    assert len(game.policies) == 32
    assert game.levels == LEVELS
    assert game.choice.tolist() == list(range(32))
    assert game.restarts.all()
    for policy, numbers in zip(game.policies, game.actions, strict=True):
        names = [game.env.actions[number] for number in numbers]
        assert tuple(names) == policy.env.actions
    assert {len(numbers) for numbers in game.actions} == {5, 7, 12}
    assert game.env.actions[game.idle] == "NOOP"
    one = load_level_policies("released:one")
    assert (len(one.policies), set(one.choice)) == (1, {0})
    assert one.policies[0].env.actions == one.env.actions


@pytest.fixture
def folder(tmp_path):
    """A folder with one policy for each level, without a card."""
    for level in LEVELS:
        shutil.copy(FOLDER / "1-1.safetensors", tmp_path / f"{level}.safetensors")
    return tmp_path


@pytest.mark.rom
def test_policies_that_cannot_play_in_one_game(folder):
    # Files of no level are not read, and do not choose the game.
    for name in ("0-1", "9-9", "one"):
        (folder / f"{name}.safetensors").write_text("no policy")
    assert len(load_level_policies(folder).policies) == 32
    (folder / "2-2.safetensors").unlink()
    (folder / "8-1.safetensors").unlink()
    with pytest.raises(ValueError, match="has no policy for 2-2, 8-1: a whole game"):
        load_level_policies(folder)
    shutil.copy(folder / "1-1.safetensors", folder / "2-2.safetensors")
    content = read_policy(folder / "1-1.safetensors", CPU)
    content = content._replace(env=content.env | {"frame_skip": 4})
    write_policy(folder / "8-1.safetensors", content)
    with pytest.raises(ValueError, match=r"1-1 and 8-1 .*: frame_skip is 6 and 4"):
        load_level_policies(folder)


@pytest.mark.rom
def test_each_policy_has_its_own_rule_for_memories(folder):
    content = read_policy(folder / "1-1.safetensors", CPU)
    whole = content.env | {"task": "SuperMarioBros-v0", "levels": []}
    write_policy(folder / "3-1.safetensors", content._replace(env=whole))
    game = load_level_policies(folder)
    assert np.flatnonzero(~game.restarts).tolist() == [LEVELS.index("3-1")]
    choose = _ByLevel(game, 2)
    seen = [
        choose(rows([0, 1], levels, is_first=[first] * 2, lost_life=[False, lost]))
        for levels, first, lost in (
            (["2-4", "1-1"], True, False),
            (["3-1", "1-2"], False, False),
            (["3-1", "1-2"], False, True),
            (["3-2", "36-1"], False, False),
            (["3-2", "36-1"], False, False),
        )
    ]
    # A policy of levels waits for a step where a level or a life begins, and its
    # memory is cleared after that.
    places = [[LEVELS[k] if k >= 0 else "" for k in choice] for choice, _ in seen]
    assert places == [["", ""], ["3-1", ""], ["3-1", ""], ["", ""], ["3-2", "1-2"]]
    begins = [begin.tolist() for _, begin in seen]
    assert begins[1:] == [[True, True], [False, True], [False, True], [True, True]]


@pytest.mark.rom
def test_a_policy_that_pauses_for_ever_ends(monkeypatch):
    """The game's clock stands while the game is paused."""
    module = "trainer.evaluation.protocol"
    monkeypatch.setattr(f"{module}.PAUSED_FRAMES", 600)
    game = load_level_policies("released:one")
    actions = tuple("NOOP" if a == "NOOP" else "start" for a in game.env.actions)
    pause = replace(game.env, custom_actions=actions)
    monkeypatch.setattr(
        f"{module}.load_level_policies", lambda *_, **__: game._replace(env=pause)
    )
    result = evaluate_whole_game(
        Path("paused"), episodes=1, noop_max=0, argmax=False, device="cpu"
    )
    (attempt,) = result.results[0].attempts
    assert attempt.steps < 400
    assert not attempt.game_over


@pytest.mark.rom
def test_an_attempt_ends_with_the_last_life(make_env_of_game):
    """Not a step later: the wait after the last life belongs to its step."""
    env = make_env_of_game
    env.reset()
    env.ram[0x75A] = 0  # the last life
    env.ram[0x07F8:0x07FB] = 0, 0, 1  # the clock runs out
    for _ in range(40):
        _, terminated, truncated, fields = env.step(0)
        assert not truncated
        if terminated:
            break
        assert fields["info:life"] == 0
    assert terminated
    assert (fields["info:end_reason"], fields["info:life"]) == (3, 255)


@pytest.fixture
def make_env_of_game():
    options = {"frame_skip": 6, "action_set": "right_only", "obs_type": "tiles"}
    return _core._MarioEnv(rom.load("vanilla"), options | POOL_OPTIONS)


def greedy_attempt(game):
    """One attempt, as a film plays it: level of each lost life, levels, steps."""
    env = FilmedEnv(whole_game_config(game.env))
    start = env.reset()
    levels, lost, steps = [start.level], [], 0
    life = start.info["life"]
    for shot in film_episode(env, start, GamePlayer(game, seed=0, argmax=True), ""):
        if shot.reading.step == steps:
            break  # pictures after the end
        steps = shot.reading.step
        if shot.reading.level != levels[-1]:
            levels.append(shot.reading.level)
        left = int(np.int8(env.ram[0x75A]))
        lost += [shot.reading.level] * (left < life)
        life = left
    return levels, lost, steps


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.parametrize("name", ["released:all", "released:one"])
def test_a_pool_plays_what_a_film_plays(name):
    game = load_level_policies(name)
    result = evaluate_game(
        game, Protocol(CPU, None, noop_max=0, argmax=True, stall_steps=0)
    )
    (attempt,) = result.attempts
    levels, lost, steps = greedy_attempt(game)
    assert attempt.entered == levels
    assert attempt.lost == lost
    assert attempt.steps == steps
    assert attempt.passed == len(levels) - 1
    assert result.episodes == 1
    assert attempt.passed > 3


@pytest.mark.rom
def test_the_threads_do_not_matter():
    options = {"episodes": 3, "argmax": False, "noop_max": 3, "stall_steps": 30}
    results = []
    for threads in (1, 3):
        game = load_level_policies("released:one", pause_for_rng=True)
        game = game._replace(env=replace(game.env, num_threads=threads))
        protocol = Protocol(CPU, torch.bfloat16, **options)
        results.append(evaluate_game(game, protocol))
    assert results[0] == results[1]
    assert len(results[0].attempts) == 3


@pytest.mark.rom
def test_memories_are_cleared_where_levels_begin(tmp_path):
    env = EnvConfig(task="SuperMarioBros-v0", levels=("1-1",), obs="tiles", stack_num=1)
    model = ModelConfig(name="tiles", memory=GRU())
    network = build_model(model, (1, 16, 16), 5)
    content = PolicyFile(
        to_dict(env), to_dict(model), "float32", 1, "", False, network.state_dict()
    )
    write_policy(tmp_path / "one.safetensors", content)
    game = load_level_policies(tmp_path / "one.safetensors")
    first = []
    forward = game.policies[0].model.forward

    def watched(obs, state, begins):
        first.append(bool(begins))
        return forward(obs, state, begins)

    game.policies[0].model.forward = watched
    player = GamePlayer(game, seed=1, argmax=True)
    config = whole_game_config(game.env)
    step, waits = FilmedEnv(config).reset(), []
    for level, life, opening in (
        ("1-1", 2, True),
        ("1-1", 2, False),
        ("1-1", 2, False),
        ("1-2", 2, False),
        ("1-2", 1, False),
        ("1-2", 1, False),
        ("1-2", 1, False),
    ):
        world, stage = map(int, level.split("-"))
        info = step.info | {"world": world, "stage": stage, "life": life}
        decision = player(step._replace(info=info, opening=opening))
        waits.append(decision.probabilities is None)
        assert decision.action == game.idle or not waits[-1]
    # It waits where a level or a life begins, and acts with a clear memory after that.
    assert waits == [True, False, False, True, True, False, False]
    assert first == [True, False, True, False]


@pytest.mark.rom
def test_a_film_with_waits_is_a_movie_from_power_on():
    game = load_level_policies("released:one")
    config = whole_game_config(game.env)
    env, plain = FilmedEnv(config, waits=True), FilmedEnv(config)
    step, twin = env.reset(), plain.reset()
    shown = waited = 0
    for _ in range(190):  # into 1-2
        step, twin = env.step(4), plain.step(4)
        np.testing.assert_array_equal(step.obs, twin.obs)
        if len(step.frames) == len(twin.frames):
            np.testing.assert_array_equal(step.frames, twin.frames)
        else:
            waited += 1
        shown += len(step.frames)
        if step.ending:
            break
    movie = env._env.movie
    assert waited
    console = nes.Console(rom.load("vanilla"))
    console.step_many(movie[:-1])
    console.step(movie[-1])
    np.testing.assert_array_equal(console.ram, env.ram)
    np.testing.assert_array_equal(console.screen(), step.frames[-1])
    with pytest.raises(ValueError, match="cut_waits=False and timing=console"):
        FilmedEnv(game_config(game.env), waits=True)


@pytest.mark.rom
def test_a_film_shows_a_second_of_a_pause():
    game = load_level_policies("released:one", pause_for_rng=True)
    env = whole_game(game, seed=1)
    step, before = env.reset(), 0
    while step.info["life"] == 2:
        before = len(env._env.movie)
        step = env.step(1)  # to the right, into the first enemy
    added = len(env._env.movie) - before
    assert added > 1000
    # The death and the black screen take four to six seconds.
    assert 60 < len(step.frames) < 500
    console = nes.Console(rom.load("vanilla"))
    *movie, last = env._env.movie
    console.step_many(bytes(movie))
    console.step(last)
    np.testing.assert_array_equal(console.screen(), step.frames[-1])


@pytest.mark.rom
def test_attempts_with_pauses():
    options = {"episodes": 2, "argmax": False, "noop_max": 2, "stall_steps": 40}
    path, results = Path("released:one"), []
    for pause in (True, False):
        played = evaluate_whole_game(path, pause_for_rng=pause, device="cpu", **options)
        assert played.about["pause_for_rng"] is pause
        results.append(played.results)
    assert results[0] != results[1]


@pytest.mark.rom
def test_the_command(tmp_path, capsys):
    flags = "--policy released:one --whole-game --episodes 2 --noop-max 1"
    flags += f" --stall-steps 40 --out {tmp_path}"
    assert main(flags.split()) == 0
    out = capsys.readouterr().out
    assert "released:one: one network" in out
    assert max(map(len, out.splitlines()[2:-1])) <= 80
    names = "whole-game.json and whole-game-episodes.jsonl"
    assert out.endswith(f"wrote {names} to {tmp_path}, and 1 picture\n")
    assert len((tmp_path / "whole-game-episodes.jsonl").read_text().splitlines()) == 4
    table = json.loads((tmp_path / "whole-game.json").read_text())
    assert (table["policies"], table["cut_waits"]) == (1, False)
    sampled, greedy = table["results"]
    assert (sampled["episodes"], greedy["episodes"]) == (2, 2)
    assert (tmp_path / "whole-game.png").stat().st_size > 1000
    again = evaluate_whole_game(
        "released:one", episodes=2, noop_max=1, stall_steps=40, device="cpu"
    )
    assert json.loads(json.dumps(again.to_dict()["results"])) == table["results"]


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        (main, "--rng-frames-max -1", "rng_frames_max must be 0 to 32766, got -1"),
        (main, "--rng-frames-max 99999999999", "must be 0 to 32766, got 99999999999"),
        (main, "--stall-steps 99999999999", "stall_steps must be 0 to 2.1"),
        (main, "--levels 1-1", "--whole-game plays all levels: leave out --levels"),
        (main, "--reward-fn a:b", "counts no rewards: leave out --reward-fn"),
        (video, "--max-seconds 0.5", "max_seconds must be 0 or at least 1, got 0.5"),
        (video, "--grid", "a whole game plays all levels"),
        (watch, "--level 1-1", "--whole-game plays all levels: leave out --level"),
        (watch, "--web", "leave out --whole-game or --web"),
    ],
)
def test_wrong_flags(capsys, command, flags, message):
    words = ["--policy", "released:one", "--whole-game", *flags.split()]
    assert command(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "pause"), [("all", ""), ("one", " --pause-for-rng")]
)
def test_a_recorded_attempt_becomes_a_movie(tmp_path, capsys, policy, pause):
    record = tmp_path / "game.json"
    flags = f"--policy released:{policy} --whole-game --record {record} --display none"
    flags += pause
    assert watch([*flags.split(), "--episodes", "1"]) == 0
    capsys.readouterr()
    assert plan(["--replay", str(record), "--fm2"]) == 0
    finished = json.loads(record.read_text())["ending"] == "cleared"
    said = "plays to its end" if finished else "plays as recorded (it"
    assert said in capsys.readouterr().out
    if not pause:  # a quarter of a million frames, from several beginnings
        assert plan(["--import", str(tmp_path / "game.fm2")]) in (0, 3)


@pytest.mark.rom
@pytest.mark.slow
def test_a_video(tmp_path, capsys):
    path = tmp_path / "game.mp4"
    flags = f"--policy released:one --whole-game --max-seconds 4 --out {path}"
    assert video([*flags.split(), "--scale", "1", "--fps", "10"]) == 0
    out = capsys.readouterr().out
    assert "--max-seconds cuts off" in out
    assert path.stat().st_size > 10_000


def test_a_task_of_envpool_is_no_whole_game(monkeypatch, tmp_path):
    policy = SimpleNamespace(env=EnvConfig(task="Pong-v5"))
    module = "trainer.models.level_policies"
    monkeypatch.setattr(f"{module}.load_policy", lambda *_, **__: policy)
    with pytest.raises(ValueError, match="for Pong-v5, which is no level of a whole"):
        load_level_policies(tmp_path / "run")


def test_the_release_has_levels():
    names = released.read_card(FOLDER).policies
    assert [name for name in names if name != "one"] == list(LEVELS)


@pytest.mark.rom
def test_another_game_is_played_on_its_rom(tmp_path, capsys):
    flags = "--policy released:one --task SuperMarioBros2-v0 --episodes 2 --noop-max 1"
    flags += f" --stall-steps 20 --json --no-pictures --out {tmp_path}"
    assert main(flags.split()) == 0
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["task"] == "SuperMarioBros2-v0"
    assert table["levels"] == list(all_levels("SuperMarioBros2-v0"))
    text = (tmp_path / "table-episodes.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    for result in table["results"]:
        some = [
            line
            for line in lines
            if (line["level"], line["argmax"]) == (result["level"], result["argmax"])
        ]
        assert [line["steps"] for line in some] == result["episode_steps"]
        for end, places in (("died", result["deaths"]), ("stalled", result["stalls"])):
            ended = [line for line in some if line["end"] == end]
            assert sorted([x["area"], x["x"], x["y"]] for x in ended) == places
    assert {line["step"] for line in lines} == {table["trained_steps"]}
    # The first step of 1-1 differs: another ROM.
    both = [
        evaluate_checkpoint(
            Path("released:one"), task=task, levels="1-1", episodes=2, stall_steps=20
        ).levels
        for task in ("SuperMarioBros-v0", "SuperMarioBros2-v0")
    ]
    assert both[0][0].episode_best_x != both[1][0].episode_best_x
    assert {r.unseen for r in both[1]} == {False}
    capsys.readouterr()
    for flags, message in (
        ("--task Pong-v5", "got Pong-v5 for a policy of SuperMarioBros-v0"),
        ("--task SuperMarioBros2-A-1-v0", "got SuperMarioBros2-A-1-v0 for a policy"),
        ("--task SuperMarioBros-4-2-v0", "--levels chooses its levels"),
        ("--task SuperMarioBros2-v0 --levels 5-1", "there is no level '5-1'"),
        ("--task SuperMarioBros2-v0 --whole-game", "leave out --task"),
        ("--pause-for-rng", "it needs --whole-game"),
    ):
        assert main(["--policy", "released:one", *flags.split()]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.rom
def test_a_policy_is_measured_as_it_was_trained(tmp_path):
    """With random numbers if the run had them, unless the caller says otherwise."""
    content = read_policy(FOLDER / "3-4.safetensors", CPU)
    paths = {most: tmp_path / str(most) / "3-4.safetensors" for most in (0, 32766)}
    for most, path in paths.items():
        path.parent.mkdir()
        env = content.env | {"rng_frames_max": most}
        write_policy(path, content._replace(env=env))
    options = {"episodes": 20, "argmax": False}
    trained = evaluate_checkpoint(paths[32766], **options)
    assert trained.about["rng_frames_max"] == 32766
    same = evaluate_checkpoint(paths[0], rng_frames_max=32766, **options)
    assert trained.levels == same.levels
    published = evaluate_checkpoint(paths[32766], rng_frames_max=0, **options)
    assert published.levels == evaluate_checkpoint(paths[0], **options).levels
    assert published.levels[0].clears > trained.levels[0].clears


def test_a_task_of_envpool_has_no_random_numbers(monkeypatch, tmp_path):
    policy = SimpleNamespace(env=EnvConfig(task="Pong-v5"))
    module = "trainer.evaluation.protocol"
    monkeypatch.setattr(f"{module}.load_policy", lambda *_, **__: policy)
    with pytest.raises(ValueError, match="task Pong-v5 has no rng_frames_max, got 5"):
        evaluate_checkpoint(tmp_path, rng_frames_max=5)
