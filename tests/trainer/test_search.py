"""Searches: trials, their ends, going on, sharing. Most runs take no time here."""

import json
import multiprocessing
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

optuna = pytest.importorskip("optuna")

from optuna.trial import TrialState  # noqa: E402
from stub_runs import SPACE, dying, metrics, quick, shared  # noqa: E402

from trainer.config.schema import RunConfig  # noqa: E402
from trainer.machine.imports import load  # noqa: E402
from trainer.search import main  # noqa: E402
from trainer.tuning import study as module  # noqa: E402
from trainer.tuning.report import best_command, finish, write_plots  # noqa: E402
from trainer.tuning.search_config import SearchConfig  # noqa: E402
from trainer.tuning.study import Objective, counted, search  # noqa: E402

# Optuna marks parts that we use as experimental.
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

BASE = RunConfig(device="cpu")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SPACE)
    return SearchConfig(
        space=f"{path}:space",
        trials=3,
        max_steps=2000,
        max_seconds=100.0,
        pruner="none",
        out=tmp_path / "out",
    )


def states(study):
    return [trial.state for trial in study.trials]


def giving(*outcomes):
    """Runs that return metrics, or raise errors, one after the other."""
    left = iter(outcomes)

    def train(config, display):
        outcome = next(left)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return train


@pytest.mark.slow
def test_a_search_runs_its_trials_and_finds_the_best(config, capsys):
    study = search(config, BASE, quick)
    assert states(study) == [TrialState.COMPLETE] * 3
    # The settings that are known go first.
    assert study.trials[0].params == {"lr": 2e-3, "epochs": 2, "optimizer": "muon"}
    for trial in study.trials:
        assert trial.value == 10 * trial.params["epochs"]
        assert trial.user_attrs["steps"] == 2000
    assert {path.name for path in config.folder.iterdir()} == {
        "study.log",
        "trial-000",
        "trial-001",
        "trial-002",
    }
    assert "trial 0: 20" in capsys.readouterr().out


@pytest.mark.slow
def test_runs_get_the_trials_settings_and_the_searches(config):
    seen = []

    def train(run_config, display):
        seen.append(run_config)
        return metrics()

    study = search(replace(config, seeds=2), BASE, train)
    assert len(seen) == 6
    assert len({c.seed for c in seen}) == 6
    assert {c.run_dir.name for c in seen} == {"seed-0", "seed-1"}
    for number, run_config in enumerate(seen):
        params = study.trials[number // 2].params
        assert run_config.learner.lr == params["lr"]
        assert run_config.learner.optimizer.kind == params["optimizer"]
        assert run_config.max_steps == 2000
        assert run_config.max_seconds == 100
        assert run_config.stop_when_solved
        run_config.validate()


def test_the_value_is_the_mean_of_the_seeds(config):
    train = giving(metrics(seconds=10.0), metrics(seconds=30.0))
    study = search(replace(config, seeds=2, trials=1), BASE, train)
    assert study.best_value == 20


@pytest.mark.slow
def test_a_run_that_solves_nothing_is_worse_than_any_that_does(config):
    unsolved = {"solved": 0.0, "seconds": 1.0}
    rates = ({"rollout/clear_rate": rate} for rate in (0.0, 0.5, 1.0))
    study = search(config, BASE, giving(*(metrics(**unsolved | r) for r in rates)))
    assert [trial.value for trial in study.trials] == [200, 150, 100]


@pytest.mark.slow
def test_clear_rate_is_maximised_over_whole_runs(config):
    rates = iter([0.2, 0.9, 0.4])

    def train(run_config, display):
        assert not run_config.stop_when_solved
        return metrics(**{"rollout/clear_rate": next(rates)})

    study = search(replace(config, objective="clear-rate"), BASE, train)
    assert study.best_value == 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pruner", "objective"), [("median", "time-to-clear"), ("hyperband", "clear-rate")]
)
def test_hopeless_trials_are_pruned(config, pruner, objective):
    def train(run_config, display):
        number = int(run_config.run_dir.name.removeprefix("trial-"))
        # The first ones clear the level, the others never do.
        for step in range(0, 2001, 400):
            rate = step / 2000 if number < 6 else 0.0
            display.report(step, {"rollout/clear_rate": rate}, 0.0)
        return metrics()

    count = 10 if pruner == "median" else 16
    config = replace(config, objective=objective, pruner=pruner, trials=count)
    study = search(config, BASE, train)
    good, bad = study.trials[:6], study.trials[6:]
    assert any(trial.state == TrialState.PRUNED for trial in bad)
    if pruner == "median":
        assert all(trial.state == TrialState.COMPLETE for trial in good)
        assert all(trial.state == TrialState.PRUNED for trial in bad)
        assert bad[0].user_attrs["steps"] < 2000


