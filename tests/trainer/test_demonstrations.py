"""Learning from demonstrations: ways that are found, starts on them, imitation."""

import json
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_pools import Followed
from small_runs import CPU, change, differences, essence, make_config, run_in_parts
from torch.nn import functional

from trainer.config.schema import EnvConfig, LearnerConfig, RunConfig
from trainer.explore import backward, demonstrations
from trainer.explore.backward import Backward
from trainer.explore.demonstrations import (
    SPACING,
    Demonstrations,
    ReplayedWay,
    Way,
    find_ways,
    walk,
)
from trainer.learn.gradients import Gradient, GradientStep, Imitation, Statistics
from trainer.machine.cpu import Shards
from trainer.models import build_model, checkpoint
from trainer.models.actor_critic import PolicyOutput
from trainer.run import main
from trainer.session import build
from trainer.session.training import run_training

LEVELS = ("1-1", "4-2")


# -- where episodes begin ------------------------------------------------------


def a_way(stage, count, mark=0):
    """One with so many snapshots, which are numbered."""
    steps = count * SPACING
    snapshots = np.arange(mark, mark + count, dtype=np.uint8)[:, None]
    cells = np.zeros(steps + 1, np.int64)
    return ReplayedWay(
        stage, np.zeros(steps, np.int64), np.zeros((steps, 1)), snapshots, cells
    )


def a_backward(*ways, stages=2, num_envs=32):
    made = Backward(stages, num_envs)
    made.take(ways)
    return made


class Episodes:
    """Episodes of one row each, from one of the starts."""

    def __init__(self, made, stage=0, num_envs=32):
        self.made, self.stage = made, stage
        self.episodes = Followed(num_envs, levels=LEVELS, num_stages=2)
        self.ids = np.arange(num_envs, dtype=np.int32)

    def row(self, start, done, cleared):
        n = len(self.ids)
        world, stage = map(int, LEVELS[self.stage].split("-"))
        info = {
            "world": np.full(n, world),
            "stage": np.full(n, stage),
            "start": np.full(n, start),
            "flag_get": np.asarray(cleared, bool),
        }
        ended = np.full(n, done)
        columns = self.episodes.add(self.ids, np.zeros(n, np.float32), ended, info)
        self.made.observe(columns)

    def begin(self, start=2):
        self.row(start, False, np.zeros(len(self.ids)))

    def end(self, clears, start=2):
        self.row(start, True, np.arange(len(self.ids)) < clears)

    def play(self, clears, start=2):
        """Also what the offer makes of it."""
        offered(self.made)
        self.begin(start)
        self.end(clears, start)
        offered(self.made)


def offered(made, shares=(1.0, 1.0)):
    stages, weights, snapshots = made.offer(np.array(shares))
    return stages.tolist(), weights.tolist(), snapshots[:, 0].tolist()


def test_episodes_begin_before_the_end():
    made = a_backward(a_way(0, 10), a_way(1, 20, mark=100))
    stages, weights, snapshots = offered(made, (0.4, 0.2))
    assert stages == [0] * 4 + [1] * 4
    assert weights == pytest.approx([0.1] * 4 + [0.05] * 4)
    assert snapshots == [6, 7, 8, 9, 116, 117, 118, 119]
    assert len(made) == 2


def test_half_of_them_begin_behind_the_place():
    made = a_backward(a_way(0, 10), stages=2)
    Episodes(made).play(7)
    stages, weights, snapshots = offered(made, (0.8, 0.0))
    assert snapshots == [5, 6, 7, 8, 9]
    assert weights == pytest.approx([0.1] * 4 + [0.4])
    assert stages == [0] * 5
    # At no more than so many snapshots, the last one among them.
    made = a_backward(a_way(0, 200), stages=2)
    made._back[0] = 100
    *_, snapshots = offered(made)
    assert snapshots[:4] == [96, 97, 98, 99]
    assert len(snapshots) == 4 + backward._BEHIND
    assert snapshots[-1] == 199


def test_the_ways_of_a_level_share_its_weight():
    made = a_backward(a_way(0, 8), a_way(0, 2, mark=50), stages=1)
    stages, weights, snapshots = offered(made, (0.8,))
    assert snapshots == [4, 5, 6, 7, 50, 51]
    assert weights == pytest.approx([0.1] * 4 + [0.2] * 2)
    assert stages == [0] * 6


