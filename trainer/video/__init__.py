"""Videos of policies: `python -m trainer.video`, and those that runs save.

`film` plays the game picture by picture, `draw` puts what the policy thinks beside
it, `encode` writes MP4 and GIF, `record` films the best episodes of a run.
"""
