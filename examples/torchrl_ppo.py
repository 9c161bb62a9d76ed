"""PPO of TorchRL over MarioVectorEnv (pip install torchrl).

python examples/torchrl_ppo.py --steps 500000

TorchRL resets ended environments itself, hence autoreset_mode="Disabled".
"""

from __future__ import annotations

import torch
import tyro
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from mario_envpool.vector import MarioVectorEnv

PARTS = ("objective", "critic", "entropy")


class Network(nn.Module):
    """Convolutions and a linear layer, over any number of leading dimensions."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 16, 6, stride=3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 6 * 6, num_outputs),
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Returns (..., num_outputs) for observations (..., 4, 42, 42)."""
        outputs: torch.Tensor = self.layers(obs.flatten(0, -4).float() / 255 - 0.5)
        return outputs.unflatten(0, obs.shape[:-3])


def main(steps: int = 500_000, num_envs: int = 16, seed: int = 1) -> None:
    """Trains, and prints the mean reward per step."""
    torch.manual_seed(seed)
    config = {"img_height": 42, "img_width": 42, "reward": "progress"}
    envs = MarioVectorEnv(
        num_envs, "SuperMarioBros-1-1-v0", autoreset_mode="Disabled", **config
    )
    env = GymWrapper(envs, categorical_action_encoding=True)
    actor = ProbabilisticActor(
        TensorDictModule(
            Network(int(envs.single_action_space.n)), ["observation"], ["logits"]
        ),
        in_keys=["logits"],
        spec=env.full_action_spec,
        distribution_class=Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(Network(1), in_keys=["observation"])
    advantage = GAE(gamma=0.97, lmbda=0.95, value_network=critic, deactivate_vmap=True)
    loss_module = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=5e-4)
    frames = 64 * num_envs
    collector = Collector(
        env,
        actor,
        frames_per_batch=frames,
        total_frames=-(-steps // frames) * frames,
        auto_register_policy_transforms=True,
    )
    for number, batch in enumerate(collector, 1):
        for _ in range(3):
            with torch.no_grad():
                advantage(batch)
            flat = batch.flatten()
            for rows in torch.randperm(len(flat)).chunk(4):
                losses = loss_module(flat[rows])
                loss = sum(
                    losses[f"loss_{k}"] for k in ("objective", "critic", "entropy")
                )
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
                optimizer.step()
        reward = batch["next", "reward"].mean()
        print(f"step {number * frames:8d}  reward per step {reward:6.3f}")
    collector.shutdown()


if __name__ == "__main__":
    tyro.cli(main)