@pytest.mark.parametrize(
    ("clears", "moved"), [(7, 1), (6, 0), (1, 0), (0, -1), (20, 3), (32, 4)]
)
def test_clears_move_the_starts(clears, moved):
    """By a fifth or more of them backwards, the further the more there are."""
    made = a_backward(a_way(0, 20), a_way(1, 10))
    Episodes(made).play(7)
    Episodes(made).play(clears)
    assert made._back[0] == 1 + moved
    assert offered(made)[2][0] == 15 - moved
    assert made._back[1] == 0  # nobody played it
    assert made.clear_rates[0] > made.clear_rates[1] == 0.0


def test_starts_do_not_move_behind_the_end():
    made = a_backward(a_way(0, 10))
    Episodes(made).play(0)
    assert made._back[0] == 0


def test_few_episodes_move_nothing():
    made = a_backward(a_way(0, 10))
    episodes = Episodes(made, num_envs=backward._EPISODES - 1)
    episodes.play(3)
    assert made._back[0] == 0
    episodes.play(3)
    assert made._back[0] == 1


@pytest.mark.parametrize("start", [0, 1, 6])
def test_who_began_elsewhere_does_not_count(start):
    """At the starts of levels, or behind the place, whose first start is 2."""
    made = a_backward(a_way(0, 10))
    Episodes(made).play(7)
    Episodes(made).play(32, start)
    assert made._back[0] == 1
    assert (made.clear_rates[0] > 0.3) == (start == 6)


def test_an_episode_from_before_the_last_move_does_not_count():
    made = a_backward(a_way(0, 10))
    late = Episodes(made)
    offered(made)
    late.begin()
    made._ended[0] = made._cleared[0] = 16  # others, meanwhile
    offered(made)
    assert made._back[0] == 4
    late.end(32)
    offered(made)
    assert made._back[0] == 4


def test_at_the_start_all_of_the_way_is_practised():
    made = a_backward(a_way(0, 6), stages=2)
    for _ in range(4):
        Episodes(made).play(32)
    _, weights, snapshots = offered(made, (0.8, 0.0))
    assert snapshots == [0, 1, 2, 3, 4, 5]
    assert weights == pytest.approx([0.1] * 4 + [0.2] * 2)
    assert made._back[0] == 2  # and no further
    assert made.statistics() == {"demonstration_left": 0.0}


def test_without_demonstrations_nothing_is_counted():
    made = a_backward()
    Episodes(made).begin(start=0)
    Episodes(made).end(32, start=0)
    assert len(made) == 0
    assert made.statistics() == {}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_many_levels_have_few_demonstrations(count):
    """Also where nothing has been on offer, as in a level that is always cleared."""
    names = [f"{world}-{stage}" for world in range(1, 4) for stage in range(1, 5)]
    made = a_backward(*(a_way(n, 1) for n in range(count)), stages=len(names))
    if count == 2:
        made.offer(np.ones(len(names)))
    ids = np.arange(4, dtype=np.int32)
    info = {"world": ids * 0 + 1, "stage": ids + 1, "start": ids, "flag_get": ids < 0}
    episodes = Followed(4, levels=names, num_stages=len(names))
    made.observe(episodes.add(ids, np.zeros(4, np.float32), ids < 0, info))
    assert made._begun[:4].tolist() == [-1] * 4
    expected = {"demonstration_left": 0.0} if count else {}
    assert made.statistics() == expected


def test_where_starts_are_goes_on():
    made = a_backward(a_way(0, 10), a_way(1, 10))
    episodes = Episodes(made)
    episodes.play(7)
    offered(made)
    episodes.begin()
    again = a_backward(a_way(0, 10), a_way(1, 10))
    again.restore(json.loads(json.dumps(made.state())), going_on=True)
    assert again.state() == made.state()
    assert offered(again) == offered(made)  # as a run does before it goes on
    episodes.end(7)
    made.restore(made.state(), going_on=True)
    assert made.state()["ended"] == [32, 0]
    fresh = a_backward(a_way(0, 10), a_way(1, 10))
    fresh.restore(made.state(), going_on=False)
    assert fresh._begun.tolist() == [-1] * 32


# -- the ways ------------------------------------------------------------------


def tiles(*levels, **options):
    env = EnvConfig(obs="tiles", stack_num=1, levels=levels, task="SuperMarioBros-v0")
    return replace(env, **options)


