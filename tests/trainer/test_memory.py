"""Memories: unrolling, resets, and slow twins."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.config.network import GRU, LSTM, GTrXL
from trainer.models.memory import attend, build_memory

MEMORIES = ["gru", "lstm", "gtrxl"]
SMALL = {
    "gru": GRU(8),
    "lstm": LSTM(8),
    "gtrxl": GTrXL(8, layers=2, heads=2, steps=4),
}


def small_memory(name, features=6):
    """A memory whose every parameter matters."""
    memory = build_memory(SMALL[name], features)
    with torch.no_grad():
        for p in memory.parameters():
            p.add_(0.5 * torch.randn_like(p))
    return memory


def episodes(rows=12, envs=4):
    """Features, and starts of episodes: none, one at 0, several, one at the end."""
    first = torch.zeros(rows, envs, dtype=torch.bool)
    for row, env in [(0, 1), (3, 2), (5, 2), (6, 2), (rows - 1, 3)]:
        if row < rows:
            first[row, env] = True
    return torch.randn(rows, envs, 6), first


def started(memory, envs=4, rows=9):
    """A state in the middle of episodes of which some are shorter than others."""
    first = torch.zeros(rows, envs, dtype=torch.bool)
    first[-2, 0] = first[-6, 1] = True
    with torch.no_grad():
        return memory(
            torch.randn(rows, envs, 6), torch.zeros(envs, memory.state_size), first
        )[1]


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("rows", [2, 12])
def test_rows_in_one_call_equal_calls_of_one_row(name, rows):
    memory = small_memory(name)
    (features, first), state = episodes(), started(memory)
    features, first = features[:rows], first[:rows]
    together, after = memory(features, state, first)
    assert together.shape == (rows, 4, 8)
    assert after.shape == state.shape == (4, memory.state_size)
    assert after.dtype == torch.float32
    alone = []
    for t in range(rows):
        output, state = memory(features[t : t + 1], state, first[t : t + 1])
        alone.append(output)
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(after, state, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MEMORIES)
def test_nothing_crosses_the_end_of_an_episode(name):
    memory = small_memory(name)
    (features, first), state = episodes(), started(memory)
    other, other_state = features.clone(), started(memory)
    # Environment 2 starts at rows 3, 5 and 6; env 1 at 0; env 3 at the last row.
    other[:6, 2] = torch.randn(6, 6)
    other[:-1, 3] = torch.randn(11, 6)
    a, after_a = memory(features, state, first)
    b, after_b = memory(other, other_state, first)
    for start, env in [(0, 1), (6, 2), (11, 3)]:
        assert torch.equal(a[start:, env], b[start:, env])
        assert torch.equal(after_a[env], after_b[env])
        if start:
            assert not torch.isclose(a[start - 1, env], b[start - 1, env]).any()
    assert not torch.isclose(a[0, 0], b[0, 0]).any()  # no start: the state counts


@pytest.mark.parametrize("name", MEMORIES)
def test_a_reset_is_a_state_of_zeros(name):
    memory = small_memory(name)
    features, first = episodes()
    first[0] = True
    zeros = torch.zeros(4, memory.state_size)
    reset = memory(features, started(memory), first)
    fresh = memory(features, zeros, first & (torch.arange(12) > 0)[:, None])
    torch.testing.assert_close(reset, fresh)


@pytest.mark.parametrize("name", MEMORIES)
def test_gradients_reach_earlier_rows_of_the_episode_only(name):
    memory = small_memory(name)
    features, first = episodes()
    features.requires_grad_()
    output, _ = memory(features, started(memory), first)
    output[4].sum().backward()
    seen = features.grad.abs().sum(-1) > 0
    assert seen[1:5, 0].all()
    assert seen[:, 2].tolist() == [False] * 3 + [True] * 2 + [False] * 7


@pytest.mark.parametrize(("name", "cell"), [("gru", nn.GRUCell), ("lstm", nn.LSTMCell)])
def test_cells_are_pytorchs(name, cell):
    memory = small_memory(name)
    twin = cell(6, 8)
    with torch.no_grad():
        twin.weight_ih.copy_(memory.inputs.weight)
        twin.weight_hh.copy_(memory.recurrent.weight)
        twin.bias_ih.copy_(memory.inputs.bias)
        twin.bias_hh.zero_()
        if name == "gru":
            twin.bias_hh[16:] = memory.candidate_bias
    features, first = episodes()
    state = started(memory)
    output, after = memory(features, state, torch.zeros_like(first))
    hidden = state if name == "gru" else state.chunk(2, 1)
    for t, row in enumerate(features):
        hidden = twin(row, hidden)
        expected = hidden if name == "gru" else hidden[0]
        torch.testing.assert_close(output[t], expected, atol=1e-5, rtol=1e-4)
    whole = hidden if name == "gru" else torch.cat(hidden, 1)
    torch.testing.assert_close(after, whole, atol=1e-5, rtol=1e-4)


def slow_block(block, x, rows):
    """One row (D,) of a layer, written out; `rows` are the newest last."""
    size, heads = len(x), block.heads
    normed = block.attention_norm(torch.stack(rows))
    q = block.query(normed[-1]).view(heads, -1)
    k, v = block.key_value(normed).view(len(rows), 2, heads, -1).unbind(1)
    found = []
    for head in range(heads):
        scores = k[:, head] @ q[head] / math.sqrt(size // heads)
        scores = scores + block.age_bias[head, : len(rows)].flip(0)
        found.append(scores.softmax(0) @ v[:, head])
    x = slow_gate(block.attention_gate, x, block.output(torch.cat(found)).relu())
    branch = block.reduce(block.expand(block.forward_norm(x)).relu())
    return slow_gate(block.forward_gate, x, branch.relu())


def slow_gate(gate, x, y):
    size = len(x)
    w_r, w_z, w_g = gate.of_branch.weight.split(size)
    u_r, u_z = gate.of_stream.weight.split(size)
    r = torch.sigmoid(w_r @ y + u_r @ x)
    z = torch.sigmoid(w_z @ y + u_z @ x - gate.shut)
    h = torch.tanh(w_g @ y + gate.of_reset.weight @ (r * x))
    return (1 - z) * x + z * h


def test_transformer_equals_its_slow_twin():
    memory = small_memory("gtrxl")
    features, first = episodes()
    output, _ = memory(features, torch.zeros(4, memory.state_size), first)
    for env in range(4):
        seen = [[], []]  # each layer's inputs in this episode
        for t in range(len(features)):
            if first[t, env]:
                seen = [[], []]
            x = memory.embed(features[t, env])
            for block, rows in zip(memory.blocks, seen, strict=True):
                rows.append(x)
                x = slow_block(block, x, rows[-5:])
            torch.testing.assert_close(output[t, env], x, atol=1e-4, rtol=1e-4)


def attention_by_hand(query, key, value, bias, seen):
    """One query and head at a time; zeros where nothing is seen."""
    found = torch.zeros_like(query)
    for b, h, t in itertools.product(*map(range, query.shape[:3])):
        keys = seen[b, 0, t].nonzero().flatten()
        if len(keys):
            scores = key[b, h, keys] @ query[b, h, t] / math.sqrt(query.shape[-1])
            weights = (scores + bias[h, t, keys]).softmax(0)
            found[b, h, t] = weights @ value[b, h, keys]
    return found


@pytest.mark.parametrize("fused", [False, True])
def test_attention_is_that_by_hand(fused):
    """With its gradients, and without NaN where a row sees nothing."""
    query = torch.randn(3, 2, 5, 6, requires_grad=True)
    key, value = torch.randn(2, 3, 2, 9, 6, requires_grad=True).unbind(0)
    bias = torch.randn(2, 5, 9, requires_grad=True)
    seen = torch.rand(3, 1, 5, 9) < 0.6
    seen[1, 0, 2] = False
    given = (query, key, value, bias)
    kernel = SDPBackend.FLASH_ATTENTION if fused else SDPBackend.MATH
    with sdpa_kernel(kernel):
        found = attend(*given, seen)
        gradients = torch.autograd.grad(found.square().sum(), given)
    slow = attention_by_hand(*given, seen)
    torch.testing.assert_close(found, slow)
    slow_gradients = torch.autograd.grad(slow.square().sum(), given)
    torch.testing.assert_close(gradients, slow_gradients, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 12])
def test_the_mask_is_boolean_so_that_the_fused_kernel_can_learn(rows, monkeypatch):
    """A mask with a gradient, such as a learned bias, is refused by it."""
    masks, attention = [], nn.functional.scaled_dot_product_attention

    def recorded(*given, attn_mask, **options):
        masks.append(attn_mask)
        return attention(*given, attn_mask=attn_mask, **options)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", recorded)
    memory = small_memory("gtrxl")
    (features, first), state = episodes(rows), started(memory)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        memory(features, state, first)[0].square().sum().backward()
    assert {mask.dtype for mask in masks} == {torch.bool}
    for block in memory.blocks:
        assert block.age_bias.grad.abs().sum() > 0  # the bias is learned all the same


def test_transformer_looks_back_as_far_as_it_should():
    memory = build_memory(GTrXL(8, layers=1, heads=2, steps=4), 6)
    features = torch.randn(12, 1, 6, requires_grad=True)
    state, first = torch.zeros(1, memory.state_size), torch.zeros(12, 1).bool()
    memory(features, state, first)[0][9].square().sum().backward()
    assert (features.grad.abs().sum((1, 2)) > 0).nonzero().flatten().tolist() == [
        5, 6, 7, 8, 9,
    ]  # fmt: skip


def test_a_fresh_transformer_hardly_changes_its_input():
    # Gates with a bias of 2 are nearly shut: Parisotto et al. 2020, section 3.2.
    memory = build_memory(GTrXL(layers=1), 64)
    features = torch.randn(3, 2, 64)
    state, first = torch.zeros(2, memory.state_size), torch.zeros(3, 2).bool()
    with torch.no_grad():
        output, _ = memory(features, state, first)
        change = (output - memory.embed(features)).norm() / output.norm()
        for block in memory.blocks:
            for gate in (block.attention_gate, block.forward_gate):
                gate.shut.fill_(-2.0)
        opened, _ = memory(features, state, first)
    assert change < 0.6
    assert (opened - memory.embed(features)).norm() / opened.norm() > 2 * change


@pytest.mark.parametrize("name", MEMORIES)
def test_state_stays_float32_under_autocast(name):
    memory = small_memory(name)
    features, first = episodes()
    exact = memory(features, started(memory), first & False)[1]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = memory(features, started(memory), first & False)[1]
    assert rounded.dtype == exact.dtype == torch.float32
    # Not merely bfloat16 in a wider box.
    assert not torch.equal(rounded, rounded.bfloat16().float())
