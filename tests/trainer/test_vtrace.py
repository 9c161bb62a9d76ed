"""V-trace against a slow twin shaped like the paper, and by hand."""

import math

import numpy as np
import pytest
import torch

from trainer.vtrace import reverse_scan, vtrace

CLIPS = {"gamma": 0.9, "lam": 0.95, "rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0}


def slow_vtrace(log_ratios, values, rewards, done, truncated, gamma, lam, rho_bar,
                c_bar, pg_rho_bar):  # fmt: skip
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
    return vs, advantages, np.where(done[:T], 0, np.minimum(pg_rho_bar, ratio))


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
        {"gamma": 0.99, "lam": 1.0, "rho_bar": 1.5, "c_bar": 0.8, "pg_rho_bar": 2.0},
        {"gamma": 1.0, "lam": 0.5, "rho_bar": 0.7, "c_bar": 3.0, "pg_rho_bar": 0.9},
    ],
)
def test_equals_slow_twin(shape, clips):
    rows = random_rows(np.random.default_rng(sum(shape)), *shape)
    vs, advantages, pg_rhos = slow_vtrace(**rows, **clips)
    result = vtrace(**tensors(rows), **clips)
    np.testing.assert_allclose(result.targets, vs, atol=1e-5)
    np.testing.assert_allclose(result.errors, advantages, atol=1e-5)
    np.testing.assert_allclose(result.pg_rhos, pg_rhos, atol=1e-5)
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
    assert result.errors.flatten().tolist() == [0.875, -0.25, -1.0, 0.0, 2.0]
    assert result.pg_rhos.flatten().tolist() == [1.0, 1.0, 0.5, 0.0, 1.0]
    assert result.weights.flatten().tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]


def test_five_steps_by_hand_truncated():
    # As above, but V(final x) = 8 is bootstrapped:
    # delta_2 = 1/2 (3 + 8/2 - 4) = 1.5       v_2 = 5.5
    #                                         v_1 = 2 + 1/2 (5.5 - 4) = 2.75
    #                                         v_0 = 2 + 1/2 (2.75 - 2) = 2.375
    result = by_hand(truncated=True)
    assert result.targets.flatten().tolist() == [2.375, 2.75, 5.5, 8.0, 4.0]
    # 1 + 2.75/2 - 1; 5.5/2 - 2; 3 + 8/2 - 4
    assert result.errors.flatten().tolist() == [1.375, 0.75, 3.0, 0.0, 2.0]


def test_is_gae_on_policy_without_clips():
    rows = random_rows(np.random.default_rng(3), 24, 5)
    rows["log_ratios"][:] = 0
    gamma, lam = 0.97, 0.9
    done, values = rows["done"], rows["values"]
    terminated = done & ~rows["truncated"]
    gae, carry = np.zeros((24, 5)), np.zeros(5)
    for t in reversed(range(24)):
        delta = (
            rows["rewards"][t + 1] + gamma * ~terminated[t + 1] * values[t + 1]
        ) - values[t]
        carry = np.where(done[t], 0, delta + gamma * lam * ~done[t + 1] * carry)
        gae[t] = carry
    inf = math.inf
    result = vtrace(
        **tensors(rows), gamma=gamma, lam=lam, rho_bar=inf, c_bar=inf, pg_rho_bar=inf
    )
    np.testing.assert_allclose(result.errors, gae, atol=1e-5)
    np.testing.assert_allclose(result.targets, values[:-1] + gae, atol=1e-5)


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
    for name in ("targets", "errors", "pg_rhos"):
        old, new = getattr(before, name), getattr(after, name)
        assert torch.equal(old[:6], new[:6]), name
        assert not torch.equal(old[7:], new[7:]), name
    assert after.errors[6].abs().max() == 0


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


def test_wrong_shape_is_named():
    rows = tensors(random_rows(np.random.default_rng(7), 3, 2))
    rows["values"] = rows["values"][:-1]
    with pytest.raises(ValueError, match=r"values has shape \(3, 2\).*\(4, 2\)"):
        vtrace(**rows, **CLIPS)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 31])
def test_reverse_scan_equals_loop_and_keeps_arguments(length):
    decay, increment = torch.rand(length, 3), torch.randn(length, 3)
    copies = decay.clone(), increment.clone()
    result = reverse_scan(decay, increment)
    x = torch.zeros(3)
    for t in reversed(range(length)):
        x = increment[t] + decay[t] * x
        torch.testing.assert_close(result[t], x, atol=1e-5, rtol=1e-5)
    assert torch.equal(decay, copies[0])
    assert torch.equal(increment, copies[1])
