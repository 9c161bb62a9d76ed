"""V-trace and GAE against slow twins shaped like the papers, and by hand."""

import importlib.util
import logging
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from compiling import count_graphs, generated_kernels, needs_cpp

from trainer.learn.vtrace import gae, reverse_scan, scan_for, vectorised_scan, vtrace
from trainer.machine.cuda import compiled

CLIPS = {"gamma": 0.9, "lam": 0.95, "rho_bar": 1.0, "c_bar": 1.0}


def slow_vtrace(log_ratios, values, rewards, done, truncated, gamma, lam, rho_bar,
                c_bar):  # fmt: skip
    """v_s as the sum of the paper's equation (1), term by term in float64.

    The sum of s stops behind the first transition that ends an episode; a
    transition out of a done row does not exist.
    """
    T, B = log_ratios.shape
    ratio = np.exp(log_ratios.astype(np.float64))
    rho, c = np.minimum(rho_bar, ratio), lam * np.minimum(c_bar, ratio)
    terminated = done & ~truncated

    def delta(t, b):
        bootstrap = 0.0 if terminated[t + 1, b] else values[t + 1, b]
        return rho[t, b] * (rewards[t + 1, b] + gamma * bootstrap - values[t, b])

    vs = values[:T].astype(np.float64).copy()
    for b in range(B):
        for s in range(T):
            if done[s, b]:
                continue
            for t in range(s, T):
                trace = math.prod(c[i, b] for i in range(s, t))
                vs[s, b] += gamma ** (t - s) * trace * delta(t, b)
                if done[t + 1, b]:
                    break
    advantages = np.zeros((T, B))
    for b in range(B):
        for s in range(T):
            if done[s, b]:
                continue
            if done[s + 1, b] or s == T - 1:
                following = values[s + 1, b]
            else:
                following = lam * vs[s + 1, b] + (1 - lam) * values[s + 1, b]
            following = 0.0 if terminated[s + 1, b] else following
            advantages[s, b] = rewards[s + 1, b] + gamma * following - values[s, b]
    return vs, advantages, np.where(done[:T], 0, rho)


def random_rows(rng, T, B):
    """Rows as a pool gives them: no two done rows in a row, reward 0 at resets."""
    done = rng.random((T + 1, B)) < 0.25
    for t in range(1, T + 1):
        done[t] &= ~done[t - 1]
    rewards = rng.normal(size=(T + 1, B))
    rewards[1:][done[:-1]] = 0
    return {
        "log_ratios": rng.normal(size=(T, B), scale=0.7),
        "values": rng.normal(size=(T + 1, B)),
        "rewards": rewards,
        "done": done,
        "truncated": done & (rng.random((T + 1, B)) < 0.5),
    }


def tensors(rows):
    return {
        name: torch.from_numpy(np.asarray(array)).to(
            torch.bool if np.asarray(array).dtype == bool else torch.float32
        )
        for name, array in rows.items()
    }


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 4), (20, 7), (33, 2), (64, 3)])
@pytest.mark.parametrize(
    "clips",
    [
        CLIPS,
        {"gamma": 0.99, "lam": 1.0, "rho_bar": 1.5, "c_bar": 0.8},
        {"gamma": 1.0, "lam": 0.5, "rho_bar": 0.7, "c_bar": 3.0},
    ],
)
def test_equals_slow_twin(shape, clips):
    rows = random_rows(np.random.default_rng(sum(shape)), *shape)
    vs, advantages, rhos = slow_vtrace(**rows, **clips)
    result = vtrace(**tensors(rows), **clips)
    np.testing.assert_allclose(result.targets, vs, atol=1e-5)
    np.testing.assert_allclose(result.advantages, advantages, atol=1e-5)
    np.testing.assert_allclose(result.rhos, rhos, atol=1e-5)
    np.testing.assert_array_equal(result.weights, ~rows["done"][:-1])