@pytest.mark.slow
def test_no_pruner_prunes_nothing(config):
    rates = iter([1.0] * 5 + [0.0])

    def train(run_config, display):
        rate = next(rates)
        for step in range(0, 2001, 100):
            display.report(step, {"rollout/clear_rate": rate}, 0.0)
        return metrics()

    study = search(replace(config, trials=6), BASE, train)
    assert states(study) == [TrialState.COMPLETE] * 6


def test_reports_are_at_steps_that_all_trials_share(config):
    def train(run_config, display):
        for step in (130, 650, 2000):
            display.report(step, {"rollout/clear_rate": step / 2000}, 0.0)
        return metrics()

    study = search(replace(config, trials=1), BASE, train)
    points = study.trials[0].intermediate_values
    assert list(points) == list(range(1, 21))
    assert points[1] == 1 - 130 / 2000
    assert points[2] == points[6] == 1 - 650 / 2000
    assert points[20] == 0


@pytest.mark.slow
def test_a_failing_trial_does_not_end_the_search(config):
    errors = RuntimeError("the loss is nan"), MemoryError("all of it"), ValueError("x")
    study = search(replace(config, trials=4), BASE, giving(*errors, metrics()))
    assert states(study) == [TrialState.FAIL] * 3 + [TrialState.COMPLETE]
    assert [t.user_attrs["error"] for t in study.trials[:3]] == list(map(str, errors))


def test_a_bug_ends_it(config):
    with pytest.raises(KeyError, match="typo"):
        search(config, BASE, giving(KeyError("typo")))


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [True, False])
def test_an_interrupted_search_is_resumed_with_the_same_trial(config, signalled):
    count = iter(range(100))

    def train(run_config, display):
        if next(count) == 1:
            if signalled:
                return metrics(signal=float(signal.SIGINT))
            raise KeyboardInterrupt
        return metrics()

    with pytest.raises(KeyboardInterrupt):
        search(config, BASE, train)
    study = search(config, BASE, train)
    assert len(study.trials) == 4
    assert study.trials[1].state == TrialState.FAIL
    assert study.trials[2].params == study.trials[1].params
    assert [trial.number for trial in counted(study)] == [0, 2, 3]
    assert next(count) == 4
    # All is done; nothing runs.
    search(config, BASE, train)
    assert next(count) == 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_a_killed_trial_is_begun_again(config, monkeypatch, capsys, kind):
    config = replace(config, trials=1, storage=f"{kind}:///{config.out}/trials")
    config.out.mkdir()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=search, args=(config, BASE, dying))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    monkeypatch.setattr(module, "HEARTBEAT_S", 1)
    monkeypatch.setattr(module, "GRACE_S", 6)
    monkeypatch.setattr(module, "_POLL_S", 0.1)
    study = search(config, BASE, dying)
    assert states(study) == [TrialState.FAIL, TrialState.COMPLETE]
    assert study.trials[0].params == study.trials[1].params
    assert "waiting for 1 trial" in capsys.readouterr().out
    assert (config.out / "trials").exists()
    assert not (config.folder / "study.log").exists()


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_a_trial_that_is_begun_again_is_not_dead_by_an_old_sign(tmp_path):
    """It inherits the attributes of the one that was killed."""
    journal = module.Journal(tmp_path / "study.log")
    study = optuna.create_study(storage=journal)
    trial = study.ask()
    study.add_trial(
        optuna.create_trial(state=TrialState.WAITING, system_attrs={"heartbeat": 1.0})
    )
    again = study.ask()
    assert again.number == 1
    assert journal._get_stale_trial_ids(study._study_id) == []
    journal.record_heartbeat(trial._trial_id)
    study.tell(trial, 1.0)
    journal.record_heartbeat(trial._trial_id)  # too late, which is no error


