"""Networks: image encoders, memories, heads, and the actor-critic made of them."""

from trainer.models.actor_critic import (
    ActorCritic,
    ModelSize,
    NativeNetwork,
    PolicyModel,
    PolicyOutput,
    build_model,
    describe_model,
    to_device,
)

__all__ = [
    "ActorCritic",
    "ModelSize",
    "NativeNetwork",
    "PolicyModel",
    "PolicyOutput",
    "build_model",
    "describe_model",
    "to_device",
]
