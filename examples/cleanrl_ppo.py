"""PPO in one file in the style of CleanRL, on EnvPool with its 5-tuple API.

python examples/cleanrl_ppo.py                # 500,000 steps; --help: every setting

EnvPool resets an environment in the step after the last step of an episode, and ignores
that step's action. Such steps have weight 0 here.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import envpool
import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional
from torch.utils.tensorboard import SummaryWriter

import mario_envpool  # noqa: F401  registers the ids with EnvPool

# One action every 6 frames, small pictures without the status bar, and a reward for
# new best positions with a penalty for deaths.
TASK = {
    "noop_max": 30,
    "frame_skip": 6,
    "img_height": 42,
    "img_width": 42,
    "hud": "crop",
    "reward": "progress",
    "reward_step": -0.5,
    "reward_death": -50.0,
    "reward_scale": 0.02,
}


@dataclass
class Args:
    """Settings of a run."""

    env_id: str = "SuperMarioBros-1-1-v0"
    """task id"""
    steps: int = 500_000
    """total environment steps"""
    num_envs: int = 32
    """number of environments"""
    num_steps: int = 64
    """steps of each environment between two updates"""
    num_minibatches: int = 4
    """minibatches per epoch"""
    update_epochs: int = 3
    """epochs per update"""
    learning_rate: float = 1e-3
    """initial learning rate of Adam, falls linearly to 0"""
    gamma: float = 0.93
    """discount"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    clip_coef: float = 0.2
    """clip range of the probability ratio"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """maximum norm of the gradient"""
    seed: int = 1
    """random seed"""
    cuda: bool = True
    """use a GPU if there is one"""


class Agent(nn.Module):
    """Policy and value on shared convolutions, a thirteenth of the Nature network."""

    def __init__(self, channels: int, num_actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            self.scaled(nn.Conv2d(channels, 16, 6, stride=3)),
            nn.ReLU(),
            self.scaled(nn.Conv2d(16, 32, 3, stride=2)),
            nn.ReLU(),
            nn.Flatten(),
            self.scaled(nn.Linear(32 * 6 * 6, 256)),
            nn.ReLU(),
        )
        self.actor = self.scaled(nn.Linear(256, num_actions), 0.01)
        self.critic = self.scaled(nn.Linear(256, 1), 1.0)

    @staticmethod
    def scaled(layer: Any, gain: float = 2**0.5) -> Any:
        """Initialises a layer with orthogonal weights."""
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
        return layer

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        """Returns the policy and the values, (n,), of observations (n, 4, 42, 42)."""
        hidden = self.body(obs.float() / 255 - 0.5)
        policy = Categorical(logits=self.actor(hidden), validate_args=False)
        return policy, self.critic(hidden).squeeze(-1)


class Rollout:
    """The steps between two updates, (num_steps, num_envs) each."""

    def __init__(self, args: Args, obs_shape: tuple[int, ...], device: Any) -> None:
        shape = (args.num_steps, args.num_envs)
        self.obs = torch.zeros((*shape, *obs_shape), dtype=torch.uint8, device=device)
        self.actions = torch.zeros(shape, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(shape, device=device)
        self.values = torch.zeros(shape, device=device)
        self.rewards = torch.zeros(shape, device=device)
        self.terminated = torch.zeros(shape, device=device)
        self.is_reset = torch.zeros(shape, dtype=torch.bool, device=device)

    def advantages(self, last_value: Tensor, args: Args) -> Tensor:
        """Generalised advantage estimation (Schulman et al. 2016) for each episode.

        The step after the last step of an episode is a reset. Its observation is the
        last of the old episode; a truncated episode bootstraps from the value of it.
        """
        advantages = torch.zeros_like(self.rewards)
        next_value, running = last_value, torch.zeros_like(last_value)
        for t in reversed(range(args.num_steps)):
            target = self.rewards[t] + args.gamma * next_value * (
                1 - self.terminated[t]
            )
            running = target - self.values[t] + args.gamma * args.gae_lambda * running
            running = running * ~self.is_reset[t]
            advantages[t] = running
            next_value = self.values[t]
        return advantages


class Collector:
    """Plays, and keeps the returns of finished episodes."""

    def __init__(self, args: Args, device: Any) -> None:
        self.args, self.device = args, device
        self.envs = envpool.make(
            args.env_id, "gymnasium", num_envs=args.num_envs, seed=args.seed, **TASK
        )
        self.obs = self.envs.reset()[0]
        self.done = np.zeros(args.num_envs, np.bool_)
        self.running = np.zeros(args.num_envs)
        self.ends: list[tuple[float, ...]] = []  # return, length, cleared

    @torch.no_grad()
    def collect(self, agent: Agent, rollout: Rollout) -> Tensor:
        """Fills a rollout; returns the values of the observations after it."""
        for t in range(self.args.num_steps):
            obs = torch.as_tensor(self.obs, device=self.device)
            policy, value = agent(obs)
            action = policy.sample()
            rollout.obs[t], rollout.actions[t] = obs, action
            rollout.values[t], rollout.logprobs[t] = value, policy.log_prob(action)
            rollout.is_reset[t] = torch.as_tensor(self.done)
            self.obs, reward, terminated, truncated, info = self.envs.step(
                action.cpu().numpy()
            )
            rollout.rewards[t] = torch.as_tensor(reward)
            rollout.terminated[t] = torch.as_tensor(terminated)
            self.done = terminated | truncated
            self.running += reward
            columns = (self.running, info["elapsed_step"], info["flag_get"])
            self.ends += zip(*(column[self.done] for column in columns), strict=True)
            self.running[self.done] = 0
        value: Tensor = agent(torch.as_tensor(self.obs, device=self.device))[1]
        return value


def update(
    agent: Agent, optimizer: Any, rollout: Rollout, last_value: Tensor, args: Args
) -> dict[str, Tensor]:
    """A few epochs of PPO (Schulman et al. 2017); returns the losses for the log."""
    advantages = rollout.advantages(last_value, args)
    played = (~rollout.is_reset).flatten()
    obs = rollout.obs.flatten(0, 1)[played]
    returns = (advantages + rollout.values).flatten()[played]
    actions, logprobs = (
        tensor.flatten()[played] for tensor in (rollout.actions, rollout.logprobs)
    )
    advantages = advantages.flatten()[played]
    for _ in range(args.update_epochs):
        for rows in torch.randperm(len(obs)).chunk(args.num_minibatches):
            policy, value = agent(obs[rows])
            ratio = (policy.log_prob(actions[rows]) - logprobs[rows]).exp()
            gain = advantages[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            policy_loss = -torch.min(gain * ratio, gain * clipped).mean()
            value_loss = functional.mse_loss(value, returns[rows]) / 2
            entropy = policy.entropy().mean()
            loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
    return {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}


def main(args: Args) -> None:
    """Trains, and writes curves to runs/."""
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    writer = SummaryWriter(f"runs/{args.env_id}__cleanrl_ppo__{int(time.time())}")
    writer.add_text("settings", str(asdict(args)))
    collector = Collector(args, device)
    obs_shape = collector.envs.observation_space.shape
    agent = Agent(obs_shape[0], collector.envs.action_space.n).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    rollout = Rollout(args, obs_shape, device)
    per_update = args.num_envs * args.num_steps
    num_updates = -(-args.steps // per_update)
    begin = time.time()
    for number in range(1, num_updates + 1):
        rate = args.learning_rate * (1 - (number - 1) / num_updates)
        optimizer.param_groups[0]["lr"] = rate
        last_value = collector.collect(agent, rollout)
        losses = update(agent, optimizer, rollout, last_value, args)
        step = number * per_update
        speed = step / (time.time() - begin)
        for name, loss in losses.items():
            writer.add_scalar(f"losses/{name}", loss.item(), step)
        writer.add_scalar("charts/SPS", speed, step)
        if collector.ends:
            returns, lengths, clears = np.mean(collector.ends[-50:], axis=0)
            writer.add_scalar("charts/episodic_return", returns, step)
            writer.add_scalar("charts/episodic_length", lengths, step)
            writer.add_scalar("charts/cleared", clears, step)
            if number % 10 == 0 or number == num_updates:
                print(
                    f"step {step:8d}  return {returns:6.1f}  cleared {clears:4.0%}  "
                    f"{speed:.0f} steps/s"
                )
    collector.envs.close()
    writer.close()


if __name__ == "__main__":
    main(tyro.cli(Args))