def by_hand(truncated):
    """Five steps; row 3 ends the episode, so transition 3 is the reset.

    gamma = 1/2, lambda = 1, all clips 1; ratios 1, 2, 1/2, (9), 1.
    """
    column = [[1.0], [2.0], [0.5], [9.0], [1.0]]
    return vtrace(
        log_ratios=torch.tensor(column).log(),
        values=torch.tensor([[1.0], [2.0], [4.0], [8.0], [2.0], [6.0]]),
        rewards=torch.tensor([[7.0], [1.0], [0.0], [3.0], [0.0], [1.0]]),
        done=torch.tensor([[False], [False], [False], [True], [False], [False]]),
        truncated=torch.tensor([[False]] * 3 + [[truncated]] + [[False]] * 2),
        gamma=0.5,
        lam=1.0,
    )


def test_five_steps_by_hand_terminated():
    # delta_2 = 1/2 (3 + 0 - 4) = -1/2        v_2 = 4 - 1/2 = 3.5
    # delta_1 = 1 (0 + 4/2 - 2) = 0           v_1 = 2 + 0 + 1/2 (3.5 - 4) = 1.75
    # delta_0 = 1 (1 + 2/2 - 1) = 1           v_0 = 1 + 1 + 1/2 (1.75 - 2) = 1.875
    # transition 3 is ignored                 v_3 = V = 8
    # delta_4 = 1 (1 + 6/2 - 2) = 2           v_4 = 4
    result = by_hand(truncated=False)
    assert result.targets.flatten().tolist() == [1.875, 1.75, 3.5, 8.0, 4.0]
    # 1 + 1.75/2 - 1; 0 + 3.5/2 - 2; 3 - 4; ignored; 1 + 6/2 - 2
    assert result.advantages.flatten().tolist() == [0.875, -0.25, -1.0, 0.0, 2.0]
    assert result.rhos.flatten().tolist() == [1.0, 1.0, 0.5, 0.0, 1.0]
    assert result.weights.flatten().tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]


def test_five_steps_by_hand_truncated():
    # As above, but V(final x) = 8 is bootstrapped:
    # delta_2 = 1/2 (3 + 8/2 - 4) = 1.5       v_2 = 5.5
    #                                         v_1 = 2 + 1/2 (5.5 - 4) = 2.75
    #                                         v_0 = 2 + 1/2 (2.75 - 2) = 2.375
    result = by_hand(truncated=True)
    assert result.targets.flatten().tolist() == [2.375, 2.75, 5.5, 8.0, 4.0]
    # 1 + 2.75/2 - 1; 5.5/2 - 2; 3 + 8/2 - 4
    assert result.advantages.flatten().tolist() == [1.375, 0.75, 3.0, 0.0, 2.0]


def slow_gae(values, rewards, done, truncated, gamma, lam):
    """Schulman et al. 2016, equation 16: a discounted sum of TD residuals."""
    T, B = values.shape[0] - 1, values.shape[1]
    advantages = np.zeros((T, B))
    for b in range(B):
        for s in range(T):
            if done[s, b]:
                continue
            for t in range(s, T):
                terminated = done[t + 1, b] and not truncated[t + 1, b]
                following = 0.0 if terminated else values[t + 1, b]
                residual = rewards[t + 1, b] + gamma * following - values[t, b]
                advantages[s, b] += (gamma * lam) ** (t - s) * residual
                if done[t + 1, b]:
                    break
    return advantages


@pytest.mark.parametrize("shape", [(1, 1), (5, 4), (24, 5), (33, 2)])
@pytest.mark.parametrize(("gamma", "lam"), [(0.97, 0.9), (1.0, 1.0), (0.9, 0.0)])
def test_gae_equals_slow_twin(shape, gamma, lam):
    rows = random_rows(np.random.default_rng(sum(shape)), *shape)
    del rows["log_ratios"]
    advantages = slow_gae(**rows, gamma=gamma, lam=lam)
    result = gae(**tensors(rows), gamma=gamma, lam=lam)
    np.testing.assert_allclose(result.advantages, advantages, atol=1e-5)
    targets = rows["values"][:-1] + advantages
    np.testing.assert_allclose(result.targets, targets, atol=1e-5)
    real = ~rows["done"][:-1]
    for field in (result.weights, result.rhos):
        np.testing.assert_array_equal(field, real)


