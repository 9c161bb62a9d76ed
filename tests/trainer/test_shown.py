"""Secrets and paths: what leaves a run folder has none of those in its options."""

import dataclasses
import json
import os
import shlex
import sys
import typing
from pathlib import Path

import pytest
import torch
from fake_pools import FakePool
from learners import write_checkpoint
from small_runs import change, make_config, use_pools

from mario_envpool import rom
from trainer.baselines import BaselinesConfig
from trainer.config import flags, shown
from trainer.config.plain import save, to_dict
from trainer.config.schema import RunConfig
from trainer.evaluate import EvaluateConfig
from trainer.machine.files import write_json
from trainer.models import checkpoint
from trainer.plan import PlanConfig
from trainer.publish import PublishConfig
from trainer.publish import main as publish
from trainer.release import ReleaseConfig
from trainer.report import ReportConfig
from trainer.run import main
from trainer.search import main as search_main
from trainer.session import files
from trainer.session.training import run_training
from trainer.show import campaign, page, tracking
from trainer.tuning import options
from trainer.tuning.campaign_config import CampaignConfig, command_of
from trainer.tuning.population import Population, PopulationConfig
from trainer.tuning.search_config import SearchConfig
from trainer.video import VideoConfig
from trainer.watch import WatchConfig

COMMANDS = (
    BaselinesConfig, CampaignConfig, EvaluateConfig, PlanConfig, PopulationConfig,
    PublishConfig, ReleaseConfig, ReportConfig, SearchConfig, VideoConfig, WatchConfig,
)  # fmt: skip
# Options of any text that hold nothing that others may not see.
PLAIN = {
    "task", "device", "custom_actions", "levels", "test_levels", "level", "name", "to",
    "augment", "minari", "rom",
}  # fmt: skip

# Parts of a secret, and of a path: of each kind none may be found anywhere.
SECRET = "json://user-of-mine:hunter2word@localhost:9/token-of-mine?key=k3yk3y"
PARTS = ("user-of-mine", "hunter2word", "token-of-mine", "k3yk3y")
HOME = "home-of-mine"


def free_texts(kind):
    """Names and types of the options that may have any text."""
    for name, hint in typing.get_type_hints(kind).items():
        if {str, Path} & {hint, *typing.get_args(hint)}:
            yield name, hint


def test_every_option_of_any_text_declares_what_it_holds():
    """A new option needs `holds=`, or its name in PLAIN above."""
    for option in flags.options().values():
        kinds = {option.hint, *typing.get_args(option.hint)}
        if {str, Path} & kinds and option.name not in PLAIN:
            assert option.holds, f"{option.name}: what does it hold?"
    for kind in COMMANDS:
        for name, hint in free_texts(kind):
            if Path in {hint, *typing.get_args(hint)} or name in PLAIN:
                continue
            assert shown._holds().get((name,)), f"{kind.__name__}.{name}"


def private_values():
    """A value of every option of a run that others may not see, by its name."""
    result = {}
    for name, option in flags.options().items():
        holds = option.holds
        if holds == "secret":
            result[name] = SECRET
        elif holds == "path":
            text = f"/{HOME}/{name}.x"
            many = typing.get_origin(option.hint) is tuple
            result[name] = (text,) if many else text
    assert {"notify", "rom_path", "demos", "teachers", "run_dir"} <= set(result)
    return result


def check(text, *more):
    for part in (*PARTS, HOME, *more):
        assert part not in text, f"{part} in {text[:2000]}"


def check_files(folder, *more):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        check(path.read_bytes().decode("latin-1"), *more)


