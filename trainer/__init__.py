"""Trains policies on pools of environments: IMPALA actor-critic with V-trace.

`python -m trainer.run` is the command; `trainer.run.run_training` is the one
function under it. Importing this package does nothing else.
"""
