"""Each alarm of a run that nobody watches, provoked; and where it is said."""

import http.server
import json
import math
import re
import shutil
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_pools import FakePool
from small_runs import STEPS, change, make_config, read_points, use_pools

from mario_envpool._testing import _CountingEnvPool, _CountingEnvSpec
from mario_envpool.envpool_layer import python_layer
from trainer.learn.learner import Learner
from trainer.rollout.store import Rollouts
from trainer.run import main
from trainer.session import alarms as module
from trainer.session import build
from trainer.session.alarms import Alarms, Growth
from trainer.session.files import Checkpoints
from trainer.session.training import run_training
from trainer.show.display import Display

HOUR = 3600.0


class Recorder(Display):
    """What a dashboard gets."""

    def __init__(self):
        self.lines = []
        self.alarms = {}
        self.ever = {}

    def log(self, text):
        self.lines.append(text)

    def alarm(self, name, text):
        self.alarms[name] = text
        self.ever.setdefault(name, text)


@contextmanager
def watching(tmp_path, display, **options):
    watch = Alarms(tmp_path, display, busy_s=lambda: ("pool", 0.0), **options)
    try:
        yield watch
    finally:
        watch.close()


def until(condition, what):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


# -- memory ------------------------------------------------------------------


def lasts(used, left=100.0, every_s=60.0):
    growth = Growth()
    values = [growth.lasts(i * every_s, u, left) for i, u in enumerate(used)]
    return values[-1]


def test_memory_that_grows_all_the_time_lasts_so_long():
    # 1 GB an hour: 100 GB last 100 hours, whenever the window began.
    for minutes in (31, 100):
        used = [5 + i / 60 for i in range(minutes)]
        assert lasts(used) == pytest.approx(100 * HOUR, rel=0.1)


def test_other_memory_is_no_alarm():
    quick = [10.0 * (1 - math.exp(-i / 5)) for i in range(60)]
    rng = np.random.default_rng(0)
    for used in (
        [5 + i / 60 for i in range(25)],  # for less than the window
        [5.0] * 60,
        [5 + (i % 7) for i in range(60)],  # comes and goes
        [5 + rng.random() for _ in range(60)],
        [5 + i / 60 for i in range(20)] + [5.3] * 20,  # has ended
        [50 - i / 60 for i in range(60)],
    ):
        assert lasts(used) == math.inf
    assert lasts(quick) > module._LASTS_S  # a cache that fills


@pytest.mark.slow
def test_a_run_whose_memory_grows_is_an_alarm(tmp_path, pools, monkeypatch):
    """Every update leaks 64 MB, and takes a minute."""
    monkeypatch.setattr(module, "monotonic", lambda: 60.0 * len(leak))
    leak, update = [], Learner.update

    def leaking(self, *args):
        leak.append(1 / 16)
        return update(self, *args)

    monkeypatch.setattr(Learner, "update", leaking)
    monkeypatch.setattr("trainer.session.build.Monitor", lambda *a, **b: Small(leak))
    display = Recorder()
    run_training(make_config(tmp_path, max_steps=5000, log_seconds=0.0), display)
    (line,) = (x for x in display.lines if x.startswith("ALARM: memory of the host"))
    assert "it grows without pause, is " in line
    assert "GB are left, which last 2" in line  # 25 hours
    assert "--resume continues" in line


class Small:
    """A monitor of a machine with 100 GB."""

    workers = frozenset()

    def __init__(self, leak):
        self.leak = leak

    def statistics(self):
        used = 1 + sum(self.leak)
        return {
            "host_memory_gb": used,
            "host_memory_left_gb": 100 - used,
            "host_memory_total_gb": 100.0,
        }

    def close(self):
        pass


