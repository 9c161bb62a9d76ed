"""Options of the network: encoder, memory and the two heads."""

from __future__ import annotations

import dataclasses

from trainer.config.options import Choice, option


@dataclasses.dataclass(frozen=True)
class GRU(Choice):
    """A gated recurrent unit (Cho et al. 2014)."""

    size: int = option(256, name="memory_size", least=1)
    """Size of the memory's output."""


@dataclasses.dataclass(frozen=True)
class LSTM(Choice):
    """A long short-term memory (Hochreiter & Schmidhuber 1997)."""

    size: int = option(256, name="memory_size", least=1)
    """Size of the memory's output."""


@dataclasses.dataclass(frozen=True)
class GTrXL(Choice):
    """A gated transformer (Parisotto et al. 2020)."""

    size: int = option(256, name="memory_size", least=1)
    """Size of the memory's output."""

    layers: int = option(1, name="memory_layers", least=1)
    """Layers of the transformer."""

    heads: int = option(4, name="memory_heads", flag=False, least=1)
    """Attention heads; their number must divide the size."""

    steps: int = option(32, name="memory_steps", least=1)
    """Earlier steps that the transformer attends to."""

    def check(self) -> None:
        """Raises ValueError if the number of heads does not divide the size."""
        if self.size % self.heads:
            raise ValueError(
                f"memory_heads={self.heads} must divide memory_size={self.size}"
            )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The network: an encoder, a memory and two heads.

    0 or () stands for the default of the encoder, which is the value in its paper.
    """

    name: str = option("cnn-72k", name="model", holds="code")
    """Network: cnn-72k, cnn-157k, cnn-345k, nature, impala, convnext, tiles (for --obs
    tiles only), or your own class as module:Class (docs/algorithms.md). cnn-72k is the
    smallest and, on a CPU, the fastest, and learns 1-1 in about as many steps as the
    other networks."""

    widths: tuple[int, ...] = ()
    """Channels of the convolutions: one number per convolution, or per stage of impala
    and convnext, which may have any number of stages."""

    blocks: int = 0
    """Residual blocks per stage (impala and convnext)."""

    features: int = 0
    """Size of the linear layer after the convolutions."""

    layer_norm: bool = option(False, flag=False)
    """Layer normalisation of the features (Ba et al. 2016). No gain on 1-1."""

    memory: GRU | LSTM | GTrXL | None = None
    """Memory between the encoder and the heads: a gated recurrent unit, a long
    short-term memory, or a gated transformer (Parisotto et al. 2020). It helps where
    an observation does not show enough. On 1-1 no memory gained (docs/results.md);
    with gtrxl the default of --muon-lr is 0.015."""

    value_heads: int = option(1, least=0)
    """Outputs of the critic: 1, or 0 for one output per level of --levels, which keeps
    the returns of the levels apart."""

    popart: bool = False
    """Normalise each output of the critic by the mean and deviation of its targets,
    and divide the advantages by this deviation (PopArt, van Hasselt et al. 2016, Hessel
    et al. 2019). Levels with small returns then count as much as the other levels. No
    gain with 1-1 as the only level."""

    popart_step: float = option(3e-4, flag=False, above=0, between=(0, 1))
    """Weight of a row in the means of PopArt (Hessel et al. 2019, table 2)."""

    noisy: bool = False
    """Noisy linear layers as heads; the noise makes the policy explore (NoisyNet,
    Fortunato et al. 2018). No gain on 1-1: a clear rate of 79 % after 300 k steps, and
    89 % without."""
