"""A resumed run is the run that was never interrupted."""

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from fake_pools import FakePool
from small_runs import (
    CPU,
    change,
    differences,
    essence,
    make_config,
    read_episodes,
    read_points,
    run_in_parts,
    threads_of_runs,
    use_pools,
)

from trainer import run
from trainer.models import checkpoint
from trainer.run import main
from trainer.session import files, resume, training
from trainer.session.resume import Saver
from trainer.session.training import open_run, run_training
from trainer.show.tracking import MetricsWriter

REPLAY = {
    "replay_share": 0.5, "unrolls_per_batch": 12, "replay_capacity": 10,
    "checkpoint_replay": True,
}  # fmt: skip
EXACT = [
    {},
    {"lag": 1},
    {"lag": 2},
    REPLAY,
    REPLAY | {"lag": 1},
    {"memory": "gru"},
    {"memory": "gru", "burn_in": 4, "lag": 1},
    REPLAY | {"memory": "lstm", "burn_in": 8},
    {"memory": "gtrxl", "loss": "impala", "epochs": 1},
    {"optimizer": "muon", "ema": 0.9, "noisy": True},
    {"noisy": True, "lag": 1},
    {"unrolls_per_batch": 12, "optimizer": "rmsprop", "warmup_updates": 30},
]


# The default alone in plain `pytest`; all of them in .ci/run.
@pytest.mark.parametrize(
    "options",
    [EXACT[0], *(pytest.param(o, marks=pytest.mark.slow) for o in EXACT[1:])],
    ids=lambda o: "-".join(o) or "default",
)
def test_the_resumed_run_is_the_uninterrupted_one(tmp_path, pools, options, capsys):
    options = {"log_seconds": 100.0} | options
    whole = make_config(tmp_path / "whole", max_steps=600, **options)
    run_training(whole)
    # Twice, so that a resumed run is resumed as well.
    parts = run_in_parts(whole, tmp_path / "parts" / "run", 200)
    expected = essence(whole.run_dir)
    assert expected["steps"] >= 600
    assert differences(expected, essence(parts.run_dir)) == []
    lines, again = (read_episodes(config.run_dir) for config in (whole, parts))
    assert lines == again
    # With a lag, those of the last batches would follow.
    assert 0 < len(lines) <= expected["episodes"]["count"]
    assert options.get("lag") or len(lines) == expected["episodes"]["count"]
    assert "new episodes" not in capsys.readouterr().out
    assert threads_of_runs() == []


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize("lag", [0, 1])
def test_the_game_goes_on_exactly(tmp_path, lag):
    """Also where environments are about to reset, on another number of threads."""
    options = {"lag": lag, "noop_max": 4, "max_episode_steps": 9, "num_threads": 1}
    whole = make_config(tmp_path / "whole", max_steps=480, **options)
    whole = change(whole, log_seconds=100.0, reward_flag=1.0)
    run_training(whole)
    parts = run_in_parts(whole, tmp_path / "parts" / "run", 96)
    assert differences(essence(whole.run_dir), essence(parts.run_dir)) == []


@pytest.mark.slow
def test_memories_go_on_in_episodes_longer_than_unrolls(
    tmp_path, pools, fake_pool, monkeypatch
):
    """Nothing but what was saved tells them what was before."""
    monkeypatch.setattr(fake_pool, "STEPS", (90, 7))
    options = {"memory": "lstm", "burn_in": 8, "log_seconds": 100.0}
    whole = make_config(tmp_path / "whole", max_steps=432, **options)
    run_training(whole)
    parts = run_in_parts(whole, tmp_path / "parts" / "run", 144)
    assert differences(essence(whole.run_dir), essence(parts.run_dir)) == []


# -- what goes on, and where ---------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The config of a run of 300 steps that was made."""
    config = make_config(tmp_path_factory.mktemp("made"))
    with pytest.MonkeyPatch.context() as patch:
        use_pools(patch, FakePool)
        torch.manual_seed(0)
        torch.set_num_threads(1)
        run_training(config)
    return config


@pytest.fixture
def done(tmp_path, pools, made):
    """The config of a copy of that run."""
    return replace(made, run_dir=shutil.copytree(made.run_dir, tmp_path / "run"))