def test_is_gae_on_policy_without_clips():
    rows = tensors(random_rows(np.random.default_rng(3), 24, 5))
    rows["log_ratios"].zero_()
    inf = math.inf
    result = vtrace(**rows, gamma=0.97, lam=0.9, rho_bar=inf, c_bar=inf)
    del rows["log_ratios"]
    for field, same in zip(result, gae(**rows, gamma=0.97, lam=0.9), strict=True):
        assert torch.equal(field, same)


@pytest.mark.parametrize("truncated", [False, True])
def test_nothing_leaks_over_an_episode_end(truncated):
    rows = random_rows(np.random.default_rng(4), 12, 2)
    rows["done"][:] = False
    rows["truncated"][:] = False
    rows["done"][6], rows["truncated"][6] = True, truncated
    before = vtrace(**tensors(rows), **CLIPS)
    for name, absurd in (("values", 1e6), ("rewards", -1e6)):
        rows[name][7:] = absurd
    rows["log_ratios"][6:] = 5.0
    after = vtrace(**tensors(rows), **CLIPS)
    for name in ("targets", "advantages", "rhos"):
        old, new = getattr(before, name), getattr(after, name)
        assert torch.equal(old[:6], new[:6]), name
        assert not torch.equal(old[7:], new[7:]), name
    assert after.advantages[6].abs().max() == 0


def test_final_observation_counts_only_when_truncated():
    rows = random_rows(np.random.default_rng(5), 4, 1)
    rows["done"][:], rows["truncated"][:] = False, False
    rows["done"][2] = True
    changed = {name: array.copy() for name, array in rows.items()}
    changed["values"][2] += 10
    same = vtrace(**tensors(rows), **CLIPS).targets[:2]
    assert torch.equal(same, vtrace(**tensors(changed), **CLIPS).targets[:2])
    rows["truncated"][2] = changed["truncated"][2] = True
    same = vtrace(**tensors(rows), **CLIPS).targets[:2]
    assert not torch.equal(same, vtrace(**tensors(changed), **CLIPS).targets[:2])


def test_no_gradients_and_float32():
    rows = tensors(random_rows(np.random.default_rng(6), 3, 2))
    rows["values"] = rows["values"].bfloat16().requires_grad_()
    for field in vtrace(**rows, **CLIPS):
        assert field.dtype == torch.float32
        assert not field.requires_grad


# -- the fixed point ---------------------------------------------------------

GAMMA, TERMINAL = 0.9, 4


class Tabular:
    """Five states and three actions. State 4 is terminal.

    The transition to state 3 by action 2 is truncated, so its row ends an episode as
    well, and the critic's value of state 3 counts behind it. Every episode after the
    first of a column begins in state 0.
    """

    def __init__(self):
        rng = np.random.default_rng(11)
        self.moves = rng.dirichlet(np.full(5, 0.5), (5, 3))  # P(x' | x, a)
        self.rewards = rng.normal(size=(5, 3, 5)) + np.array([0, 1, 2])[:, None]
        self.mu = rng.dirichlet(np.full(3, 0.7), 5).clip(0.02)
        self.pi = rng.dirichlet(np.full(3, 0.7), 5).clip(0.02)
        self.mu /= self.mu.sum(1, keepdims=True)
        self.pi /= self.pi.sum(1, keepdims=True)

    def values_of(self, policy):
        """The values of a policy (5, 3), by linear algebra."""
        moves = self.moves.copy()
        moves[TERMINAL] = 0
        rewards = (moves * self.rewards).sum(2)
        matrix = np.einsum("xa,xay->xy", policy, moves)
        matrix[:, TERMINAL] = 0
        return np.linalg.solve(np.eye(5) - GAMMA * matrix, (policy * rewards).sum(1))

    def unrolls(self, steps):
        """All unrolls of so many transitions, and the probability of each under mu.

        Returns:
            states (T + 1, N), actions (T, N), rows for `vtrace` without values, and
            probabilities (N,) given the first state.
        """
        choices = np.meshgrid(*[range(4)], *[range(3), range(5)] * steps)
        flat = [axis.ravel() for axis in choices]
        states, actions = np.stack([flat[0], *flat[2::2]]), np.stack(flat[1::2])
        done = np.zeros(states.shape, bool)
        truncated, rewards = done.copy(), np.zeros(states.shape)
        chance = np.ones(len(flat[0]))
        for t in range(steps):
            x, a, y = states[t], actions[t], states[t + 1]
            played = self.mu[x, a] * self.moves[x, a, y]
            chance *= np.where(done[t], (a == 0) & (y == 0), played)
            rewards[t + 1] = np.where(done[t], 0, self.rewards[x, a, y])
            truncated[t + 1] = ~done[t] & (y == 3) & (a == 2)
            done[t + 1] = ~done[t] & ((y == TERMINAL) | truncated[t + 1])
        ratios = np.log(self.pi / self.mu)[states[:-1], actions]
        rows = {"log_ratios": ratios, "rewards": rewards, "done": done}
        kept = chance > 0
        rows = {k: v[:, kept] for k, v in (rows | {"truncated": truncated}).items()}
        return states[:, kept], actions[:, kept], tensors(rows), chance[kept]


