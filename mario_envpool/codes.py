"""Names of the numbers in ``info``, which csrc/mario/env.h defines."""

from __future__ import annotations

#: ``END_REASONS[info["end_reason"]]`` is the reason for which the game ended the
#: episode: "none" (the game did not end it; a truncation with "none" is
#: ``max_episode_steps``), "death" (in an episode of one level), "flag" (a clear: the
#: level, or the last castle of the whole game), "game_over" (whole game: no life
#: left), "life" (whole game with ``episodic_life``), "wrong_pass"
#: (``end_on_wrong_pass``) and "stall" (``stall_steps``; a truncation).
END_REASONS = ("none", "death", "flag", "game_over", "life", "wrong_pass", "stall")

#: ``STATUS[info["status"]]`` is Mario's size: "small", "tall" or "fireball", the
#: words of gym-super-mario-bros.
STATUS = ("small", "tall", "fireball")