@pytest.mark.parametrize(
    ("where", "left", "alarm"), [("host", 0.9, True), ("host", 1.1, False)]
)
def test_memory_that_is_nearly_used_up(tmp_path, where, left, alarm):
    display = Recorder()
    values = {
        f"system/{where}_memory_gb": 19.0,
        f"system/{where}_memory_total_gb": 20.0,
        f"system/{where}_memory_left_gb": left,
    }
    with watching(tmp_path, display) as watch:
        watch.check(values)
        assert bool(display.alarms.get("memory of the host")) == alarm
        watch.check(values | {f"system/{where}_memory_left_gb": 5.0})
    assert not display.alarms.get("memory of the host")
    over = "alarm is over: memory of the host"
    assert (over in display.lines) == alarm
    if alarm:
        text = "ALARM: memory of the host: 0.90 of 20.0 GB are left; this run has"
        assert display.lines[0].startswith(text)


def test_a_gpu_and_replay_that_is_being_filled(tmp_path, monkeypatch):
    """While replay fills, memory grows for a reason."""
    monkeypatch.setattr(module, "monotonic", lambda: clock)
    for unrolls, alarm in ((lambda i: 7.0, True), (lambda i: float(i), False)):
        display, clock = Recorder(), 0.0
        with watching(tmp_path, display) as watch:
            for i in range(70):
                clock = 60.0 * i
                watch.check({
                    "system/gpu_memory_gb": 60 + i / 60,
                    "system/gpu_memory_total_gb": 80.0,
                    "replay/unrolls": unrolls(i),
                })  # fmt: skip
        assert ("memory of the gpu" in display.ever) == alarm


# -- disk, NaN ---------------------------------------------------------------


def test_a_disk_that_is_nearly_full(tmp_path, pools, monkeypatch):
    """With less than a GiB and two checkpoints; it is over with more room."""
    free, usage = [], shutil.disk_usage

    def disk_usage(path):
        free.append(2**40 if len(free) > 3 else 2**29)
        return usage(path)._replace(free=free[-1])

    monkeypatch.setattr(module.shutil, "disk_usage", disk_usage)
    config = make_config(tmp_path)
    run_training(config)
    text = (config.run_dir / "messages.txt").read_text()
    assert f"ALARM: disk: 0.50 GB are left where {config.run_dir} is; make" in text
    assert text.count("ALARM: disk") == text.count("alarm is over: disk") == 1


def test_a_checkpoint_that_cannot_be_written(tmp_path, pools, monkeypatch):
    saved, save = [], Checkpoints._write

    def write(self, name, state):
        saved.append(name)
        return None if 1 < len(saved) < 5 else save(self, name, state)

    monkeypatch.setattr(Checkpoints, "_write", write)
    display = Recorder()
    run_training(make_config(tmp_path, checkpoint_seconds=0.0), display)
    assert "could not be written" in display.ever["checkpoint"]
    assert display.alarms["checkpoint"] == ""
    assert "alarm is over: checkpoint" in display.lines


def test_a_loss_that_is_not_finite(tmp_path, pools, monkeypatch):
    update = Learner.update

    def poisoned(self, *args):
        result = update(self, *args)
        with torch.no_grad():
            next(self.model.parameters()).fill_(math.nan)
        return result

    monkeypatch.setattr(Learner, "update", poisoned)
    display = Recorder()
    with pytest.raises(RuntimeError, match="the loss is nan"):
        run_training(make_config(tmp_path, max_steps=5000), display)
    assert "learn/loss/total is nan" in display.alarms["NaN"]
    assert display.alarms["weights"] == "the weights are not finite; they are not saved"


# -- the pool ----------------------------------------------------------------


class Stall(Recorder):
    """A display, and a wait that lasts until it shows an alarm, then until it is over.

    Only the first wait is too long: on a busy machine anything may take 0.2 s.
    """

    def __init__(self, monkeypatch):
        super().__init__()
        self.set = monkeypatch.setattr
        self.shown = threading.Event()

    def wait(self):
        if not self.shown.is_set():
            self.set(module, "_STALL_S", 0.2)
            assert self.shown.wait(60)
        else:
            until(lambda: not any(self.alarms.values()), "it is never over")

    def alarm(self, name, text):
        super().alarm(name, text)
        self.set(module, "_STALL_S", 120.0)
        self.shown.set()


class StallingPool(FakePool):
    """One recv takes as long as the test wants."""

    stall = None

    def recv(self):
        if len(self.sent) > 100:
            self.stall.wait()
        return super().recv()

    def status(self):
        return {"workers": [{"env_id": 4}, {"env_id": -1}, {"env_id": 1}]}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"lag": 1}, {"lag": 1, "mode": "async"}])