@pytest.mark.slow
@pytest.mark.rom
def test_ways_come_to_the_end_in_the_runs_own_environments():
    env, lines = tiles("1-4", "1-1", num_threads=1), []
    ways = find_ways(env, env.levels, 3, per_level=2, log=lines.append)
    assert sorted({way.stage for way in ways}) == [0, 1]
    # On a busy machine there are lines of the search, too.
    results = [line for line in lines if "search steps" in line]
    assert [line.split(":")[0] for line in results] == [
        "demonstrations of 1-4",
        "demonstrations of 1-1",
    ]
    walked = walk(env, ways, 3, cell_size=32)
    for way, known in zip(ways, walked, strict=True):
        steps = len(way.actions)
        assert known.obs.shape == (steps, 1, 16, 16)
        assert known.snapshots.shape == (-(-steps // SPACING), len(way.start))
        assert known.cells.shape == (steps + 1,)
        assert len(set(known.cells.tolist())) > 40
    # What is seen at a snapshot is what is kept of it, and it leads to the end.
    pool = demonstrations.pool_like(env, 7, 1)
    zero = np.zeros(1, np.int32)
    pool.reset()
    for known in walked[::3]:
        number = len(known.snapshots) // 2
        pool.restore(zero, known.snapshots[number : number + 1], "keep")
        obs, *_ = pool.recv()
        for step in range(number * SPACING, len(known.actions)):
            assert np.array_equal(obs[0], known.obs[step])
            pool.send(known.actions[step : step + 1].astype(np.int32), zero)
            obs, _, terminated, _, info = pool.recv()
        assert terminated[0]
        assert info["flag_get"][0]
    pool.close()


@pytest.mark.slow
@pytest.mark.rom
def test_ways_are_the_same_on_any_number_of_threads():
    env = EnvConfig()
    one, two = (
        find_ways(
            replace(env, num_threads=n), ("1-1",), 5, per_level=1, log=lambda _: None
        )[0]
        for n in (1, 2)
    )
    assert np.array_equal(one.actions, two.actions)
    assert np.array_equal(one.start, two.start)


@pytest.mark.rom
def test_a_level_without_a_way_begins_at_its_start(monkeypatch):
    monkeypatch.setattr(demonstrations, "_MOST_STEPS", 256)
    lines = []
    assert find_ways(EnvConfig(), ("1-1",), 1, per_level=1, log=lines.append) == []
    assert "none found" in lines[0]
    assert walk(EnvConfig(), [], 1, cell_size=32) == []


def the_shortest(pool, stage, starts, found):
    return [Way(stage, starts[0], actions) for actions in found], 0


@pytest.mark.parametrize(
    ("shares", "best", "count"), [((5, 27, 28, 30), 2, 28), ((0, 3, 2), 1, 0)]
)
def test_a_robust_way_is_the_demonstration_of_many_starts(
    monkeypatch, shares, best, count
):
    """Otherwise the shortest one that leads to the end from any start."""
    starts = np.arange(31, dtype=np.uint8)[:, None]
    found = [np.full(9, number) for number in range(len(shares))]

    def lengths(pool, starts, actions, most):
        # From the first starts of all; the flag is reached a step earlier from some.
        there = np.arange(31) < shares[actions[0]]
        return np.where(there, 9 - np.arange(31) % 2, 0)

    monkeypatch.setattr(demonstrations, "_lengths", lengths)
    ways, robust = demonstrations._robust_or_shortest(None, 3, starts, found)
    assert robust == count
    at = [int(way.start[0]) for way in ways]
    assert at == ([0, 4, 8, 12, 16, 20, 24] if count else [0])
    for way, start in zip(ways, at, strict=True):
        assert (way.stage, way.actions.tolist()) == (3, [best] * (9 - start % 2))
    assert demonstrations._robust_or_shortest(None, 3, starts, []) == ([], 0)


@pytest.mark.slow
@pytest.mark.rom
def test_a_way_may_lead_to_the_end_from_all_starts():
    """No enemy of 1-1 depends on the idle frames before it, so one search is enough."""
    env, lines, ways = tiles("1-1", num_threads=1), [], Demonstrations()
    find_ways(env, ("1-1",), 3, per_level=4, log=lines.append, ways=ways)
    assert len(ways.searches[0]) < 4
    assert len(ways.found) > 1
    assert len({way.start.tobytes() for way in ways.found}) == len(ways.found)
    assert len({way.actions[:100].tobytes() for way in ways.found}) == 1
    assert " starts (" in lines[-1]
    assert len(walk(env, ways.found, 3, cell_size=32)) == len(ways.found)


@pytest.mark.rom
@pytest.mark.parametrize(
    ("cost", "found"), [(300_000, 3), (600_000, 2), (1_000_000, 1)]
)
def test_a_long_search_is_not_repeated(monkeypatch, cost, found):
    actions = np.zeros(5, np.int64)
    monkeypatch.setattr(demonstrations, "_search", lambda *_: ([actions], cost))
    monkeypatch.setattr(demonstrations, "_robust_or_shortest", the_shortest)
    lines = []
    ways = find_ways(EnvConfig(), ("1-1",), 1, per_level=3, log=lines.append)
    assert len(ways) == found
    assert f"{', '.join(['5'] * found)} steps ({found * cost:,} search" in lines[0]


@pytest.mark.rom
def test_ways_are_shortened(monkeypatch):
    def steps(shorten):
        monkeypatch.setattr(demonstrations, "_SHORTEN", shorten)
        env = EnvConfig(num_threads=1)
        way, *_ = find_ways(env, ("1-1",), 1, per_level=1, log=lambda line: None)
        return len(way.actions)

    assert steps(demonstrations._SHORTEN) < steps(0.0)


@pytest.mark.rom
@pytest.mark.parametrize("after", range(7))
def test_a_search_goes_on_where_it_was(monkeypatch, after):
    """Wherever it was interrupted it asks for the same, each once."""
    costs = iter([1000] * 10)
    asked = []

    def search(env, level, seed, noops, log):
        if len(asked) == after:
            raise KeyboardInterrupt
        asked.append((level, seed, noops))
        if level == "1-2":
            return [], demonstrations._MOST_STEPS
        # Of 1-3 the second one is long.
        cost = demonstrations._ENOUGH if (level, seed) == ("1-3", 2) else next(costs)
        return [np.arange(seed)], cost

    monkeypatch.setattr(demonstrations, "_search", search)
    monkeypatch.setattr(demonstrations, "_robust_or_shortest", the_shortest)
    levels = ("1-1", "1-2", "1-3")
    env = tiles(*levels, num_threads=1)

    def find(ways, log):
        return find_ways(env, levels, 1, per_level=3, log=log, ways=ways)

    ways, lines = Demonstrations(), []
    if after < 6:
        with pytest.raises(KeyboardInterrupt):
            find(ways, lines.append)
        assert not ways.complete
        again = Demonstrations()
        again.restore(ways.state())
        ways, after = again, -1
    found = find(ways, lines.append)
    assert ways.complete
    assert [(way.stage, len(way.actions)) for way in found] == [
        (0, 1), (0, 2), (0, 3), (2, 1), (2, 2),
    ]  # fmt: skip
    assert [level for level, *_ in asked] == ["1-1"] * 3 + ["1-2"] + ["1-3"] * 2
    noops = [
        np.random.default_rng((1, stage)).integers(env.noop_max + 1, size=3)
        for stage in range(3)
    ]
    assert [noops for *_, noops in asked] == [*noops[0], noops[1][0], *noops[2][:2]]
    assert [line.split(":")[0].split()[-1] for line in lines] == list(levels)
    again = Demonstrations()
    again.restore(ways.state())
    assert again.complete
    assert len(again.found) == 5


def test_a_damaged_way_is_found_out(monkeypatch):
    class Pool:
        num_stages = 1

        def reset(self): ...
        def restore(self, *_): ...
        def snapshot(self, envs):
            return np.zeros((1, 4), np.uint8)

        def send(self, *_): ...
        def close(self): ...
        def recv(self):
            no = np.zeros(1, bool)
            info = {"flag_get": no, "env_id": np.zeros(1, np.int32)}
            info |= {"elapsed_step": np.ones(1, np.int32), "start": np.zeros(1, int)}
            return np.zeros((1, 2)), np.zeros(1), no, no, info

    way = demonstrations.Way(0, np.zeros(4, np.uint8), np.zeros(3, np.int64))
    monkeypatch.setattr(demonstrations, "pool_like", lambda *_: Pool())
    with pytest.raises(ValueError, match="does not reach the end"):
        walk(EnvConfig(), [way], 1, cell_size=32)


# -- imitation -----------------------------------------------------------------


def an_imitation(rows=400, actions=5):
    torch.manual_seed(0)
    config = RunConfig().resolved()
    model = build_model(config.model, (4, 40, 40), actions)
    obs = torch.randint(0, 256, (rows, 4, 40, 40), dtype=torch.uint8)
    chosen = torch.randint(0, actions, (rows,))
    made = Imitation(
        model, obs, chosen, dtype=None, generator=torch.Generator().manual_seed(1)
    )
    return model, obs, chosen, made


def test_the_loss_is_the_cross_entropy_of_what_was_done():
    model, obs, chosen, made = an_imitation()
    rows = made.draw()
    assert (rows.min() >= 0, rows.max() < 400) == (True, True)
    assert not torch.equal(rows, made.draw())
    parts = made.loss(rows[:100]) + made.loss(rows[100:])
    n = len(rows)
    output: PolicyOutput
    output, _ = model(obs[rows][None], torch.zeros(n, 0), torch.zeros(1, n).bool())
    expected = functional.cross_entropy(output.logits[0], chosen[rows])
    assert parts.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("shards", [1, 3, 17])
def test_the_gradient_does_not_depend_on_how_it_is_shared(shards):
    """Neither on the number of threads, nor of parts one after the other."""
    model, _, _, made = an_imitation()
    made.weight = 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    threads = Shards(shards)
    step = GradientStep(
        model,
        optimizer,
        torch.amp.GradScaler("cpu", enabled=False),
        LearnerConfig(max_grad_norm=1e9, grad_accum_steps=shards),
        shards=threads,
        statistics=Statistics(CPU),
    )
    step.imitation = made
    zeros = [torch.zeros_like(param) for param in step.params]

    def nothing(shard, some):
        return Gradient(
            ("loss/total",), torch.zeros(1), [zero.clone() for zero in zeros]
        )

    step(step.split(shards), nothing)
    threads.close()
    made._generator.manual_seed(1)
    loss = made.loss(made.draw())
    expected = torch.autograd.grad(0.5 * loss, step.params, allow_unused=True)
    for param, gradient in zip(step.params, expected, strict=True):
        found = param.grad
        assert torch.allclose(
            found, torch.zeros(1) if gradient is None else gradient, atol=1e-6
        )
    assert step._statistics.means()["loss/imitation"] == pytest.approx(loss.item())


@pytest.mark.slow
@pytest.mark.rom
def test_imitation_is_learned_and_its_weight_falls(tmp_path):
    flags = (
        "--imitation 1 --entropy-steps 8000 --max-steps 10000 --no-videos "
        "--dashboard off --obs tiles --device cpu --log-seconds 0"
    )
    assert main([*flags.split(), "--run-dir", str(tmp_path / "run")]) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line).get("learn/loss/imitation") for line in lines]
    # log(5) is that of a policy that knows nothing.
    assert losses[0] == pytest.approx(np.log(5), abs=0.3)
    assert min(filter(None, losses)) < 0.95 * losses[0]
    assert losses[-1] is None  # its weight is 0 by then
    state = checkpoint.load(tmp_path / "run", torch.device("cpu"))
    assert len(state["ways"]) == 8  # one way, from several starts


