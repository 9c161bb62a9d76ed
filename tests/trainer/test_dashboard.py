"""What a person sees of a run."""

from trainer.dashboard import progress_legend, progress_line
from trainer.metrics import format_seconds


def test_progress_line():
    values = {
        "time/sps": 3210.4,
        "rollout/return": 1.5,
        "rollout/best_x_50": 812.3,
        "rollout/best_x_run": 3161.0,
        "rollout/clear_rate": 0.25,
    }
    line = progress_line(123456, values, eta_s=200)
    columns = ("123,456 steps", "3,210 SPS", "return    1.50", "x mean50   812")
    for text in (*columns, "max  3161", "clear  25%", "ETA 3:20"):
        assert text in line
    for column in ("SPS", "return", "x mean50", "max", "clear", "ETA"):
        assert f"{column}: " in progress_legend(4)
    assert "no episode" in progress_line(1, {}, 0)
    assert format_seconds(3725) == "1:02:05"