@pytest.mark.parametrize("lam", [1.0, 0.8])
@pytest.mark.parametrize(
    ("rho_bar", "c_bar"),
    [(0.5, 0.5), (1.0, 1.0), (1.0, 0.3), (10.0, 10.0), (10.0, 1.0), (math.inf, 1.0)],
)
def test_the_iteration_converges_to_the_value_of_the_clipped_policy(
    rho_bar, c_bar, lam
):
    """Espeholt et al. 2018, section 4.1: pi_rho ~ min(rho_bar mu, pi).

    The expectation over unrolls that mu plays is exact, over all of them.
    """
    mdp = Tabular()
    states, actions, rows, chance = mdp.unrolls(3)
    clips = {"gamma": GAMMA, "lam": lam, "rho_bar": rho_bar, "c_bar": c_bar}
    # What the critic says of the terminal state does not count.
    values = np.array([0.0, 0.0, 0.0, 0.0, 50.0])
    for _ in range(400):
        table = torch.tensor(values[states], dtype=torch.float32)
        result = vtrace(values=table, **rows, **clips)
        means = np.bincount(states[0], chance * result.targets[0].numpy(), 4)
        moved = np.abs(means - values[:4]).max()
        values[:4] = means
    assert moved < 1e-4
    clipped = np.minimum(rho_bar * mdp.mu, mdp.pi)
    clipped /= clipped.sum(1, keepdims=True)
    expected = mdp.values_of(clipped)
    np.testing.assert_allclose(values[:4], expected[:4], atol=1e-3)
    # Not that of the policy that acted, nor, but for an infinite clip, of the target's.
    for other, same in ((mdp.mu, False), (mdp.pi, rho_bar == math.inf)):
        away = np.abs(mdp.values_of(other) - expected)[:4].max()
        assert (away < 1e-6) if same else (away > 0.05)
    # There the advantages are those of pi_rho, for the policy gradient.
    following = mdp.rewards + GAMMA * np.where(np.arange(5) == TERMINAL, 0, expected)
    wanted = (mdp.moves * following).sum(2) - expected[:, None]
    pairs, weights = 3 * states[0] + actions[0], chance / mdp.mu[states[0], actions[0]]
    found = np.bincount(pairs, weights * result.advantages[0].numpy(), 12)
    np.testing.assert_allclose(found, wanted[:4].ravel(), atol=2e-3)


def test_wrong_shape_is_named():
    rows = tensors(random_rows(np.random.default_rng(7), 3, 2))
    rows["values"] = rows["values"][:-1]
    with pytest.raises(ValueError, match=r"must have shape \(4, 2\).*got \(3, 2\)"):
        vtrace(**rows, **CLIPS)


def slow_scan(decay, increment):
    result, x = torch.zeros_like(increment), torch.zeros(increment.shape[1:])
    for t in reversed(range(len(increment))):
        x = increment[t] + decay[t] * x
        result[t] = x
    return result


@pytest.mark.parametrize("length", [1, 2, 3, 8, 31])
def test_reverse_scan_equals_loop_and_keeps_arguments(length):
    decay, increment = torch.rand(length, 3), torch.randn(length, 3)
    copies = decay.clone(), increment.clone()
    result = reverse_scan(decay, increment)
    torch.testing.assert_close(result, slow_scan(*copies), atol=1e-5, rtol=1e-5)
    assert torch.equal(decay, copies[0])
    assert torch.equal(increment, copies[1])


