"""Runs of half a second on fake pools, and how to look at what they leave."""

import dataclasses
import json
import resource
import threading
from contextlib import contextmanager

import torch

from trainer.config import flags
from trainer.config.learning import Adam
from trainer.config.plain import to_dict
from trainer.config.schema import EnvConfig, LearnerConfig, ModelConfig, RunConfig
from trainer.evaluation import protocol
from trainer.machine.files import EPISODES
from trainer.models import build_model, checkpoint
from trainer.session import build, training

CPU = torch.device("cpu")
ENVS = 6
STEPS = 300

# Of a config with a memory, whichever it is.
SMALL_MEMORY = {"memory_size": 8, "memory_heads": 2, "memory_steps": 4}


def change(config, **options):
    """A config with options of any of its parts, and of its own, changed."""
    parts = {k: v for k, v in options.items() if dataclasses.is_dataclass(v)}
    small = SMALL_MEMORY if "memory" in options else {}
    rest = {k: v for k, v in options.items() if k not in parts}
    return flags.change(dataclasses.replace(config, **parts), **(small | rest))


def make_config(tmp_path, **options):
    base = RunConfig(
        device="cpu",
        precision="fp32",
        run_dir=tmp_path / "run",
        max_steps=STEPS,
        stop_when_solved=False,
        log_seconds=0.01,
        videos=False,  # of fake games there are none
        env=EnvConfig(num_envs=ENVS, groups=2),
        learner=LearnerConfig(
            unroll=8,
            unrolls_per_batch=ENVS,
            minibatch_size=24,
            epochs=2,
            learner_threads=2,
            optimizer=Adam(),
            lr=1e-3,
            ema=0.0,
        ),
    )
    return change(base, **options)


@contextmanager
def full_disk():
    """No file may grow: every write is an OSError, "File too large"."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def read_points(folder, name="metrics.jsonl"):
    lines = (folder / name).read_text().splitlines()
    return [json.loads(line) for line in lines]


def weights_in(folder, name="model"):
    state = checkpoint.load(folder, CPU)[name]
    return torch.cat([tensor.flatten() for tensor in state.values()])


def threads_of_runs():
    """Collectors and shards that still run."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("collector", "shard"))]


def differences(one, two, path=""):
    """Where two checkpoints differ, as a list of names."""
    if isinstance(one, torch.Tensor):
        same = one.dtype == two.dtype and torch.equal(one, two)
        return [] if same else [path]
    if isinstance(one, dict):
        if set(one) != set(two):
            return [f"{path}: {set(one) ^ set(two)}"]
        return [d for k in one for d in differences(one[k], two[k], f"{path}/{k}")]
    if isinstance(one, (list, tuple)) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{path}/{i}")]
    return [] if one == two else [f"{path}: {one} != {two}"]


def essence(run_dir):
    """All of a checkpoint but the time it took and where it lies."""
    state = checkpoint.load(run_dir, CPU)
    # These depend on the clock, and rates are looked at when a point is written.
    del state["config"], state["progress"]["seconds"]
    del state["progress"]["best_score"]
    for own in (state, *state.get("others", [])):
        _forget_unwritten(own["collecting"]["rollouts"])
    return state


def _forget_unwritten(rollouts):
    """Clears what earlier unrolls left in slots, as on the newest row nothing has been
    decided.
    """
    num_envs, written = len(rollouts["cursor"]), int(rollouts["cursor"].max())
    for name, rows in rollouts["rows"].items():
        decided = name in ("actions", "logits", "values", "versions")
        rows[written - decided :, :num_envs] = 0
    for number, used in enumerate(rollouts["frames_used"].tolist()):
        rollouts["frames"][number, used:] = 0


def use_pools(monkeypatch, kind):
    """Makes runs use fake pools of a kind (fake_pools.py); gives the list of them."""
    made = []

    def make(config, seed, *, asynchronous=False, **options):
        group = config.num_envs // config.groups
        batch_size = group if asynchronous else config.num_envs
        made.append(kind(config.num_envs, batch_size, seed))
        return made[-1]

    monkeypatch.setattr(build, "make_pool", make)
    monkeypatch.setattr(protocol, "make_pool", make)
    return made


def read_episodes(run_dir):
    """The lines of episodes.jsonl."""
    return [json.loads(x) for x in (run_dir / EPISODES[0]).read_text().splitlines()]


def run_in_parts(whole, run_dir, steps):
    """Makes a new run in a folder, resumed every so many steps on other threads."""
    parts = dataclasses.replace(whole, run_dir=run_dir)
    for end in range(steps, whole.max_steps + 1, steps):
        start = None if end == steps else run_dir
        threads = dataclasses.replace(parts.env, num_threads=1 + end // steps % 2)
        training.run_training(
            dataclasses.replace(parts, env=threads, max_steps=end, resume=start)
        )
    return parts


def save_policy(run_dir, steps, action=4):
    """A checkpoint of a small network that sees pictures; it always takes one action,
    or, without one, any.
    """
    env = EnvConfig(num_envs=4, groups=2, img_height=36, img_width=36)
    config = change(RunConfig(precision="fp32"), env=env)
    model = build_model(ModelConfig(), (4, 36, 36), 5)
    if action is not None:
        with torch.no_grad():
            model.head.policy.bias[action] = 99.0
    state = {"config": to_dict(config), "model": model.state_dict(), "steps": steps}
    (run_dir / "checkpoints").mkdir(exist_ok=True)
    checkpoint.save(run_dir / "checkpoints" / f"step-{steps:09}.pt", state)