# -- whole runs ----------------------------------------------------------------

SMALL = {"obs": "tiles", "stack_num": 1, "noop_max": 4, "num_threads": 1}


def small(folder, **options):
    """A run on tiles of a network and batches that cost little."""
    config = make_config(folder, log_seconds=100.0, **SMALL, **options)
    return replace(config, model=replace(config.model, name="tiles"))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Ways of such a run, so that not every test searches for them."""
    env = small(tmp_path_factory.mktemp("found")).resolved().env
    return find_ways(env, ("1-1",), 1, per_level=1, log=lambda _: None)


@pytest.fixture
def searches(monkeypatch, found):
    """Makes runs take these ways; gives the options they asked for."""
    asked = []

    def known(env, *args, ways, **more):
        asked.append(env)
        ways.found, ways.complete = list(found), True

    monkeypatch.setattr(build.demonstrations, "find_ways", known)
    return asked


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize(
    "options", [{"starts": "backward"}, {"starts": "backward", "imitation": 0.5}]
)
def test_such_a_run_goes_on_exactly(tmp_path, monkeypatch, searches, options):
    monkeypatch.setattr(backward, "_EPISODES", 2)
    whole = small(tmp_path / "whole", max_steps=720, **options)
    run_training(whole)
    parts = run_in_parts(whole, tmp_path / "parts" / "run", 240)
    assert len(searches) == 2  # a run that goes on has them
    assert differences(essence(whole.run_dir), essence(parts.run_dir)) == []
    state = checkpoint.load(whole.run_dir, CPU)["explore"]["backward"]
    assert state["back"][0] > 0


@pytest.fixture
def interrupted(monkeypatch, found):
    """Makes the first search end by a signal, after one way; gives those it began."""
    began = []

    def search(number):
        def known(env, *args, ways, **more):
            began.append(len(ways.found))
            if len(began) == 1:
                ways.searches = [[1000]]
                ways.found += found[:1]
                os.kill(os.getpid(), number)
                time.sleep(60.0)  # it does not come to this
            ways.complete = True

        monkeypatch.setattr(build.demonstrations, "find_ways", known)
        return began

    return search


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_an_interrupted_search_goes_on(tmp_path, interrupted, capsys, number):
    before, began = signal.getsignal(number), interrupted(number)
    config = small(tmp_path, max_steps=240, starts="backward", guide=0.1, imitation=0.1)
    metrics = run_training(config)
    assert (metrics["signal"], metrics["steps"], metrics["solved"]) == (number, 0, 0)
    assert metrics["seconds"] > 0
    assert signal.getsignal(number) is before
    said = capsys.readouterr().out
    assert "the 1 found so far are saved; continue with --resume " in said
    state = checkpoint.load(config.run_dir, CPU)
    assert (state["steps"], state["ways"]["searches"]) == (0, [[1000]])
    assert state["progress"]["seconds"] == metrics["seconds"]
    metrics = run_training(replace(config, resume=config.run_dir))
    assert began == [0, 1]
    assert "new episodes begin: the run was interrupted before its first update" in (
        capsys.readouterr().out
    )
    assert metrics["steps"] >= 240
    assert metrics["seconds"] > state["progress"]["seconds"]
    assert len(checkpoint.load(config.run_dir, CPU)["ways"]) == 1


@pytest.mark.slow
@pytest.mark.rom
def test_a_search_of_a_run_that_goes_on_is_not_kept(tmp_path, interrupted, capsys):
    """Its checkpoint has episodes, which one of this moment would be without."""
    config = small(tmp_path, max_steps=240)
    steps = run_training(config)["steps"]
    (path, *_) = checkpoint.list_files(config.run_dir)
    content = path.read_bytes()
    interrupted(signal.SIGINT)
    more = change(config, max_steps=480, resume=config.run_dir, starts="backward")
    metrics = run_training(more)
    assert (metrics["signal"], metrics["steps"]) == (signal.SIGINT, steps)
    assert "its results are not saved, and the run is unchanged" in (
        capsys.readouterr().out
    )
    assert checkpoint.list_files(config.run_dir) == [path]
    assert path.read_bytes() == content


@pytest.mark.slow
@pytest.mark.rom
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_the_exit_status_of_an_interrupted_search(
    tmp_path, interrupted, number, status
):
    interrupted(number)
    flags = "--obs tiles --guide 0.1 --device cpu --no-videos --dashboard off"
    assert main([*flags.split(), "--run-dir", str(tmp_path / "run")]) == status
    assert checkpoint.list_files(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.rom
def test_with_other_options_ways_are_found_anew(tmp_path, searches, capsys):
    config = small(tmp_path, max_steps=240, starts="backward")
    run_training(config)
    run_training(replace(config, resume=config.run_dir, max_steps=480))
    assert len(searches) == 1
    # Their snapshots are of environments with other options.
    with pytest.raises(ValueError, match="with these options"):
        run_training(change(config, resume=config.run_dir, max_steps=720, noop_max=7))
    assert [env.noop_max for env in searches] == [4, 7]
    assert "replaced by a new search: restore: blob 0" in capsys.readouterr().out
    run_training(change(config, resume=config.run_dir, max_steps=720, demonstrations=2))
    assert len(searches) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"task": "SuperMarioBros-v0"},
            "SuperMarioBros-v0 does not play those: choose",
        ),
        ({"imitation": 0.1, "entropy_steps": 0}, "which must be above 0, got 0"),
        ({"repeat_action_probability": 0.25}, "leave out --repeat-action-probability"),
        ({"imitation": 0.1, "memory": "gru"}, "for networks without --memory"),
        ({"imitation": -1.0}, "imitation must be at least 0, got -1.0"),
        ({"demonstrations": 0}, "demonstrations must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_demonstrated_is_refused(tmp_path, options, words):
    starts = {} if "imitation" in options else {"starts": "backward"}
    with pytest.raises(ValueError, match=words):
        make_config(tmp_path, **starts, **options).validate()
