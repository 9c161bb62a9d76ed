"""The bottleneck of a run, in one line."""

from __future__ import annotations

from collections.abc import Mapping

# A part of the loop is the bottleneck if it takes at least the first share of the time
# of its thread. A thread that waits for the other thread for at least the second share
# is held up.
_BOUND, _HELD_UP = 0.4, 0.1
# A GPU that runs kernels for at least this share of the time is the bottleneck.
_GPU_BUSY = 0.8


def bottleneck(
    shares: Mapping[str, float], gpu_utilisation: float | None, overlapped: bool
) -> str:
    """The bottleneck of a run and what to change, in one line."""
    name, share = _dominant(shares, overlapped)
    if name == "wait":
        return (
            f"emulation-bound: acting waits {share:.0%} of the time for environments; "
            "use more cores and --num-threads; a larger --model costs little"
        )
    if gpu_utilisation is not None and gpu_utilisation >= _GPU_BUSY:
        return (
            f"GPU-bound: kernels run {gpu_utilisation:.0%} of the time; use a smaller "
            "--model or fewer --epochs; faster environments would not help"
        )
    if name == "act":
        return (
            f"acting-bound (CPU): acting and storing take {share:.0%} of the time; use "
            "larger groups (more --num-envs, fewer --groups) or a smaller --model"
        )
    if not name:
        return "balanced: no part waits for another; only faster hardware would help"
    if gpu_utilisation is None:
        return (
            f"learning-bound (CPU): learning takes {share:.0%} of the time; use a "
            "smaller --model or fewer --epochs; faster environments would not help"
        )
    meanwhile = "" if overlapped else ", or --lag 1 to collect meanwhile"
    return (
        f"learning-bound (CPU): learning takes {share:.0%} of the time, yet the GPU "
        f"runs kernels for only {gpu_utilisation:.0%}; use a larger --minibatch-size, "
        f"--cuda-graphs{meanwhile}"
    )


def bottleneck_of(values: Mapping[str, float], overlapped: bool) -> str:
    """The `bottleneck` at a point of the curves, `values` as in metrics.jsonl."""
    prefix = "time/share_"
    shares = {k.removeprefix(prefix): v for k, v in values.items() if prefix in k}
    return bottleneck(shares, values.get("system/gpu_utilisation"), overlapped)


def _dominant(shares: Mapping[str, float], overlapped: bool) -> tuple[str, float]:
    """The part of the loop that is the bottleneck, and its share; "" for none.

    If two threads overlap, the part belongs to the thread that the other waits for.
    """
    parts = {
        # Sending counts as waiting: it takes long if workers lack free cores.
        "wait": shares.get("wait", 0.0) + shares.get("send", 0.0),
        "act": sum(
            shares.get(name, 0.0) for name in ("copy", "act", "store", "explore")
        ),
        "learn": shares.get("learn", 0.0),
    }
    if overlapped:
        collector_waits = shares.get("wait_learner", 0.0)
        learner_waits = shares.get("wait_batch", 0.0)
        if max(collector_waits, learner_waits) < _HELD_UP:
            return "", 0.0
        for name in ("wait", "act") if collector_waits > learner_waits else ("learn",):
            del parts[name]
    name = max(parts, key=lambda part: parts[part])
    return (name, parts[name]) if parts[name] >= _BOUND else ("", 0.0)
