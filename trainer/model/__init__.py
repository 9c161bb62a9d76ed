"""Networks: image encoders, heads, and the actor-critic made of them."""

from trainer.model.actor_critic import ActorCritic, PolicyOutput, build_model

__all__ = ["ActorCritic", "PolicyOutput", "build_model"]