def go_on(config, **options):
    """Resumes a run with changed options for 200 more steps; gives its Run."""
    config = change(config, resume=config.run_dir, max_steps=500)
    resumed = open_run(change(config, **options))
    training.train(resumed)
    return resumed


@pytest.mark.slow
def test_a_run_goes_on_in_its_folder(done, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    before = checkpoint.load(done.run_dir, CPU)
    # What another course of the run left there.
    rows = (done.run_dir / "metrics.jsonl").read_text()
    wrong = json.dumps({"step": 9_999, "time/sps": 1.0})
    (done.run_dir / "metrics.jsonl").write_text(rows + wrong + '\n{"step": 10')
    (done.run_dir / "evaluations.jsonl").write_text(
        '{"steps": 300}\n{"steps": 301}\n{"steps": 99999}\n'
    )
    capsys.readouterr()
    resumed = go_on(replace(done, run_dir=done.run_dir))
    output = capsys.readouterr().out
    where = f"resumed from {checkpoint.list_files(done.run_dir)[1]}"
    assert f"{where} at {before['steps']} steps" in output
    assert "changed since the checkpoint: max_steps 300 -> 500\n" in output
    assert resumed.run_dir == done.run_dir
    points = read_points(done.run_dir)
    steps = [point["step"] for point in points]
    assert steps == sorted(set(steps))
    board = EventAccumulator(str(done.run_dir)).Reload()
    assert [event.step for event in board.Scalars("time/sps")] == steps
    assert len(rows.splitlines()) < len(points)
    assert steps[-1] == resumed.progress.steps
    seconds = [point["time/seconds"] for point in points]
    assert seconds == sorted(seconds)
    assert seconds[-1] > before["progress"]["seconds"]
    kept = [row["steps"] for row in read_points(done.run_dir, "evaluations.jsonl")]
    assert kept == [300, 301]
    episodes = [point["rollout/episodes"] for point in points]
    assert episodes == sorted(episodes)
    assert json.loads((done.run_dir / "config.json").read_text())["max_steps"] == 500


@pytest.mark.slow
def test_an_earlier_checkpoint_begins_another_course(done):
    config = replace(done, resume=done.run_dir, max_steps=700, keep_checkpoints=5)
    run_training(replace(config, checkpoint_seconds=0.0))
    files = checkpoint.list_files(done.run_dir)
    steps = [checkpoint.step_of(path) for path in files if path.name != "best.pt"]
    resumed = go_on(replace(config, run_dir=None), resume=files[3], max_steps=650)
    left = [p.name for p in checkpoint.list_files(done.run_dir)]
    assert resumed.run_dir == done.run_dir
    assert f"step-{steps[0]:09}.pt" not in left
    assert (
        checkpoint.load(done.run_dir, CPU)["steps"] == resumed.progress.steps < steps[0]
    )


@pytest.mark.slow
def test_a_run_goes_on_in_another_folder(tmp_path, done):
    """As population-based training does: with other options, and none disturbed."""
    before = {p: p.read_bytes() for p in done.run_dir.rglob("*") if p.is_file()}
    resumed = go_on(done, run_dir=tmp_path / "other", lr=5e-4)
    assert resumed.run_dir == tmp_path / "other"
    assert {p: p.read_bytes() for p in before} == before
    assert read_points(tmp_path / "other")[0]["step"] > 300


@pytest.mark.slow
def test_a_checkpoint_without_its_folder_begins_a_new_one(tmp_path, done, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alone = tmp_path / "alone.pt"
    alone.write_bytes(checkpoint.find(done.run_dir).read_bytes())
    resumed = go_on(done, resume=alone, run_dir=None)
    assert resumed.run_dir.parts[0] == "runs"


def test_a_new_run_spoils_no_other(done):
    with pytest.raises(ValueError, match=r"holds the checkpoints of another.*--resume"):
        run_training(done)


@pytest.mark.slow
def test_a_resumed_run_spoils_no_other(tmp_path, done):
    other = replace(done, run_dir=tmp_path / "other", max_steps=500)
    run_training(other)
    before = {p: p.read_bytes() for p in other.run_dir.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"other holds the checkpoints of another run"):
        go_on(done, run_dir=other.run_dir)
    assert {
        p: p.read_bytes() for p in other.run_dir.rglob("*") if p.is_file()
    } == before


def test_a_run_that_was_killed_early_leaves_nothing_to_the_next(
    tmp_path, pools, capsys
):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = make_config(tmp_path, max_steps=300)
    config.run_dir.mkdir()
    killed = MetricsWriter(config.run_dir, {})
    for step in (96, 9_999):
        killed.write(step, {"time/sps": 1.0})
    killed.close()
    run_training(config)
    says = f"dropped 2 lines of a run without a checkpoint from {config.run_dir}"
    assert says in capsys.readouterr().out
    steps = [point["step"] for point in read_points(config.run_dir)]
    assert steps == sorted(set(steps))
    board = EventAccumulator(str(config.run_dir)).Reload()
    assert [event.step for event in board.Scalars("time/sps")] == steps


def test_the_run_of_a_checkpoint_wherever_one_stands(done, monkeypatch):
    path = checkpoint.find(done.run_dir)
    assert checkpoint.run_dir_of(path) == done.run_dir
    for folder, name in ((path.parent, path.name), (done.run_dir, path.parent.name)):
        monkeypatch.chdir(folder)
        name = resume.Path(name) if name == path.name else resume.Path(name, path.name)
        assert checkpoint.run_dir_of(name).resolve() == done.run_dir.resolve()


def test_two_runs_in_one_folder_at_a_time(done):
    first = open_run(replace(done, resume=done.run_dir, max_steps=900))
    rows = (done.run_dir / "metrics.jsonl").read_bytes()
    try:
        with pytest.raises(ValueError, match="another process is writing to"):
            open_run(replace(done, resume=done.run_dir, max_steps=900))
    finally:
        first.close()
    assert (done.run_dir / "metrics.jsonl").read_bytes() == rows


# -- changed options -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lr": 5e-4, "gamma": 0.9}, "max_steps 300 -> 500, gamma 0.93 -> 0.9, lr 0.0"),
        ({"num_envs": 3, "groups": 1}, "new episodes begin: with another num_envs, gr"),
        ({"unroll": 4}, "new episodes begin: with another unroll; the result will"),
        ({"seed": 5}, "new episodes begin: with another seed"),
        ({"mode": "async"}, "new episodes begin: with another mode"),
        ({"ema": 0.5, "value_coef": 0.25}, "value_coef 0.5 -> 0.25, ema 0.0 -> 0.5"),
        (REPLAY, "replay starts empty; the result will"),
    ],
    ids=lambda o: next(iter(o)) if isinstance(o, dict) else "",
)
def test_what_can_change_is_said(done, capsys, options, says):
    resumed = go_on(done, **options)
    assert says in capsys.readouterr().out
    assert resumed.progress.steps >= 500
    assert all(p.isfinite().all() for p in resumed.model.parameters())