def test_a_stalled_pool(tmp_path, monkeypatch, options):
    use_pools(monkeypatch, StallingPool)
    StallingPool.stall = display = Stall(monkeypatch)
    run_training(make_config(tmp_path, **options), display)
    text = display.ever["stalled pool"]
    assert re.match(
        r"no batch for 0:0\d, environments 1, 4 are in a step; stacks", text
    )
    stacks = (tmp_path / "run" / module.STACKS).read_text()
    assert "in recv" in stacks  # the thread that waits
    assert stacks.count("hread 0x") >= 2
    assert not display.alarms["stalled pool"]
    assert display.ever.keys() == {"stalled pool"}
    assert display.lines[-1] != ""


@pytest.mark.slow
def test_a_stalled_collector(tmp_path, pools, monkeypatch):
    display, write = Stall(monkeypatch), Rollouts.write_env

    def stalling(self, *args):
        display.wait()
        return write(self, *args)

    monkeypatch.setattr(Rollouts, "write_env", stalling)
    run_training(make_config(tmp_path, lag=1), display)
    assert display.ever.keys() == {"stalled collector"}
    text = display.ever["stalled collector"]
    assert re.match(r"no batch for 0:0\d; stacks.txt has what each thread does", text)
    assert "in stalling" in (tmp_path / "run" / module.STACKS).read_text()


class Replacing(FakePool):
    allowed = None

    def set_replacement(self, budget, every_episodes):
        type(self).allowed = (budget, every_episodes)

    def status(self):
        number = min(3, len(self.sent) // 100)
        text = "env 1 failed in step: it is broken"
        return {"workers": [], "replaced": [{"env_id": 1, "error": text}] * number}


def test_replaced_environments_are_said_one_by_one(tmp_path, monkeypatch):
    use_pools(monkeypatch, Replacing)
    config = make_config(tmp_path, max_replacements=9, replacement_episodes=4)
    display = Recorder()
    run_training(config, display)
    assert Replacing.allowed == (9, 4)
    text = "an environment was replaced: env 1 failed in step: it is broken"
    assert display.lines.count(text) == 3


def use_counting_pools(monkeypatch, **options):
    """Makes runs use the native pool of environments that count; one throws."""
    with python_layer():
        from envpool.python.api import py_env

        spec, _, pool = py_env(_CountingEnvSpec, _CountingEnvPool)

    def make(config, seed, *, asynchronous=False, **more):
        num_envs = config.num_envs
        return pool(spec(spec.gen_config(
            num_envs=num_envs, num_threads=2, seed=seed, obs_shape=[4, 36, 36],
            batch_size=num_envs // config.groups if asynchronous else num_envs,
            **options,
        )))  # fmt: skip

    monkeypatch.setattr(build, "make_pool", make)


THROWS = {"throw_env": 3, "throw_step": 20, "episode_steps": 9}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"lag": 1}, {"lag": 1, "mode": "async"}])
@pytest.mark.parametrize("every", [0, 2])
def test_a_run_goes_on_where_an_environment_throws(
    tmp_path, monkeypatch, options, every
):
    use_counting_pools(monkeypatch, **THROWS)
    config = make_config(tmp_path, max_replacements=1000, **options)
    display = Recorder()
    config = change(config, replacement_episodes=every)
    metrics = run_training(config, display)
    assert metrics["steps"] >= STEPS
    text = "an environment was replaced: env 3 failed in step: told to fail at step 20"
    # Of 50 steps of its own; from a kept start it is soon there again.
    assert display.lines.count(text) >= (3 if every else 2)
    points = read_points(config.run_dir)
    assert all(math.isfinite(v) for v in points[-1].values() if v is not None)


def test_the_budget_of_replacements_ends_a_run(tmp_path, monkeypatch, capsys):
    use_counting_pools(monkeypatch, **THROWS)
    options = "--device cpu --num-envs 6 --unroll 8 --unrolls-per-batch 6 --no-videos "
    options += f"--dashboard off --run-dir {tmp_path / 'run'} --max-steps 20000 "
    assert main([*options.split(), "--max-replacements", "2"]) == 1
    error = capsys.readouterr().err
    assert error == (
        "error: env 3 failed in step: told to fail at step 20; 2 environments were "
        "replaced before, as many as set_replacement allows\n"
    )


