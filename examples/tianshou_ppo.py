"""PPO of Tianshou 2 directly on the native pool (pip install tianshou).

python examples/tianshou_ppo.py --steps 500000

Tianshou's collector accepts EnvPool's pools without a wrapper, and resets environments
automatically.
"""

from __future__ import annotations

from typing import Any

import envpool
import numpy as np
import torch
import tyro
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import ModuleWithVectorOutput
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn
from torch.distributions import Categorical

import mario_envpool  # noqa: F401  registers the ids with EnvPool


class Body(ModuleWithVectorOutput):
    """Convolutions over observations (n, 4, 42, 42)."""

    def __init__(self) -> None:
        super().__init__(32 * 6 * 6)
        self.layers = nn.Sequential(
            nn.Conv2d(4, 16, 6, stride=3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
        """Returns features, (n, 1152), and the unchanged state."""
        pictures = torch.as_tensor(np.asarray(obs)).float() / 255 - 0.5
        return self.layers(pictures), state


def main(steps: int = 500_000, num_envs: int = 16, seed: int = 1) -> None:
    """Trains, and then prints the mean return of some episodes."""
    torch.manual_seed(seed)
    pool = envpool.make(
        "SuperMarioBros-1-1-v0",
        env_type="gymnasium",
        num_envs=num_envs,
        seed=seed,
        img_height=42,
        img_width=42,
        reward="progress",
    )
    body = Body()
    policy = DiscreteActorPolicy(
        actor=DiscreteActor(
            preprocess_net=body, action_shape=pool.action_space.n, softmax_output=False
        ),
        dist_fn=lambda logits: Categorical(logits=logits),
        action_space=pool.action_space,
    )
    algorithm = PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=body),
        optim=AdamOptimizerFactory(lr=5e-4),
        gamma=0.97,
        max_grad_norm=0.5,
    )
    per_update = 64 * num_envs
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=Collector(
                policy, pool, VectorReplayBuffer(per_update * 2, num_envs)
            ),
            max_epochs=max(1, steps // 10_000),
            epoch_num_steps=min(steps, 10_000),
            collection_step_num_env_steps=per_update,
            update_step_num_repetitions=3,
            batch_size=256,
            show_progress=False,
        )
    )
    stats = Collector(policy, pool).collect(
        n_episode=num_envs, reset_before_collect=True
    )
    print(f"return after training: {stats.returns.mean():.1f}")
    pool.close()


if __name__ == "__main__":
    tyro.cli(main)
