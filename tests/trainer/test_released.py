"""Releases: made of a campaign, played again as their card says, what is refused."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from hub_stand_in import serve
from learners import write_checkpoint

from trainer.campaign import CampaignConfig
from trainer.config.plain import to_dict
from trainer.envs.pool import make_pool
from trainer.evaluate import main as evaluate
from trainer.evaluation.tables import show_replayed
from trainer.models import released
from trainer.models.policy import load_policy, run_folder, save_policy
from trainer.release import main as release
from trainer.release import make
from trainer.tuning import releases, specialists
from trainer.video import main as video
from trainer.watch import main as watch

LEVELS = ["1-2", "1-3"]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """The folder of a campaign of two levels, whose policies are not trained."""
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "policies").mkdir()
    results = {}
    for name, levels in {**{n: (n,) for n in LEVELS}, "one": tuple(LEVELS)}.items():
        path = folder / "policies" / f"{name}.safetensors"
        write_checkpoint(folder / "run.pt", levels=levels, max_episode_steps=50)
        save_policy(folder / "run.pt", path)
        results[name] = specialists.evaluate(path, "", 3, 5)["results"]
    config = CampaignConfig(levels="1-2,1-3", seed=5, episodes=3, max_seconds=90.0)
    options = {"options": to_dict(config), "flags": ["--lr", "0.001"]}
    (folder / "campaign.json").write_text(json.dumps(options))
    table = {
        "episodes": 3,
        "seed": 5,
        "seconds": 90.0,
        "levels": LEVELS,
        "single": [row for name in LEVELS for row in results[name]],
        "one": results["one"],
    }
    (folder / "table.json").write_text(json.dumps(table))
    return folder


@pytest.fixture
def made(campaign, tmp_path):
    """A release of it."""
    make(campaign, tmp_path / "release")
    return tmp_path / "release"


def rewrite(folder, **changes):
    path = folder / released.CARD
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.rom
def test_a_release_is_made(campaign, tmp_path, capsys):
    folder = tmp_path / "some" / "release"
    assert release([str(campaign), "--to", str(folder)]) == 0
    assert "wrote 3 policies" in capsys.readouterr().out
    card = released.read_card(folder)
    assert list(card.policies) == [*LEVELS, "one"]
    assert card.about["made_by"] == (
        "python -m trainer.campaign --levels=1-2,1-3 --max-seconds=90 --seed=5 "
        "--episodes=3 -- --lr 0.001"
    )
    assert re.fullmatch(r"[0-9a-f]{40}", card.rom_sha1)
    assert [len(about["results"]) for about in card.policies.values()] == [2, 2, 4]
    assert "episode_steps" not in card.policies["one"]["results"][0]
    text = (folder / "README.md").read_text()
    for said in (
        "tiles of 1 frame, an action every 6 frames, 5 actions",
        "MIT",
        card.rom_sha1,
        "vanilla (European revision, super-mario-bros.nes) of gym-super-mario-bros",
        "one network for all levels",
        "| 1-3 |",
    ):
        assert said.lower() in text.lower()
    assert str(tmp_path) not in text + (folder / released.CARD).read_text()


@pytest.mark.rom
@pytest.mark.slow
def test_it_is_played_as_its_card_says(made, tmp_path, capsys):
    assert evaluate(["--policy", str(made), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "8 results: 8 equal to the card's, 0 within" in shown
    table = json.loads((tmp_path / "out" / "table.json").read_text())["results"]
    played = [(row["policy"], row["here"]["level"]) for row in table]
    pairs = {("1-2", "1-2"), ("1-3", "1-3"), ("one", "1-2"), ("one", "1-3")}
    assert sorted(played) == sorted([*pairs, *pairs])
    assert all(row["here"] == row["card"] for row in table)


@pytest.mark.parametrize(
    ("clears", "interval", "verdict"),
    [(0, [0.0, 0.5], "equal"), (1, [0.0, 0.5], "within"), (3, [0.6, 1.0], "outside")],
)
def test_what_was_played_is_compared_with_the_card(clears, interval, verdict):
    here = {
        "level": "1-1",
        "argmax": False,
        "episodes": 10,
        "clears": 0,
        "clear_rate": 0.0,
        "interval": [0.0, 0.3],
        "cleared_starts": None,
    }
    card = here | {"clears": clears, "interval": interval}
    assert releases.compare("1-1", card, here)["verdict"] == verdict


def test_verdicts_fit_a_terminal(monkeypatch, capsys):
    """The widest rows that there are, all of a release."""
    monkeypatch.setenv("COLUMNS", "80")
    half = {
        "level": "8-4",
        "clears": 100,
        "episodes": 100,
        "clear_rate": 1.0,
        "interval": (1.0, 1.0),
    }
    sampled, argmax = half | {"argmax": False}, half | {"argmax": True}
    rows = [
        {"policy": "policy", "card": side, "here": side, "verdict": verdict}
        for side, verdict in ((sampled, "outside"), (argmax, "within"))
    ]
    others = [
        {"policy": str(n), "card": sampled, "here": sampled, "verdict": "equal"}
        for n in range(130)
    ]
    show_replayed([*rows, *others])
    head, _, first, *more = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "card"
    assert first.split()[-2:] == ["outside", "within"]
    assert first.startswith("policy   8-4 100.0 % 100.0 %")
    assert max(map(len, [head, first, *more])) <= 80
    assert more[-2] == "two verdicts: first sampled actions, then greedy actions"
    assert more[-1].startswith("132 results: 130 equal to the card's, 1 within")
    show_replayed(others)
    assert "two verdicts" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "campaign.json").unlink(), "campaign.json is missing: a rel"),
        (lambda f: (f / "table.json").unlink(), "campaign --resume {} continues"),
        (lambda f: (f / "table.json").write_text("{"), "is damaged: JSONDecodeError"),
        (lambda f: (f / "table.json").write_text("{}"), "is damaged: KeyError"),
    ],
)
@pytest.mark.rom
def test_a_campaign_without_an_end_is_refused(
    campaign, tmp_path, capsys, break_it, message
):
    copy = tmp_path / "copy"
    shutil.copytree(campaign, copy)
    break_it(copy)
    assert release([str(copy)]) == 2
    error = capsys.readouterr().err
    assert message.format(copy) in error
    assert len(error.splitlines()) == 1


@pytest.mark.rom
def test_a_release_is_compared_with_the_last_one(campaign, made, tmp_path, capsys):
    """Refused: a clear rate whose interval ends below the last one's, and a gap."""
    again = [str(campaign), "--to", str(tmp_path / "next"), "--last", str(made)]
    assert release(again) == 0  # equal
    shutil.rmtree(tmp_path / "next")
    policies = json.loads((made / released.CARD).read_text())["policies"]
    first = policies["1-2"]["results"]
    sampled = next(row for row in first if not row["argmax"])
    sampled |= {"clear_rate": 0.9, "interval": [0.85, 0.95]}
    rewrite(made, policies=policies | {"2-1": policies["1-3"]})
    assert release(again) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "2 results are worse than in the last release: 1-2 by 1-2: 0%, " in error
    assert "before 90%; 1-3 by 2-1 is missing; train longer" in error
    assert not (tmp_path / "next" / released.CARD).exists()