@pytest.mark.slow
def test_a_search_of_an_earlier_version_goes_on_in_its_database(config):
    """With more trials and another pruner."""
    config.folder.mkdir(parents=True)
    old = replace(config, storage=f"sqlite:///{config.folder}/study.db", trials=1)
    search(old, BASE, quick)
    study = search(replace(config, trials=2, pruner="median"), BASE, quick)
    assert len(study.trials) == 2
    assert not (config.folder / "study.log").exists()


def test_who_makes_a_study_begins_it_once(config):
    """Where it has died meanwhile, the next one does."""
    ranges = module.dry_run(load(config.space, "--space", "it"), BASE)
    config.folder.mkdir(parents=True)
    journal = module.open_storage("", config.folder)
    optuna.create_study(study_name=config.name, storage=journal)  # and is killed
    for _ in range(3):
        study = module.open_study(config, BASE, ranges)
    assert len(study.trials) == 1
    assert study.user_attrs["setup"]["seeds"] == 1


@pytest.mark.slow
def test_processes_share_the_work(config):
    study = search(replace(config, trials=6, jobs=2), BASE, shared)
    done = counted(study)
    assert [trial.state for trial in done] == [TrialState.COMPLETE] * 6
    # Two may begin the last one at the same moment: one of them gives it up.
    assert {trial.state for trial in study.trials[6:]} <= {TrialState.PRUNED}
    assert len({path.read_text() for path in config.folder.glob("*/pid")}) == 2


def test_jobs_divide_the_cores(config, monkeypatch):
    from trainer.config import presets

    monkeypatch.setattr(presets, "available_cores", lambda: 8)
    seen = []
    objective = Objective(
        replace(config, jobs=4),
        BASE,
        load(config.space, "--space", "it"),
        lambda c, d: seen.append(c) or metrics(),
    )
    optuna.create_study().optimize(objective, n_trials=1)
    assert seen[0].learner.learner_threads == seen[0].env.num_threads == 2


@pytest.mark.slow
def test_a_search_goes_on_only_as_it_was_begun(config):
    config = replace(config, trials=1)
    search(config, BASE, quick)
    for options, message in (
        ({"objective": "clear-rate"}, "another objective"),
        ({"seeds": 2}, "another seeds"),
        ({"max_steps": 5}, "another trainer flags"),
        ({"space": "trainer.tuning.search_config:default"}, "another space"),
    ):
        with pytest.raises(ValueError, match=f"'search' was begun with {message}"):
            search(replace(config, **options), BASE, quick)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "trials must be at least 1, got 0"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"max_seconds": 0.0}, "max_seconds must be above 0"),
        ({"name": "a/b"}, "name must be a folder name"),
        ({"name": ""}, "name must be a folder name"),
        ({"storage": "nosuch://x"}, r"cannot open --storage nosuch://\*\*\* "),
        ({"storage": "sqlite:////no/such/folder/x.db"}, "cannot open --storage"),
        ({"storage": "journal:////no/such/folder/x"}, "cannot open --storage journal"),
        (
            {"storage": "postgresql://u@127.0.0.1:1/x"},
            r"postgresql://\*\*\* (needs|.*refused)",
        ),
        (
            {"storage": "mysql://u@127.0.0.1:1/x"},
            r"mysql://\*\*\* (needs|.*refused)",
        ),
    ],
)
def test_wrong_options_are_named(config, options, message):
    with pytest.raises(ValueError, match=message):
        search(replace(config, **options), BASE, quick)


def test_notifications_are_for_single_runs(config):
    with pytest.raises(ValueError, match="--notify is for a single run"):
        search(config, replace(BASE, notify="ntfy://x"), quick)


@pytest.mark.parametrize(
    ("url", "module_name", "extra"),
    [
        ("postgresql://me:secret@h/x", "psycopg", "'mario-envpool[search,postgresql]'"),
        ("mysql://me:secret@h/x", "pymysql", "'mario-envpool[search,mysql]'"),
    ],
)
def test_without_a_driver_the_extra_is_named(
    config, monkeypatch, url, module_name, extra
):
    monkeypatch.setitem(sys.modules, module_name, None)
    with pytest.raises(ValueError, match="that is not installed") as caught:
        search(replace(config, storage=url), BASE, quick)
    text = str(caught.value)
    assert text == (
        f"--storage {url.partition('me:')[0]}*** needs a driver that is not "
        f"installed: pip install {extra}"
    )