def test_a_config_and_a_command_show_none_of_their_private_values():
    values = private_values() | {"loss": "distillation"}
    config = flags.change(RunConfig(), **values)
    seen = shown.settings(to_dict(config))
    check(json.dumps(seen))
    assert seen["notify"] == "json://***"
    assert seen["env"]["rom_path"] == "rom_path.x"
    assert seen["learner"]["loss"]["teachers"] == "teachers.x"
    kinds = shown._OF_OTHER_COMMANDS.items()
    others = {name: SECRET for name, holds in kinds if holds == "secret"}
    others |= {"merge_flags": f"--notify {SECRET} --rom-path /{HOME}/a.nes"}
    others |= {"space": f"/{HOME}/mine.py:space", "out": f"/{HOME}/out"}
    words = [f"/{HOME}/bin/python", "-m", "trainer.run"]
    for name, value in (values | others).items():
        flag = f"--{name.replace('_', '-')}"
        many = list(value) if isinstance(value, tuple) else [value]
        words += [flag, *map(str, many)]
        words += [f"{flag}={many[0]}"]
    text = " ".join(shown.command(words))
    check(text)
    assert "python -m trainer.run" in text
    assert "mine.py:space" in text
    check(shown.command_text(shlex.join(words)))
    assert shown.command(shown.command(words)) == shown.command(words)


@pytest.mark.parametrize("text", ["$NAME", "${NAME}", "$ONE,$TWO", "$ONE, ${TWO}"])
def test_a_reference_to_a_variable_is_shown(text):
    assert shown.value("secret", text) == text
    assert shown.command(["x", "--notify", text])[-1] == text
    config = to_dict(RunConfig(notify=text))
    assert shown.without_secrets(config) == config


def test_a_message_shows_neither_secrets_nor_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        f"writing to {tmp_path}/runs/a/ with {SECRET}, wrong password hunter2word; "
        f"see {Path.home()}/b/c.txt, https://example.org/d/e and 1/2 of /{HOME}/f"
    )
    seen = shown.message(text, {"notify": SECRET})
    check(seen, str(tmp_path), str(Path.home()) + "/")
    assert seen == (
        "writing to a with ***, wrong password ***; "
        "see c.txt, https://example.org/d/e and 1/2 of f"
    )