@pytest.mark.rom
def test_a_release_is_pushed(campaign, made, tmp_path, monkeypatch, capsys):
    pytest.importorskip("huggingface_hub", reason="pip install 'mario-envpool[hub]'")
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_1")
        options = [str(campaign), "--to", "hf://me/all", "--last", str(made)]
        assert release(options) == 0
    assert "pushed 3 policies, " in capsys.readouterr().out
    assert server.repos["me/all"].keys() >= {"card.json", "README.md"}
    assert server.repos["me/all"]["one.safetensors"]
    assert not (campaign / "release").exists()


@pytest.mark.rom
def test_options_of_a_release_are_checked(campaign, tmp_path, capsys):
    for options, message in (
        (["--private"], "--private needs --to hf://user/name"),
        (["--last", str(tmp_path / "none")], "card.json"),
        (["--to", "hf://me"], "hf://user/name"),
        (["--to", "hf://me/all/8-1"], "--to must be hf://user/name or a folder"),
        (["--last", "hf://me/all"], "--last takes a folder or released:all"),
    ):
        assert release([str(campaign), *options]) == 2
        assert message in capsys.readouterr().err
    assert not (campaign / "release").exists()


@pytest.mark.rom
def test_a_release_is_not_written_over(campaign, made, capsys):
    assert release([str(campaign), "--to", str(made)]) == 2
    assert "holds a release; choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is damaged: Expecting property name"),
        (b"\xff", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"format": "other"}', "its format is 'other', not 'mario-envpool release"),
        (b'{"format": "mario-envpool release 1"}', "is damaged: .*missing"),
    ],
)
def test_a_damaged_card_is_refused(tmp_path, capsys, content, message):
    (tmp_path / released.CARD).write_bytes(content)
    assert evaluate(["--policy", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert len(error.splitlines()) == 1


@pytest.mark.rom
def test_a_card_names_files_of_its_own_folder(made):
    policies = released.read_card(made).policies
    policies["one"]["file"] = "../one.safetensors"
    rewrite(made, policies=policies)
    with pytest.raises(
        ValueError, match="the file of one must be in the card's folder"
    ):
        released.read_card(made)


@pytest.mark.rom
def test_a_changed_or_missing_policy_is_refused(made, monkeypatch, capsys):
    monkeypatch.setattr(released, "FOLDER", made)
    path = made / "1-2.safetensors"
    shutil.copyfile(made / "one.safetensors", path)
    for command in (evaluate, watch, video):
        assert command(["--policy", "released:1-2"]) == 2
        error = capsys.readouterr().err
        assert "1-2.safetensors has changed" in error
        assert len(error.splitlines()) == 1
    path.unlink()
    assert evaluate(["--policy", "released:all"]) == 2
    assert "1-2.safetensors is missing" in capsys.readouterr().err
    assert evaluate(["--policy", "released:9-1"]) == 2
    assert "unknown released policy '9-1'; choose one of 1-2, 1-3" in (
        capsys.readouterr().err
    )
    assert watch(["--policy", "released:all"]) == 2
    error = capsys.readouterr().err
    assert "python -m trainer.evaluate takes all" in error
    assert "trainer.watch with --whole-game" in error


@pytest.mark.rom
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--policy", "released:1-2"], "1-2"),
        (["--policy", "released:1-2", "--level", "1-2"], "1-2"),
        (["--policy", "released:1-2", "--level", "1-3"], "1-2-1-3"),
        (["--policy", "released:one", "--levels", "1-2,1-3", "--grid"], "one-grid"),
        (["--policy", "release/1-3.safetensors"], "1-3"),
    ],
)
def test_a_film_has_the_name_of_its_policy(made, monkeypatch, capsys, words, name):
    monkeypatch.setattr(released, "FOLDER", made)
    monkeypatch.chdir(made.parent)
    assert video([*words, "--max-seconds", "1"]) == 0
    assert f"wrote videos/{name}.mp4 " in capsys.readouterr().out


