"""Trains policies on pools of environments: PPO or IMPALA, with V-trace.

`python -m trainer.run` is the command, and `trainer.run.run_training` the function that
does the same for a `RunConfig`. Importing this package does nothing else.
"""