@pytest.mark.slow
def test_the_same_checkpoint_with_another_seed_goes_another_way(tmp_path, done):
    one, two, three = (
        go_on(done, run_dir=tmp_path / name, seed=seed).model.state_dict()
        for name, seed in (("a", 1), ("b", 5), ("c", 5))
    )
    assert differences(two, three) == []
    assert differences(one, two)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": "cnn-345k"}, "name is cnn-72k there and cnn-345k here"),
        ({"features": 32}, "features is 0 there and 32 here"),
        ({"memory": "gru"}, "memory is None there and gru here"),
        ({"optimizer": "muon"}, "trained with optimizer=adam, but this run has muon"),
        ({"max_steps": 336}, r"is at 33\d steps, and max_steps is 336: raise --max-st"),
        ({"max_seconds": 1e-3}, "max_seconds is 0.001: raise --max-seconds"),
        (
            {"task": "SuperMarioBros-1-2-v0", "run_dir": None},
            "choose another folder with --run-dir",
        ),
        ({"task": "SuperMarioBros-1-2-v0"}, "choose another folder with --run-dir"),
    ],
    ids=lambda o: next(iter(o)) if isinstance(o, dict) else "",
)
def test_what_cannot_go_on_is_one_line(done, options, says):
    config = replace(done, resume=done.run_dir, max_steps=500)
    before = {p: p.read_bytes() for p in done.run_dir.rglob("*") if p.is_file()}
    if "name" in options:
        config = replace(config, model=replace(config.model, name=options["name"]))
    else:
        config = change(config, **options)
    with pytest.raises(ValueError, match=says) as caught:
        run_training(config)
    assert "\n" not in str(caught.value)
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.parametrize("name", ["observation", "actions"])
def test_other_pictures_or_actions_are_an_error(done, name):
    path = checkpoint.find(done.run_dir)
    state = checkpoint.load(path, CPU)
    state["spaces"] |= (
        {"observation": [4, 9, 9]} if name == "observation" else {"actions": 12}
    )
    checkpoint.save(path, state)
    says = r"is \(4, 9, 9\) there and \(4, 36, 36\)|is 12 there and 3 here"
    with pytest.raises(ValueError, match=says):
        go_on(done)


