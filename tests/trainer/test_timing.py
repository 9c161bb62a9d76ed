"""The timing of a run is that of everything that plays its checkpoints."""

import json

import pytest
from small_runs import CPU

from trainer import evaluate
from trainer.film.filmed_env import FilmedEnv, game_config
from trainer.models.policy import load_policy
from trainer.run import main


@pytest.mark.slow
@pytest.mark.rom
def test_a_checkpoint_knows_its_timing(tmp_path):
    results = {}
    for timing in ("console", "nes_py"):
        folder = tmp_path / timing
        flags = f"--timing {timing} --device cpu --num-envs 4 --unrolls-per-batch 4 "
        flags += "--minibatch-size 64 --max-steps 2000 --stall-steps 20 --dashboard off"
        # With a film, which plays an episode of the run again and compares it.
        assert main([*flags.split(), "--run-dir", str(folder)]) == 0
        assert "not the same" not in (folder / "messages.txt").read_text()
        policy = load_policy(folder, CPU)
        config = game_config(policy.env)
        assert config["timing"] == policy.env.timing == timing
        words = f"--checkpoint {folder} --episodes 3 --no-pictures --device cpu"
        assert evaluate.main([*words.split(), "--stall-steps", "40"]) == 0
        table = json.loads((folder / "evaluation" / "table.json").read_text())
        results[timing] = table["results"]
        game = FilmedEnv(config, seed=1)
        start = game.reset()
        # One game's first row is not the other's: the snapshot says which it is.
        results[timing, "first"] = start.frames.tobytes() + start.obs.tobytes()
    assert results["console"] != results["nes_py"]


@pytest.mark.slow
@pytest.mark.rom
def test_another_timing_begins_new_episodes(tmp_path, capsys):
    flags = "--device cpu --num-envs 4 --unrolls-per-batch 4 --minibatch-size 64 "
    flags += "--no-videos --dashboard off"
    folder = str(tmp_path / "run")
    assert main([*flags.split(), "--max-steps", "300", "--run-dir", folder]) == 0
    capsys.readouterr()
    more = ["--resume", folder, "--max-steps", "600", "--timing", "nes_py"]
    assert main(more) == 0
    output = capsys.readouterr().out
    assert "new episodes begin: with another timing" in output


def test_an_unknown_timing_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--device", "cpu", "--timing", "pal"])
    assert "nes_py" in capsys.readouterr().err