def test_a_password_is_in_no_error(config, monkeypatch):
    monkeypatch.setenv("MARIO_TEST_DB", "nosuch://me:secret@host/x")
    with pytest.raises(ValueError, match=r"nosuch://\*\*\* ") as caught:
        search(replace(config, storage="$MARIO_TEST_DB"), BASE, quick)
    assert "secret" not in str(caught.value)


def test_tasks_without_clears_are_refused(config):
    base = replace(BASE, env=replace(BASE.env, task="Pong-v5"))
    with pytest.raises(ValueError, match="Pong-v5 does not report clears"):
        search(config, base, quick)


@pytest.mark.slow
def test_the_report(config, capsys, tmp_path):
    some = [metrics(seconds=seconds) for seconds in (30.0, 20.0, 40.0, 25.0)]
    some.insert(2, RuntimeError("the loss is nan"))
    study = search(replace(config, trials=5), BASE, giving(*some))
    capsys.readouterr()
    finish(study, config.folder, "seconds to clear", ["--task", "a b"])
    out = capsys.readouterr().out
    rows = [
        line.split()[1] for line in out.splitlines() if "%" in line or "fail" in line
    ]
    assert rows == ["1", "4", "0", "3", "2"]  # best first, then those that did not end
    assert "the loss is nan" in " ".join(out.split())
    command = best_command(study, ["--task", "a b"])
    assert command.startswith("python -m trainer.run --task 'a b' --lr ")
    assert command in out
    best = json.loads((config.folder / "best.json").read_text())
    assert best["trial"] == 1
    assert best["seconds to clear"] == 20
    assert best["command"] == command
    for name in ("history", "importances", "parallel", "slice"):
        assert (config.folder / f"{name}.png").stat().st_size > 5000


@pytest.mark.slow
def test_a_plot_that_cannot_be_drawn_says_why(config):
    study = search(replace(config, trials=1), BASE, quick)
    lines = write_plots(study, config.folder, "seconds to clear")
    assert len(lines) == 4
    assert "too small to compute importances" in lines[1]


@pytest.mark.slow
def test_a_search_without_any_result_is_an_error(config):
    study = search(config, BASE, giving(*[RuntimeError("no")] * 3))
    with pytest.raises(RuntimeError, match="no trial was completed"):
        finish(study, config.folder, "seconds to clear", [])


@pytest.mark.slow
def test_the_command(config, monkeypatch, capsys):
    flags = ["--space", config.space, "--trials", "2", "--out", str(config.out)]
    monkeypatch.setattr(search, "__defaults__", (quick,))
    assert main([*flags, "--", "--device", "cpu", "--gamma", "0.9"]) == 0
    out = capsys.readouterr().out
    assert f"search 'search' in {config.folder}/: 0 of 2 trials done" in out
    assert "a run ends after 400,000 steps or 5:00" in out
    assert "trial 0: begins; --lr" in out
    assert "python -m trainer.run --device cpu --gamma 0.9 --lr" in out
    assert main([*flags, "--trials", "0"]) == 2
    assert capsys.readouterr().err.startswith("error: trials must be at least 1")
    assert main([*flags, "--name", "x", "--", "--task", "Nope-v0"]) == 2
    assert "error: " in capsys.readouterr().err
    assert main([*flags, "--name", "x", "--", "--max-steps", "9"]) == 2
    assert "give --max-steps before --" in capsys.readouterr().err


@pytest.mark.slow
def test_without_optuna_there_is_help_and_one_line_says_what_to_install():
    code = (
        "import contextlib, sys; sys.modules['optuna'] = None; sys.argv = ['x']\n"
        "from trainer.search import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "--space" in done.stdout
    assert done.returncode == 2
    assert done.stderr.startswith("error: trainer.search needs Optuna")
    assert "pip install 'mario-envpool[search]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.rom
@pytest.mark.slow
def test_a_search_on_the_game(config, capsys):
    flags = ["--space", config.space, "--out", str(config.out), "--trials", "2"]
    flags += ["--max-steps", "600", "--", "--device", "cpu", "--num-envs", "8"]
    flags += ["--unrolls-per-batch", "8"]
    assert main(flags) == 0
    assert (config.folder / "trial-001" / "checkpoints").is_dir()
    assert "best: trial" in capsys.readouterr().out