@pytest.mark.slow
def test_another_task_in_a_folder_of_its_own(tmp_path, done, capsys):
    path = checkpoint.find(done.run_dir)
    state = checkpoint.load(path, CPU)
    state["progress"] |= {"next_attempt": 9_999, "evaluated": {"x": 1.0}}
    checkpoint.save(path, state)
    resumed = go_on(done, run_dir=tmp_path / "new", task="SuperMarioBros-1-2-v0")
    assert "with another task" in capsys.readouterr().out
    # Nor is what was found with it, and when it would have been tried again.
    assert resumed.progress.evaluated == {}
    assert resumed.progress.next_attempt == 0
    # The episodes of the other task are not those of this one.
    assert read_points(tmp_path / "new")[0]["rollout/episodes"] < 30
    assert resumed.progress.steps >= 500


# -- why new episodes may begin -------------------------------------------------


@pytest.mark.slow
def test_the_best_weights_are_without_games(tmp_path, done, capsys):
    trained = open_run(replace(done, resume=done.run_dir, max_steps=2_000))
    trained.start()
    training.update(trained)
    assert Saver(trained).save(best=True)
    Saver(trained).save()
    trained.close()
    folder = done.run_dir / checkpoint.FOLDER
    light, whole = folder / checkpoint.BEST, checkpoint.find(done.run_dir)
    assert light.stat().st_size < whole.stat().st_size
    state = checkpoint.load(light, CPU)
    assert state["collecting"] is state["explore"] is state["replay"] is None
    go_on(done, resume=light, run_dir=tmp_path / "new", max_steps=2_000)
    assert "second Ctrl-C, or is best.pt; the result wi" in capsys.readouterr().out


@pytest.mark.slow
def test_a_pool_without_snapshots(tmp_path, pools, fake_pool, monkeypatch, capsys):
    monkeypatch.delattr(fake_pool, "snapshot")
    config = make_config(tmp_path, max_steps=300)
    run_training(config)
    go_on(config)
    says = f"new episodes begin: {config.env.task} has no snapshots; the result will"
    assert says in capsys.readouterr().out


@pytest.mark.slow
def test_a_checkpoint_of_a_gpu(done, capsys):
    """Its generators have other states; the games and all else could go on."""
    path = checkpoint.find(done.run_dir)
    state = checkpoint.load(path, CPU)
    other = torch.zeros(16, dtype=torch.uint8)
    state["rng"] |= {"actions": other, "cuda": other}
    state["learner"]["minibatch_rng"] = other
    checkpoint.save(path, state)
    resumed = go_on(done)
    output = capsys.readouterr().out
    assert "new episodes begin: with another kind of device; the result" in output
    assert resumed.progress.steps >= 500


@pytest.mark.slow
def test_snapshots_that_are_refused(done, fake_pool, monkeypatch, capsys):
    monkeypatch.setattr(fake_pool, "refuses", True)
    go_on(done)
    says = "environments refuse their snapshots: blob 0 is refused: saved by another v"
    assert says in capsys.readouterr().out


@pytest.mark.slow
def test_async_mode(tmp_path, pools, capsys):
    config = make_config(
        tmp_path, max_steps=300, mode="async", lag=1, unrolls_per_batch=4
    )
    run_training(config)
    resumed = go_on(config)
    assert "async mode the environments never all wait" in capsys.readouterr().out
    assert resumed.learner.version > 500 / 8 / 4
    # Videos are named by the collector's count.
    assert resumed.collector.steps >= resumed.progress.steps