def test_reads_nothing_on_the_host():
    # A meta tensor has no content: whatever looked at it would raise.
    rows = tensors(random_rows(np.random.default_rng(8), 6, 2))
    result = vtrace(**{name: row.to("meta") for name, row in rows.items()}, **CLIPS)
    assert [field.shape for field in result] == [(6, 2)] * 4


def test_compiles_as_one_graph():
    both = [
        tensors(random_rows(np.random.default_rng(seed), 5, 2)) | CLIPS
        for seed in (9, 10)
    ]
    results, sizes = count_graphs(vtrace, *both)
    # Of the second call, with other numbers in tensors of the same shapes, too.
    assert len(sizes) == 1
    assert sizes[0] > 20
    for result, given in zip(results, both, strict=True):
        torch.testing.assert_close(result, vtrace(**given))


@needs_cpp
@pytest.mark.slow
def test_compiled_for_a_cpu_it_is_the_same(caplog):
    fast = compiled(vtrace, name="V-trace")
    rows = tensors(random_rows(np.random.default_rng(9), 7, 3))
    generated_kernels()
    torch.testing.assert_close(fast(**rows, **CLIPS), vtrace(**rows, **CLIPS))
    assert generated_kernels() > 0
    assert "runs without" not in caplog.text


def test_missing_triton_is_said_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "trainer.learn.scan_triton", None)
    scan_for.cache_clear()
    with caplog.at_level(logging.WARNING):
        scans = [scan_for(torch.device("cpu")) for _ in range(3)]
    scan_for.cache_clear()
    assert scans == [vectorised_scan] * 3
    assert len(caplog.records) == 1
    assert "as the Triton one failed" in caplog.text
    assert "scan_triton" in caplog.text


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed; it comes with PyTorch's CUDA builds",
)

INTERPRETED = """
import torch
from trainer.learn.vtrace import scan_for, vectorised_scan
scan = scan_for(torch.device("cpu"))
assert scan.__module__ == "trainer.learn.scan_triton", scan
for shape in (1, 1), (7, 45):
    decay, increment = torch.rand(shape), torch.randn(shape)
    # Transposed: rows that do not follow each other in memory.
    other = decay.T.contiguous().T, increment.T.contiguous().T
    expected = vectorised_scan(decay, increment)
    torch.testing.assert_close(scan(decay, increment), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scan(*other), expected, atol=1e-5, rtol=1e-5)
"""


@needs_triton
def test_triton_kernel_in_its_interpreter():
    # Triton decides at import, so this needs a process of its own.
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", INTERPRETED]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if "InterpreterError: TypeError('only 0-dimensional arrays" in run.stderr:
        pytest.skip("the interpreter of Triton 3.6 does not support NumPy 2.5")
    assert run.returncode == 0, run.stderr


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from trainer.learn.scan_triton import BLOCK, _kernel
kinds = dict.fromkeys(("decay", "increment", "result"), "*fp32")
kinds |= {"steps": "i32", "columns": "i32", "BLOCK": "constexpr"}
source = ASTSource(fn=_kernel, signature=kinds, constexprs={"BLOCK": BLOCK})
for capability in 80, 86, 89, 90, 100, 120:  # from Ampere to Blackwell
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": 1})
    assert f"sm_{capability}" in compiled.asm["ptx"]
    assert compiled.asm["cubin"].startswith(b"\x7fELF")
"""


@needs_triton
def test_triton_kernel_compiles_for_every_gpu(tmp_path):
    """Compiling needs no GPU."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILED]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@needs_triton
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("shape", [(1, 1), (32, 64), (100, 45)])
def test_triton_kernel_on_a_gpu(shape):
    device = torch.device("cuda", torch.cuda.current_device())
    assert scan_for(device).__module__ == "trainer.learn.scan_triton"
    decay, increment = torch.rand(shape), torch.randn(shape)
    result = reverse_scan(decay.to(device), increment.to(device)).cpu()
    expected = slow_scan(decay, increment)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)