# -- runs ---------------------------------------------------------------------


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / HOME
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_a_run_shows_none_of_its_secrets(home, monkeypatch):
    pytest.importorskip("apprise", reason="needs the extra [notify]")
    pytest.importorskip("wandb")
    use_pools(monkeypatch, FakePool)
    for name, value in (("MODE", "offline"), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    rom_path = str(home / "a.nes")
    words = ["-m", "trainer.run", "--notify", SECRET, "--rom-path", rom_path]
    # W&B notes the words of the process.
    monkeypatch.setattr(sys, "argv", ["run.py", *words[2:]])
    monkeypatch.setattr(sys, "orig_argv", [str(home / "python"), *words])
    runs = home / "runs"
    config = make_config(runs, notify=SECRET, rom_path=rom_path, wandb=True)
    run_dir = runs / "run"
    old = run_dir / "config.json"
    run_dir.mkdir(parents=True)
    old.write_text("{}")
    old.chmod(0o644)
    run_training(config)
    page.write([run_dir])
    # A resumed run names what has changed.
    other = SECRET.replace("localhost:9", "localhost:8") + ",json://x-of-mine"
    again = dataclasses.replace(config, notify=other, resume=run_dir, max_steps=400)
    run_training(again)
    page.write([run_dir])
    assert json.loads(old.read_text())["notify"] == other
    assert old.stat().st_mode & 0o777 == 0o600
    assert files.config_of(checkpoint.find(run_dir)).notify == other
    if os.name != "nt":
        old.unlink()  # for its owner alone
    for path in run_dir.rglob("*"):
        if path.is_file():
            text = path.read_bytes().decode("latin-1")
            for part in (*PARTS, "x-of-mine"):
                assert part not in text, f"{part} in {path}"
    text = (run_dir / "messages.txt").read_text()
    assert "changed since the checkpoint: max_steps 300 -> 400" in text
    away = [run_dir / "report.html", *run_dir.glob("events.out.tfevents.*")]
    away += [*run_dir.glob("wandb/*/run-*.wandb"), *run_dir.glob("wandb/*/files/*")]
    assert len(away) >= 5
    for path in away:
        check(path.read_bytes().decode("latin-1"), str(home))
    page_text = away[0].read_text()
    assert "python -m trainer.run --notify" in page_text
    assert "json://***" in page_text


def test_a_resumed_run_still_notifies_and_a_moved_checkpoint_says_that_it_cannot(
    home, monkeypatch, caplog
):
    use_pools(monkeypatch, FakePool)
    monkeypatch.setattr(tracking, "_service", lambda urls: None)
    run_training(make_config(home, notify=SECRET, max_steps=100))
    path = checkpoint.find(home / "run")
    assert files.config_of(path).notify == SECRET

    def said():
        return [r.getMessage() for r in caplog.records if r.name == files.__name__]

    assert not said()
    moved = home / path.name
    path.rename(moved)
    assert files.config_of(moved).notify == ""
    (line,) = said()
    assert "--notify, which only config.json in its run folder records" in line
    run_training(make_config(home / "b", notify="$MINE", max_steps=100))
    path = checkpoint.find(home / "b" / "run")
    moved = path.rename(home / path.name)
    assert files.config_of(moved).notify == "$MINE"


def test_a_private_file_is_private_whatever_was_there(tmp_path):
    path = tmp_path / "a.json"
    for name in ("a.json", "a.json.tmp"):
        (tmp_path / name).write_text("older")
        (tmp_path / name).chmod(0o666)
    write_json(path, {"a": 1}, private=True)
    assert path.stat().st_mode & 0o777 == 0o600
    save(RunConfig(), path)
    assert path.stat().st_mode & 0o777 == 0o600


class Quoting:
    """A service whose errors quote its URL."""

    def notify(self, title, body):
        check(body)
        raise OSError(f"no route to {SECRET}")


def test_a_failed_notification_quotes_no_url(monkeypatch):
    monkeypatch.setattr(tracking, "_service", lambda urls: Quoting())
    lines = []
    notifier = tracking.Notifier(SECRET, lines.append)
    notifier.send("title", f"disk: 0.1 GB are left where /{HOME}/runs/a is")
    notifier.close()
    assert lines == ["could not send notification 'title': OSError"]


def test_a_wrong_url_is_not_quoted(home, capsys):
    pytest.importorskip("apprise", reason="needs the extra [notify]")
    words = ["--run-dir", str(home / "run"), "--notify"]
    for url in ("hunter2word", SECRET.replace("json", "nothing")):
        assert main([*words, url]) == 2
        check(capsys.readouterr().err)


# -- publications --------------------------------------------------------------


@pytest.mark.rom
@pytest.mark.slow
def test_a_published_policy_shows_none_of_the_runs_secrets(home, capsys):
    rom_path = str(home / "a.nes")
    Path(rom_path).write_bytes(rom.load())
    run_dir = home / "run"
    (run_dir / "checkpoints").mkdir(parents=True)
    private = private_values() | {"rom_path": rom_path, "resume": None}
    write_checkpoint(
        run_dir / "checkpoints" / "step-000000007.pt", levels=("1-2",), **private
    )
    words = ["/usr/bin/python", "-m", "trainer.run"]
    for name, value in private.items():
        many = value if isinstance(value, tuple) else (value,)
        words += [f"--{name.replace('_', '-')}", *map(str, many)]
    save(RunConfig(), run_dir / "config.json", command=shlex.join(words))
    to = home / "out"
    assert publish([str(run_dir), "--to", str(to), "--episodes", "1"]) == 0
    check_files(to, str(Path(rom_path).parent), str(home))
    made_by = json.loads((to / "card.json").read_text())["about"]["made_by"]
    assert made_by.startswith("python -m trainer.run --")
    assert f"--rom-path {Path(rom_path).name}" in made_by
    config = json.loads((to / "config.json").read_text())
    assert config["env"]["rom_path"] == Path(rom_path).name
    check(capsys.readouterr().out)


def test_a_report_of_an_older_run_hides_what_its_config_shows(home):
    run_dir = home / "run"
    run_dir.mkdir()
    config = flags.change(RunConfig(), **private_values())
    text = shlex.join([f"/{HOME}/bin/python", "run.py", "--notify", SECRET])
    save(config, run_dir / "config.json", command=text)
    line = f"changed since the checkpoint: notify {SECRET} -> ; in {run_dir}/x\n"
    (run_dir / "messages.txt").write_text(line)
    (run_dir / "metrics.jsonl").write_text('{"step": 1}\n')
    (run_dir / "evaluation").mkdir()
    table = {"checkpoint": str(run_dir / "a.pt"), "trained_steps": 1, "results": []}
    (run_dir / "evaluation" / "table.json").write_text(json.dumps(table))
    check(page.write([run_dir]).read_text(), str(home))


# -- many runs -----------------------------------------------------------------


def test_the_files_of_a_campaign_show_no_secrets(home):
    merge_flags = f"--notify {SECRET} --rom-path {home}/a.nes"
    config = CampaignConfig(merge_flags=merge_flags, run_dir=home / "runs")
    words = ["--rom-path", f"{home}/b.nes"]
    made_by = command_of(config, words)
    check(made_by, str(home))
    assert made_by.endswith("-- --rom-path b.nes")
    known = {"command": made_by, "options": to_dict(config), "flags": words}
    folder = home / "campaign"
    folder.mkdir()
    (folder / "campaign.json").write_text(json.dumps(known))
    check(campaign.write(folder).read_text(), str(home))


def test_the_setup_of_a_population_shows_no_folders(home):
    base = change(RunConfig(), rom_path=str(home / "a.nes"))
    config = PopulationConfig(out=home / "out")
    population = Population(config, base)
    population._save()
    check_files(home / "out", str(home))
    Population(config, base)  # resumes


def test_a_setup_of_an_earlier_version_is_still_known(home):
    base = change(RunConfig(), rom_path=str(home / "a.nes"))
    old = {"seeds": 1, "trainer flags": json.loads(json.dumps(to_dict(base)))}
    options.check_setup("search", old, options.setup(base, seeds=1))
    other = options.setup(change(base, lr=1.0), seeds=1)
    with pytest.raises(ValueError, match="was begun with another trainer flags"):
        options.check_setup("search", old, other)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.slow
def test_a_search_shows_none_of_its_secrets(home, capsys):
    pytest.importorskip("optuna")
    from stub_runs import SPACE, metrics

    from trainer.tuning.report import finish
    from trainer.tuning.study import search

    def train(config, display):
        if config.seed % 2:
            raise ValueError(f"cannot write to {config.run_dir}/a: {SECRET}")
        return metrics()

    (home / "mine.py").write_text(SPACE)
    config = SearchConfig(
        space=f"{home}/mine.py:space", trials=2, pruner="none", out=home / "out",
        storage=f"sqlite:///{home}/study.db",
    )  # fmt: skip
    base = change(RunConfig(device="cpu"), rom_path=str(home / "a.nes"))
    study = search(config, base, train)
    finish(study, config.folder, "seconds", ["--rom-path", str(home / "a.nes")])
    check((home / "study.db").read_bytes().decode("latin-1"), str(home))
    check((config.folder / "best.json").read_text(), str(home))
    (error,) = [t.user_attrs["error"] for t in study.trials if "error" in t.user_attrs]
    assert error == "cannot write to a: json://***"
    capsys.readouterr()


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user-of-mine:hunter2word@localhost:1/token-of-mine",
        "mysql://user-of-mine:hunter2word/k3yk3y@localhost/x",
        "mysql://localhost:hunter2word",
        "nothing://user-of-mine:hunter2word@localhost/x?key=k3yk3y",
    ],
)
def test_a_database_that_does_not_open_is_not_quoted(home, capsys, url):
    pytest.importorskip("optuna")
    words = ["--storage", url, "--out", str(home / "out"), "--", "--device", "cpu"]
    assert search_main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for part in PARTS:
        assert part not in said


def test_no_search_has_secrets_as_values():
    pytest.importorskip("optuna")

    for name, value in private_values().items():
        if value == SECRET:
            with pytest.raises(ValueError, match="cannot be searched"):
                options.find(name)


def test_torch_reads_what_a_checkpoint_says_of_a_secret(tmp_path):
    """Whole, as text: nothing of it is in the bytes of the file."""
    config = shown.without_secrets(to_dict(RunConfig(notify=SECRET)))
    checkpoint.save(tmp_path / "a.pt", {"config": config, "w": torch.zeros(1)})
    check((tmp_path / "a.pt").read_bytes().decode("latin-1"))