@pytest.mark.slow
def test_a_checkpoint_of_a_failure(tmp_path, pools, monkeypatch, capsys):
    config = make_config(tmp_path, max_steps=300)
    failing = open_run(config)
    learn, left = failing.learner.update, [3]

    def fail(*args):
        left[0] -= 1
        if not left[0]:
            raise RuntimeError("it broke")
        return learn(*args)

    failing.learner.update = fail
    with pytest.raises(RuntimeError, match="it broke"):
        training.train(failing)
    go_on(config)
    assert "the checkpoint was written after a failure" in capsys.readouterr().out


@pytest.mark.slow
def test_replay_that_was_not_saved(tmp_path, pools, capsys):
    options = REPLAY | {"checkpoint_replay": False}
    config = make_config(tmp_path, max_steps=300, **options)
    run_training(config)
    go_on(config)
    assert "replay starts empty (--checkpoint-replay keeps" in capsys.readouterr().out


# -- the command -----------------------------------------------------------------

SMALL = (
    "--device cpu --num-envs 6 --unroll 8 --unrolls-per-batch 6 --lr 0.003 --no-videos"
).split()


@pytest.mark.slow
def test_the_command_and_the_run_read_a_file_once(done, monkeypatch):
    """It may hold replay, and be large."""
    read, original = [], checkpoint._read

    def note(path, *args):
        read.append(path.name)
        return original(path, *args)

    monkeypatch.setattr(checkpoint, "_read", note)
    path = checkpoint.find(done.run_dir)
    read.clear()
    assert main(["--resume", str(done.run_dir), "--max-steps", "500"]) == 0
    assert read.count(path.name) == 1


@pytest.mark.slow
def test_the_command_goes_on_with_the_options_of_the_run(tmp_path, pools, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "--max-steps", "300", "--no-stop-when-solved"]) == 0
    (run_dir,) = (tmp_path / "runs").iterdir()
    config = run.parse(["--resume", str(run_dir), "--gamma", "0.5"])
    assert config.resume == checkpoint.find(run_dir)
    assert config.run_dir is None
    assert config.learner.lr == 0.003
    assert config.learner.gamma == 0.5
    assert not config.stop_when_solved
    assert main(["--resume", str(run_dir), "--max-steps", "500"]) == 0
    assert checkpoint.load(run_dir, CPU)["steps"] >= 500
    assert list((tmp_path / "runs").iterdir()) == [run_dir]


def make_run(name, task="SuperMarioBros-1-1-v0", ended="", age=0.0):
    """A run folder with one checkpoint, so many seconds old."""
    folder = resume.Path("runs") / name / "checkpoints"
    folder.mkdir(parents=True)
    state = dict.fromkeys(files.NEEDS)
    state |= {"steps": 1, "model": {}, "progress": {"ended": ended}}
    config = change(make_config(resume.Path()), task=task)
    state["config"] = resume.to_dict(config)
    path = folder / "step-000000001.pt"
    checkpoint.save(path, state)
    os.utime(path, times=(10**9 - age, 10**9 - age))
    return path


def test_auto_finds_the_run_to_go_on_with(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--resume", "auto"]) == 2
    assert "finds no run to resume in" in capsys.readouterr().err
    make_run("solved", ended="solved: 95% cleared", age=0)
    assert main(["--resume", "auto"]) == 2
    assert "(skipped: solved (solved: 95% cleared))" in capsys.readouterr().err
    make_run("damaged", age=1).write_bytes(b"")
    running = make_run("running", age=2)
    lock = files.Checkpoints(running.parent.parent, 3, print)
    other = make_run("other", task="SuperMarioBros-4-2-v0", age=3)
    mine = make_run("mine", age=4)
    make_run("old", age=5)
    assert files.locate(files.AUTO)[0] == other
    assert files.locate(files.AUTO, "SuperMarioBros-1-1-v0")[0] == mine
    assert run.parse(["--resume", "auto"]).env.task == "SuperMarioBros-4-2-v0"
    config = run.parse(["--resume", "auto", "--task", "SuperMarioBros-1-1-v0"])
    assert config.resume == mine
    lock.close()
    assert files.locate(files.AUTO)[0] == running


def test_a_preset_and_a_run_exclude_each_other(done, capsys):
    assert main(["--resume", str(done.run_dir), "--preset", "cpu"]) == 2
    assert "leave out --preset cpu" in capsys.readouterr().err
