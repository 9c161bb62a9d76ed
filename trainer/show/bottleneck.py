"""What bounds the speed of a run, in one line."""

from __future__ import annotations

from collections.abc import Mapping

# A part of the loop is the bottleneck from this share of its thread's time on; a
# thread that waits for the other one longer than the second share is held up.
_BOUND, _HELD_UP = 0.4, 0.1
# A GPU that runs kernels for this share of the time has no more to give.
_GPU_BUSY = 0.8


def verdict(
    shares: Mapping[str, float], gpu_utilisation: float | None, overlapped: bool
) -> str:
    """Says in one line what bounds the speed of a run, and what to change.

    Args:
        shares: of `Timings`: wait (for environments), copy, act, send, store, learn,
            and where overlapped wait_learner (of the collector) and wait_batch (of
            the learner). Missing ones count 0.
        gpu_utilisation: share of the time that a GPU runs kernels (`Monitor`), None
            without a GPU.
        overlapped: whether collector and learner are two threads.

    Returns:
        The verdict, a colon, and its reason, whose figures change at every call.
    """
    name, share = _dominant(shares, overlapped)
    if name == "wait":
        return (
            f"emulation-bound: acting waits {share:.0%} of the time for environments; "
            "more cores and --num-threads help, a larger --model costs little"
        )
    if gpu_utilisation is not None and gpu_utilisation >= _GPU_BUSY:
        return (
            f"GPU-bound: kernels run {gpu_utilisation:.0%} of the time; a smaller "
            "--model or fewer --epochs help, faster environments would not"
        )
    if name == "act":
        return (
            f"acting-bound (CPU): acting and storing take {share:.0%} of the time; "
            "larger groups (more --num-envs, fewer --groups) or a smaller --model help"
        )
    if not name:
        return "balanced: no part holds the others up; only more of everything helps"
    if gpu_utilisation is None:
        return (
            f"learning-bound (CPU): learning takes {share:.0%} of the time; a smaller "
            "--model or fewer --epochs help, faster environments would not"
        )
    meanwhile = "" if overlapped else ", --lag 1 to collect meanwhile"
    return (
        f"learning-bound (CPU): learning takes {share:.0%} of the time, yet the GPU "
        f"runs kernels for only {gpu_utilisation:.0%}; a larger --minibatch-size, "
        f"--cuda-graphs{meanwhile} help"
    )


def verdict_of(values: Mapping[str, float], overlapped: bool) -> str:
    """The `verdict` on a point of the curves, `values` as in metrics.jsonl."""
    prefix = "time/share_"
    shares = {k.removeprefix(prefix): v for k, v in values.items() if prefix in k}
    return verdict(shares, values.get("system/gpu_utilisation"), overlapped)


def _dominant(shares: Mapping[str, float], overlapped: bool) -> tuple[str, float]:
    """The part of the loop that bounds its speed, and its share; "" for none.

    Where two threads overlap, it is a part of the one that the other waits for.
    """
    parts = {
        # Waking more workers than there are cores left is waiting for them, too.
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