def test_a_released_policy_is_in_no_run(tmp_path, monkeypatch):
    """Wherever a command is called."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").touch()
    assert run_folder(released.Path("released:1-1")) is None


@pytest.mark.parametrize("command", [evaluate, watch, video])
def test_a_folder_is_no_policy(command, tmp_path, monkeypatch, capsys):
    """The message says what it is, and what to give."""
    monkeypatch.chdir(tmp_path)
    for path in (
        "some/1-1.safetensors",
        "some/one.safetensors",
        "release/1-1.safetensors",
        "campaign/policies/4-2.safetensors",
        "campaign/levels/4-2/checkpoints/step-000000010.pt",
        "young/levels/1-1/checkpoints/step-000000010.pt",
        "runs/a/checkpoints/best.pt",
        "new/config.json",
        "empty/nothing.txt",
    ):
        released.Path(path).parent.mkdir(parents=True, exist_ok=True)
        released.Path(path).touch()
    expected = {
        "some": "some has several policies: give one of them, such as some/",
        "campaign": "campaign has several policies: give one of them, such as ca",
        "young": "a folder with several runs: give one, such as young/levels/1-1",
        "runs": "a folder with several runs: give one, such as runs/a",
        "new": "a run without a checkpoint yet",
        "empty": "no checkpoint at empty; runs write their checkpoints to RUN_DIR/",
        "8-1": "and the policies of this package are released:1-1 and so on",
    }
    if command is not evaluate:  # which takes all at once
        (released.Path("release") / released.CARD).touch()
        expected["release"] = "and trainer.evaluate plays a release as its card says"
    for path, message in expected.items():
        assert command(["--policy", path]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1


@pytest.mark.parametrize("command", [evaluate, watch, video])
def test_two_policies_are_refused(command, capsys):
    assert command(["--policy", "released:1-1", "--checkpoint=x"]) == 2
    assert capsys.readouterr().err == (
        "error: --policy and --checkpoint: give --checkpoint once; --policy is another "
        "name of it\n"
    )
    assert command(["--policy", "a", "--policy", "b"]) == 2
    assert "--policy and --policy: give" in capsys.readouterr().err


def test_levels_by_two_names_are_refused(capsys):
    words = ["--policy", "released:one", "--level", "1-1", "--levels", "all"]
    assert video(words) == 2
    assert "give --levels once; --level is another name" in capsys.readouterr().err


@pytest.mark.rom
def test_a_release_for_another_rom_is_refused(made, capsys):
    """Before anything is played."""
    other = "0" * 40
    policies = released.read_card(made).policies
    for name in policies:
        path = made / f"{name}.safetensors"
        found = released.read_policy(path, releases.torch.device("cpu"))
        released.write_policy(path, found._replace(rom_sha1=other))
        policies[name]["sha256"] = released.sha256(path)
    rewrite(made, policies=policies, rom_sha1=other)
    assert evaluate(["--policy", str(made)]) == 2
    error = capsys.readouterr().err
    assert f"is a policy for the ROM with SHA-1 {other}" in error
    assert len(error.splitlines()) == 1


@pytest.mark.rom
def test_a_card_for_another_rom_is_refused(made, capsys):
    rewrite(made, rom_sha1="0" * 40)
    assert evaluate(["--policy", str(made)]) == 2
    assert f"card.json says {'0' * 40}" in capsys.readouterr().err


@pytest.mark.rom
def test_a_released_policy_plays_in_a_loop_of_ones_own():
    """That of docs/evaluating.md."""
    policy = load_policy("released:1-1")
    pool = make_pool(replace(policy.env, num_envs=2, groups=1, num_threads=1), seed=1)
    obs, _ = pool.reset()
    for _ in range(3):
        assert obs.shape == (2, 1, 16, 16)
        rows = releases.torch.as_tensor(obs)[None]
        state = releases.torch.zeros(2, policy.model.state_size)
        first = releases.torch.ones(1, 2, dtype=releases.torch.bool)
        output, _ = policy.model(rows, state, first)
        obs, *_ = pool.step(output.logits[0].argmax(1).numpy())
    pool.close()


@pytest.mark.rom
def test_its_protocol_cannot_be_changed(made, capsys):
    assert evaluate(["--policy", str(made), "--episodes", "5"]) == 2
    assert "is played as its card says: leave out all options but" in (
        capsys.readouterr().err
    )


# -- the release of this package ---------------------------------------------


def test_the_package_has_policies_for_all_levels():
    card = released.read_card(released.FOLDER)
    assert len(card.levels) == 32
    assert card.policies.keys() == {*card.levels, "one"}
    size = 0
    for name in card.policies:
        size += released.locate(released.Path(f"released:{name}")).stat().st_size
    assert size <= 6 * 2**20
    assert {path.suffix for path in released.FOLDER.iterdir()} == {
        ".json", ".md", ".safetensors",
    }  # fmt: skip


def test_the_card_and_its_text_say_the_same():
    card = released.read_card(released.FOLDER)
    text = (released.FOLDER / releases.README).read_text()
    assert text == releases.readme(card)
    assert f"{card.about['rom']}. Its SHA-1 is `{card.rom_sha1}`" in text


@pytest.mark.slow
@pytest.mark.rom
def test_a_released_policy_reaches_its_figure(capsys):
    card = released.read_card(released.FOLDER)
    assert evaluate(["--policy", "released:1-1", "--json", "--no-argmax"]) == 0
    ((here),) = json.loads(capsys.readouterr().out)["results"]
    said = card.policies["1-1"]["results"][0]
    low, high = said["interval"]
    assert low <= here["clear_rate"] <= high


@pytest.mark.rom
def test_the_one_network_plays_all_levels():
    policy = load_policy("released:one", releases.torch.device("cpu"))
    assert len(policy.env.levels) == 32
