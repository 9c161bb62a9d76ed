"""Trains policies on pools of environments: PPO or IMPALA, with V-trace.

`python -m trainer.run` is the command; `trainer.run.run_training` does the same for
a `RunConfig`. Importing this package has no side effects.
"""