def test_by_default_nothing_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(Replacing, "allowed", None)
    use_pools(monkeypatch, Replacing)
    run_training(make_config(tmp_path, max_steps=50), Recorder())
    assert Replacing.allowed is None


# -- notifications -----------------------------------------------------------


class Service:
    """A web server that takes what apprise sends to json://."""

    def __init__(self, status=200):
        self.messages = messages = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                messages.append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def titles(self):
        return [message["title"] for message in self.messages]


@pytest.fixture
def service(request):
    pytest.importorskip("apprise", reason="needs the extra [notify]")
    made = Service(getattr(request, "param", 200))
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


@pytest.mark.slow
def test_alarms_and_the_end_are_sent(tmp_path, pools, monkeypatch, service):
    """The URL comes from an environment variable, so that no file has it."""
    monkeypatch.setattr(module, "_DISK_BYTES", 2**60)
    monkeypatch.setenv("MARIO_TEST_URL", service.url)
    config = make_config(tmp_path, notify="$MARIO_TEST_URL")
    run_training(config, Recorder())
    assert service.titles() == ["run: ALARM: disk", "run: max_steps reached"]
    assert "GB are left" in service.messages[0]["message"]
    assert service.messages[1]["message"].startswith("max_steps reached after 3")
    assert "127.0.0.1" not in (config.run_dir / "config.json").read_text()


def test_solved_is_sent(tmp_path, pools, monkeypatch, service):
    monkeypatch.setattr(
        "trainer.session.reports.Reporter.solved",
        lambda self: bool(self._run.progress.evaluated.update({
            "evaluation/clear_rate": 0.95
        }) or True),
    )  # fmt: skip
    config = replace(make_config(tmp_path, notify=service.url), stop_when_solved=True)
    run_training(config, Recorder())
    assert service.titles() == ["run: solved: 95% cleared"]


def test_failed_is_sent(tmp_path, monkeypatch, service, capsys):
    class Broken(FakePool):
        def recv(self):
            if len(self.sent) > 100:
                raise RuntimeError("env 3 failed in step: it is broken")
            return super().recv()

    use_pools(monkeypatch, Broken)
    options = "--device cpu --num-envs 6 --unroll 8 --unrolls-per-batch 6 --no-videos "
    options += f"--dashboard off --notify {service.url} --run-dir {tmp_path / 'run'}"
    assert main(options.split()) == 1
    assert service.titles() == ["run: failed"]
    assert service.messages[0]["message"] == "env 3 failed in step: it is broken"
    assert "error: env 3 failed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("service", [500], indirect=True)
def test_a_service_that_takes_nothing_is_one_line(tmp_path, pools, service):
    display = Recorder()
    metrics = run_training(make_config(tmp_path, notify=service.url), display)
    assert metrics["steps"] >= STEPS
    (line,) = (x for x in display.lines if "could not send" in x)
    assert "max_steps reached': the service of --notify refused it" in line


WRONG = {
    "nonsense": "has no service for ***; give a URL such as ntfy://",
    "foo://secret-token": "for foo://***; give a URL such as ntfy://",
    "json://localhost:9, foo://x": "for foo://***",
    "$MARIO_NO_SUCH": "names the environment variable MARIO_NO_SUCH, which is not set",
}


@pytest.mark.parametrize("url", WRONG)
def test_a_wrong_url_is_one_line_before_the_run(tmp_path, pools, capsys, url):
    pytest.importorskip("apprise", reason="needs the extra [notify]")
    folder = tmp_path / "run"
    assert main(["--notify", url, "--run-dir", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --notify")
    assert WRONG[url] in error
    assert error.count("\n") == 1
    assert "secret" not in error
    assert not folder.exists()


def test_without_apprise_the_extra_is_named(tmp_path, pools, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert main(["--notify", "ntfy://x", "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error == (
        "error: --notify needs apprise: pip install 'mario-envpool[notify]'\n"
    )
