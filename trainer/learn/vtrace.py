"""V-trace and GAE: value targets and policy-gradient advantages.

Pure functions on (time, batch) tensors, in float32 and without gradients. They
do not depend on networks, environments, replay or burn-in.

Source: Espeholt et al. 2018, "IMPALA" (arXiv:1802.01561), section 4.1, with
rlax's lambda: it scales the trace coefficients and mixes the bootstrap of the
advantage, so that rho_bar = c_bar = inf on policy gives GAE(lambda) exactly.

Rows are what an EnvPool-style pool with *next-step* autoreset returns:

    row        t            t+1                 t+2
    obs        x_t          x_{t+1} final       first of the next episode
    action     a_t          ignored             a_{t+2}
    reward     r of a_{t-1} r of a_t            0
    done       False        True                False

Transition t goes from row t to row t+1; T+1 rows hold T transitions. The
transition that starts at a `done` row is the reset: its action was ignored, so
it has weight 0 and no temporal difference, and passes nothing backwards. The
transition before it bootstraps from its own final observation if it was
truncated, and from 0 if it terminated.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_logger = logging.getLogger(__name__)

Scan = Callable[[Tensor, Tensor], Tensor]


class VTrace(NamedTuple):
    """Targets for T transitions; every field is (T, B) float32.

    Attributes:
        targets: v_t, the critic's target at row t.
        advantages: r + gamma * bootstrap - V, before the importance weight (a
            clipped-ratio loss carries that weight itself); 0 at ignored transitions.
        weights: 1 for a real transition, 0 for one whose action was ignored.
        rhos: min(rho_bar, pi/mu), the importance weight of the temporal differences
            and of IMPALA's policy gradient; 0 at ignored transitions.
    """

    targets: Tensor
    advantages: Tensor
    weights: Tensor
    rhos: Tensor


def reverse_scan(decay: Tensor, increment: Tensor) -> Tensor:
    """Solves x_t = increment_t + decay_t * x_{t+1} with x_T = 0.

    On a GPU with Triton this is one kernel, elsewhere `vectorised_scan`.

    Args:
        decay: (T, B) float32 factors.
        increment: (T, B) float32 terms.

    Returns:
        (T, B) the solution; the arguments do not change.
    """
    # In compiled code, the compiler fuses the vectorised form.
    if increment.is_cuda and not torch.compiler.is_compiling():
        return scan_for(increment.device)(decay, increment)
    return vectorised_scan(decay, increment)


def vectorised_scan(decay: Tensor, increment: Tensor) -> Tensor:
    """Solves a recurrence of length T in log2(T) steps (Hillis & Steele 1986).

    After the step with stride k, increment_t holds the sum over the window
    [t, t + 2k) and decay_t the product of the decays across it.
    """
    decay, increment = decay.clone(), increment.clone()
    stride = 1
    while stride < increment.shape[0]:
        increment[:-stride] += decay[:-stride] * increment[stride:]
        decay[:-stride] = decay[:-stride] * decay[stride:]
        stride *= 2
    return increment


@functools.cache
def scan_for(device: torch.device) -> Scan:
    """Chooses a device's scan; tries the Triton kernel once.

    Triton, or the C compiler that it needs, may be missing; the log then gives the
    reason, once.
    """
    try:
        from trainer.learn.scan_triton import reverse_scan as fused_scan

        fused_scan(torch.ones(2, 1, device=device), torch.ones(2, 1, device=device))
    except Exception as error:
        _logger.warning(
            "V-trace runs in log2(T) small kernels, as the Triton one failed: %s: %s",
            type(error).__name__,
            error,
        )
        return vectorised_scan
    return fused_scan


@torch.no_grad()
def vtrace(
    *,
    log_ratios: Tensor,
    values: Tensor,
    rewards: Tensor,
    done: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> VTrace:
    """Computes V-trace targets and advantages for rows of a pool.

    Args:
        log_ratios: (T, B) log pi(a_t|x_t) - log mu(a_t|x_t).
        values: (T+1, B) V(x_t) under the current critic, the last row being the
            bootstrap.
        rewards: (T+1, B) the reward that arrived *with* row t (row 0's is unused).
        done: (T+1, B) bool, row t ended its episode.
        truncated: (T+1, B) bool, row t ended its episode by a limit.
        gamma: discount per decision.
        lam: lambda, 1 for the paper's V-trace.
        rho_bar: clip of the ratios in the temporal differences and in `rhos`.
        c_bar: clip of the ratios in the trace.

    Returns:
        A `VTrace` of (T, B) tensors.

    Raises:
        ValueError: a shape is wrong.
    """
    steps, batch = log_ratios.shape
    for name, tensor in (
        ("values", values),
        ("rewards", rewards),
        ("done", done),
        ("truncated", truncated),
    ):
        if tensor.shape != (steps + 1, batch):
            raise ValueError(
                f"{name} must have shape {(steps + 1, batch)}, one more row than "
                f"log_ratios {(steps, batch)} for the bootstrap; got "
                f"{tuple(tensor.shape)}"
            )
    values = values.float()
    ratios = log_ratios.float().exp()
    weights = (~done[:-1]).float()
    bootstraps = (~(done[1:] & ~truncated[1:])).float()
    continues = (~done[1:]).float()

    rhos = ratios.clamp(max=rho_bar)
    cs = lam * ratios.clamp(max=c_bar)
    rewards = rewards[1:].float()
    deltas = rhos * (rewards + gamma * bootstraps * values[1:] - values[:-1])
    corrections = reverse_scan(
        decay=gamma * cs * continues * weights, increment=weights * deltas
    )
    targets = values[:-1] + corrections

    # v_{t+1} at the last row is the bootstrap itself. At a done row, whose transition
    # is the reset, the correction is 0: so a truncated transition bootstraps from V of
    # its last observation.
    next_corrections = torch.cat([corrections[1:], torch.zeros_like(values[:1])])
    next_values = values[1:] + lam * next_corrections
    advantages = weights * (rewards + gamma * bootstraps * next_values - values[:-1])
    return VTrace(
        targets=targets,
        advantages=advantages,
        weights=weights,
        rhos=weights * rhos,
    )


def gae(
    *,
    values: Tensor,
    rewards: Tensor,
    done: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
) -> VTrace:
    """Generalised advantage estimation (Schulman et al. 2016, equation 16).

    This is V-trace for a policy that has not changed: every ratio is 1, so `targets`
    are V plus the advantages. Takes the other arguments of `vtrace`.
    """
    return vtrace(
        log_ratios=torch.zeros_like(values[:-1]),
        values=values,
        rewards=rewards,
        done=done,
        truncated=truncated,
        gamma=gamma,
        lam=lam,
    )
