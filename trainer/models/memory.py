"""Memory between encoder and heads: a policy's information about earlier rows.

Every memory maps features (T, B, F), its state (B, S) and `first` (T, B) to
outputs (T, B, H) and the state after the last row. The state is one flat float32
vector per environment for every kind of memory, so stores and queues treat all kinds
alike. The state is zeros at the start, and becomes zeros before the first row of each
episode. T rows in one call equal T calls of one row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import network
from trainer.config.options import check_ranges


class Memory(nn.Module):
    """Base of all memories."""

    def __init__(self, size: int, state_size: int) -> None:
        super().__init__()
        self.size = size  # H, of the outputs
        self.state_size = state_size  # S, floats per environment


class _Recurrent(Memory):
    """A recurrent cell, stepped over the rows.

    Only the recurrence runs row by row: the contribution of the inputs is one product
    for all rows. The steps are in float32, because their rounding errors accumulate
    from row to row, and because products this small are not faster in bfloat16.
    """

    def __init__(self, features: int, size: int, gates: int, state_size: int) -> None:
        super().__init__(size, state_size)
        self.inputs = nn.Linear(features, gates * size)
        self.recurrent = nn.Linear(size, gates * size, bias=False)
        for layer in (self.inputs, self.recurrent):
            for gate in layer.weight.chunk(gates):
                nn.init.orthogonal_(gate)
        nn.init.zeros_(self.inputs.bias)

    def step(self, row: Tensor, state: Tensor) -> Tensor:
        """The next state (B, S), for the inputs' part of the gates (B, gates * H)."""
        raise NotImplementedError

    def forward(
        self, features: Tensor, state: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(T, B, F), (B, S), (T, B) to (T, B, H), (B, S); float32."""
        rows = self.inputs(features)
        outputs = []
        with torch.autocast(features.device.type, enabled=False):
            starts = first.unsqueeze(-1).unbind(0)
            for row, start in zip(rows.float().unbind(0), starts, strict=True):
                state = self.step(row, state.masked_fill(start, 0.0))
                outputs.append(state[:, : self.size])  # the state begins with them
            return torch.stack(outputs), state


class GRU(_Recurrent):
    """Gated recurrent unit (Cho et al. 2014), the variant of PyTorch and cuDNN."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__(features, size, gates=3, state_size=size)
        self.candidate_bias = nn.Parameter(torch.zeros(size))

    def step(self, row: Tensor, state: Tensor) -> Tensor:
        """The next hidden state (B, H)."""
        reset, update, new = row.chunk(3, 1)
        old_reset, old_update, old_new = self.recurrent(state).chunk(3, 1)
        reset = torch.sigmoid(reset + old_reset)
        update = torch.sigmoid(update + old_update)
        candidate = torch.tanh(new + reset * (old_new + self.candidate_bias))
        return torch.lerp(candidate, state, update)


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter & Schmidhuber 1997) with a forget gate."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__(features, size, gates=4, state_size=2 * size)
        # Bias of the forget gate: remember at first (Jozefowicz et al. 2015, 2.2).
        nn.init.ones_(self.inputs.bias[size : 2 * size])

    def step(self, row: Tensor, state: Tensor) -> Tensor:
        """The next hidden and cell state, side by side (B, 2 H)."""
        hidden, cell = state.chunk(2, 1)
        gates = row + self.recurrent(hidden)
        enter, keep, new, show = gates.chunk(4, 1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(new)
        return torch.cat([torch.sigmoid(show) * torch.tanh(cell), cell], 1)


class _Gate(nn.Module):
    """Adds a branch to the stream, in the manner of a GRU.

    Parisotto et al. 2020, section 3.2, "Gated-Recurrent-Unit-type gating". The
    bias of 2 nearly closes the gate at the start, so the network first learns a policy
    without memory.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.of_branch = nn.Linear(size, 3 * size, bias=False)
        self.of_stream = nn.Linear(size, 2 * size, bias=False)
        self.of_reset = nn.Linear(size, size, bias=False)
        self.shut = nn.Parameter(torch.full((size,), 2.0))

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        """Combines two (..., D) into one; float32 if the stream is."""
        reset, update, new = self.of_branch(branch).chunk(3, -1)
        old_reset, old_update = self.of_stream(stream).chunk(2, -1)
        reset = torch.sigmoid(reset + old_reset)
        update = torch.sigmoid(update + old_update - self.shut)
        candidate = torch.tanh(new + self.of_reset(reset * stream))
        return (1 - update) * stream + update * candidate


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, seen: Tensor
) -> Tensor:
    """Attention with a learned bias on its scores, and a boolean mask.

    Query (B, heads, T, D), key and value (B, heads, N, D), bias (heads, T, N) and seen
    (B, 1, T, N) give (B, heads, T, D); zeros for a row that attends to nothing. Fused
    ("flash") kernels do not support a mask with a gradient. So the bias is part of the
    inner product: query t has a 1 in column t, and key n has bias[t, n] there.
    """
    batch, heads, rows, size = query.shape
    spare = -(size + rows) % 8  # kernels of GPUs need multiples of 8
    column = torch.eye(rows, rows + spare, dtype=query.dtype, device=query.device)
    biases = F.pad(bias.mT, (0, spare)).to(key.dtype)
    query = torch.cat([query * size**-0.5, column.expand(batch, heads, -1, -1)], -1)
    key = torch.cat([key, biases.expand(batch, -1, -1, -1)], -1)
    value = F.pad(value, (0, rows + spare))
    sums = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=1.0)
    return sums[..., :size]


class _GatedBlock(nn.Module):
    """Attention and a feed-forward layer, each normed before and gated after."""

    def __init__(self, size: int, heads: int, steps: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(size)
        self.query = nn.Linear(size, size)
        self.key_value = nn.Linear(size, 2 * size)
        self.output = nn.Linear(size, size)
        self.attention_gate = _Gate(size)
        self.forward_norm = nn.LayerNorm(size)
        self.expand = nn.Linear(size, 4 * size)
        self.reduce = nn.Linear(4 * size, size)
        self.forward_gate = _Gate(size)
        # Each head's bias for rows that are 0, 1, .. steps rows old: learned relative
        # positions in the form of Raffel et al. 2020, section 2.1.
        self.age_bias = nn.Parameter(torch.zeros(heads, steps + 1))

    def forward(self, x: Tensor, older: Tensor, age: Tensor, hidden: Tensor) -> Tensor:
        """Lets T rows (T, B, D) attend to M older rows (M, B, D) and to each other.

        `age` (T, M + T) is each row's age relative to row t, in rows, within 0..M;
        `hidden` (B, 1, T, M + T) is true for rows that row t must not attend to.
        """
        rows = self.attention_norm(torch.cat([older, x]))
        query = self._split(self.query(rows[len(older) :]))
        key, value = map(self._split, self.key_value(rows).chunk(2, -1))
        seen = attend(query, key, value, self.age_bias[:, age], ~hidden)
        seen = self.output(seen.permute(2, 0, 1, 3).flatten(2))
        # ReLU, because otherwise two linear layers would follow each other (3.1).
        x = self.attention_gate(x, F.relu(seen))
        y = self.reduce(F.relu(self.expand(self.forward_norm(x))))
        result: Tensor = self.forward_gate(x, F.relu(y))
        return result

    def _split(self, rows: Tensor) -> Tensor:
        """(N, B, D) to (B, heads, N, D / heads)."""
        return rows.reshape(*rows.shape[:2], self.heads, -1).permute(1, 2, 0, 3)


class GTrXL(Memory):
    """Gated Transformer-XL (Parisotto et al. 2020, section 3).

    Each layer attends to its own row and to the `steps` rows before it in the same
    episode. The state holds the inputs of all layers at the last `steps` rows, then
    one number for each of these rows: 1, or 0 if the row does not exist. The stream
    between the layers is float32, so the stored inputs are not rounded again.
    """

    def __init__(
        self, features: int, size: int, layers: int, heads: int, steps: int
    ) -> None:
        super().__init__(size, steps * (layers * size + 1))
        self.steps = steps
        self.embed = nn.Linear(features, size)
        self.blocks = nn.ModuleList(
            _GatedBlock(size, heads, steps) for _ in range(layers)
        )
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self, features: Tensor, state: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(T, B, F), (B, S), (T, B) to (T, B, H), (B, S); float32."""
        steps = self.steps
        kept, exists = state[:, :-steps], state[:, -steps:]
        older = kept.reshape(len(state), -1, steps, self.size).permute(1, 2, 0, 3)
        age, episode = self._timeline(exists, first)
        unlike = episode[steps:].T.unsqueeze(2) != episode.T.unsqueeze(1)
        hidden = (unlike | (age < 0) | (age > steps)).unsqueeze(1)
        age = age.clamp(0, steps)

        stream, inputs = self.embed(features).float(), []
        for block, before in zip(self.blocks, older, strict=True):
            inputs.append(torch.cat([before, stream])[-steps:])
            stream = block(stream, before, age, hidden)

        lost = (episode[-steps:] != episode[-1]).T
        kept = torch.stack(inputs).permute(2, 0, 1, 3)
        kept = kept.masked_fill(lost[:, None, :, None], 0.0).flatten(1)
        return stream, torch.cat([kept, (~lost).float()], 1)

    def _timeline(self, exists: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Ages (T, M + T) and episodes (M + T, B) of M older and T new rows.

        An age is in rows relative to row t, negative for later rows. The episode that
        continues from the state has the number 0, rows that do not exist have -1;
        `exists` (B, M) is 1 for older rows that exist.
        """
        started = first.long().cumsum(0)
        episode = torch.cat([exists.T.long() - 1, started])
        time = torch.arange(len(episode), device=first.device)
        return time[self.steps :, None] - time, episode


def build_memory(
    config: network.GRU | network.LSTM | network.GTrXL | None, features: int
) -> Memory | None:
    """The memory of a network, for inputs of size `features`; None without memory."""
    if config is None:
        return None
    check_ranges(config)
    if isinstance(config, network.GRU):
        return GRU(features, config.size)
    if isinstance(config, network.LSTM):
        return LSTM(features, config.size)
    config.check()
    return GTrXL(features, config.size, config.layers, config.heads, config.steps)
