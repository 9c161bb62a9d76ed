"""A task for memories: a cue at the start of an episode is asked for at its end."""

import functools

import pytest
import torch
from learners import change, close_shards, evaluate, make_learner
from torch import nn

from trainer.models import ActorCritic
from trainer.rollout.store import Batch

CUES, BLANK, QUESTION = 4, 4, 5  # what pictures show
SHAPE = (1, 2, 4)
ENVS, UNROLL, DELAYS = 64, 12, torch.tensor([3, 4, 5])  # rows from cue to question
UPDATES = 130
MEMORIES = ["gru", "lstm", "gtrxl"]


class Pixels(nn.Module):
    """Sees which of the eight pixels is bright."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 32)

    def forward(self, obs):
        return self.layer(obs.flatten(1).float() / 255).relu()


def pixels(shown):
    """(..., 1, 2, 4) uint8 pictures of what is shown (...)."""
    bright = 255 * nn.functional.one_hot(shown, 8)
    return bright.to(torch.uint8).view(*shown.shape, *SHAPE)


class Network(ActorCritic):
    """Our memories and heads on the least encoder there can be."""

    def make_encoder(self, config, shape):
        return Pixels(), 32


class Recall:
    """Environments with next-step autoreset, like those of a pool.

    An episode shows its cue, nothing for some steps, and then a question. The answer
    ends the episode; it is rewarded if it is the cue.
    """

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
        self.cue = torch.zeros(ENVS, dtype=torch.int64)
        self.left = torch.zeros(ENVS, dtype=torch.int64)  # rows until the question
        self.reward = torch.zeros(ENVS)
        self.done = torch.zeros(ENVS, dtype=torch.bool)
        self.begin(~self.done)

    def begin(self, which):
        """New episodes where it is so; the row is their first one."""
        drawn = [
            torch.randint(high, (ENVS,), generator=self.generator)
            for high in (CUES, len(DELAYS))
        ]
        self.cue = torch.where(which, drawn[0], self.cue)
        self.left = torch.where(which, DELAYS[drawn[1]], self.left)
        self.first = which

    def pictures(self):
        """(N, 1, 2, 4) uint8."""
        shown = torch.where(self.first, self.cue, BLANK)
        return pixels(torch.where(self.left == 0, QUESTION, shown))

    def step(self, actions):
        """Moves to the next rows; an ended episode takes any action for a reset."""
        over, answered = self.done, self.left == 0
        self.reward = (answered & ~over & (actions == self.cue)).float()
        self.done = answered & ~over
        self.left = self.left - 1
        self.begin(over)


class Player:
    """Collects unrolls with a network, one row after the other."""

    def __init__(self, model):
        self.model, self.envs = model, Recall()
        self.state = torch.zeros(ENVS, model.state_size)
        self.answers = []  # rates of right ones

    @torch.no_grad()
    def unroll(self):
        """A batch of all environments; its last row is the next one's first."""
        rows, started = [], self.state
        asked = right = 0
        for t in range(UNROLL + 1):
            envs, pictures = self.envs, self.envs.pictures()
            (logits, values), state = self.model(
                pictures[None], self.state, envs.first[None]
            )
            actions = torch.multinomial(
                logits[0].softmax(-1), 1, generator=envs.generator
            )[:, 0]
            rows.append(
                (pictures, actions, logits[0], values[0], envs.reward, envs.done,
                 envs.first)
            )  # fmt: skip
            if t == UNROLL:
                break  # the next unroll acts on this row
            self.state = state
            asked += int(((envs.left == 0) & ~envs.done).sum())
            envs.step(actions)
            right += int(envs.reward.sum())
        self.answers.append(right / asked)
        return batch_of(rows, started)


def batch_of(rows, state):
    pictures, *fields = (torch.stack(field) for field in zip(*rows, strict=True))
    actions, logits, values, rewards, done, first = fields
    zeros = torch.zeros(actions.shape, dtype=torch.int64)
    return Batch(
        frames=pictures.view(-1, 8).view(torch.int64),
        stacks=torch.arange(actions.numel()).view(*actions.shape, 1),
        actions=actions, logits=logits, values=values, rewards=rewards, done=done,
        truncated=torch.zeros_like(done), is_first=first, versions=zeros, levels=zeros,
        state=state, weights=torch.ones(len(state)),
        fresh=torch.ones(len(state), dtype=torch.bool),
    )  # fmt: skip


@functools.cache
def train(memory):
    """A network that was trained, and its rate of right answers in each unroll."""
    config = change(
        memory=memory, memory_size=32, memory_steps=8, unroll=UNROLL,
        unrolls_per_batch=ENVS, minibatch_size=UNROLL * ENVS // 4, epochs=2, gamma=0.9,
        lr=3e-3, lr_end=3e-4, lr_steps=UPDATES, entropy=0.02, entropy_end=0.0,
        entropy_steps=UPDATES, adam_eps=1e-5,
    )  # fmt: skip
    model = Network(config.model, SHAPE, CUES)
    learner = make_learner(config, model=model, obs_shape=SHAPE)
    player = Player(model)
    for step in range(UPDATES):
        learner.update(player.unroll(), step)
    close_shards(learner)
    return model, torch.tensor(player.answers)


@pytest.mark.slow
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_memory_recalls(memory):
    """Episodes end at any row of an unroll, and many cues are of an earlier unroll."""
    _, answers = train(memory)
    assert answers[:3].mean() < 0.5
    assert answers[-20:].mean() > 0.95


@pytest.mark.slow
def test_without_a_memory_every_answer_is_a_guess():
    _, answers = train("none")
    assert answers[-40:].mean() < 1 / CUES + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("memory", MEMORIES)
def test_no_cue_of_an_earlier_episode_is_recalled(memory):
    """One episode with a cue in each column, and behind it one without any."""
    model, _ = train(memory)
    blanks = torch.full((CUES,), BLANK)
    question = torch.full((CUES,), QUESTION)
    episode = [blanks, blanks, blanks, question, blanks]  # the last row is its end
    shown = torch.stack([torch.arange(CUES), *episode, *episode])
    first = torch.zeros(shown.shape, dtype=torch.bool)
    first[0] = True
    state = torch.randn(CUES, model.state_size)  # of yet another episode

    def logits_of(first):
        nothing = torch.zeros(shown.shape)
        fields = [nothing.long(), nothing[..., None], nothing, nothing, nothing.bool()]
        batch = batch_of(list(zip(pixels(shown), *fields, first, strict=True)), state)
        return evaluate(model, batch, obs_shape=SHAPE)[0]

    on_and_on = logits_of(first)
    first[6] = True
    reset = logits_of(first)
    assert torch.equal(reset[4].argmax(-1), torch.arange(CUES))  # the first question
    assert torch.equal(on_and_on[:6], reset[:6])
    # Behind the reset no column knows what the others saw; without it all do.
    assert torch.equal(reset[6:], reset[6:, :1].expand(-1, CUES, -1))
    apart = (on_and_on[6:, :, None] - on_and_on[6:, None]).abs().amax((0, 3))
    assert (apart + torch.eye(CUES)).min() > 1e-5
