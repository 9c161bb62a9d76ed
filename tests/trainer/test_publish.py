"""Policies published on the Hub, fetched from it, and refused."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path

import pytest
import torch
from hub_stand_in import serve
from learners import write_checkpoint
from small_runs import change

from trainer.config.schema import RunConfig
from trainer.evaluate import main as evaluate
from trainer.models import build_model, hub, released
from trainer.models.hub import parse
from trainer.models.policy import load_policy
from trainer.publish import main as publish
from trainer.run import main as run

ADDRESS = "hf://user/mario"
REPO = "user/mario"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The Hub, to which a policy that is not trained was pushed; and what was said."""
    constants = pytest.importorskip("huggingface_hub.constants")
    folder = tmp_path_factory.mktemp("publish")
    checkpoint = folder / "run.pt"
    write_checkpoint(checkpoint, levels=("1-2",))
    with serve() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", server.url)
        patch.setenv("HF_TOKEN", "of the stand-in")
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
        words = [str(checkpoint), "--to", ADDRESS, "--episodes", "2", "--seed", "5"]
        assert publish(words) == 0
        server.checkpoint = checkpoint
        yield server


@pytest.fixture
def server(published):
    """The same, as it was pushed: a test may change it."""
    before = {repo: dict(files) for repo, files in published.repos.items()}
    yield published
    published.repos, published.sizes = before, {}


def card_of(server):
    return json.loads(server.repos[REPO][released.CARD])


def put(server, content=None, **changes):
    """Changes the card, and the policy with its hash in the card."""
    card = card_of(server) | changes
    if content is not None:
        about = card["policies"]["1-2"]
        about["sha256"] = hashlib.sha256(content).hexdigest()
        server.repos[REPO][about["file"]] = content
    server.repos[REPO][released.CARD] = json.dumps(card).encode()


def rewritten(server, tmp_path, **changes):
    """The policy's file with other parts of it."""
    path = tmp_path / "policy.safetensors"
    path.write_bytes(server.repos[REPO]["1-2.safetensors"])
    known = released.read_policy(path, torch.device("cpu"))
    released.write_policy(path, known._replace(**changes))
    return path.read_bytes()


def refused(capsys):
    """The one line that a command says of the policy."""
    assert evaluate(["--policy", ADDRESS, "--episodes", "1"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert said.startswith("error: ")
    return said


@pytest.mark.rom
def test_what_is_pushed(server):
    files = server.repos[REPO]
    assert set(files) == {
        *("1-2.safetensors", "1-2.mp4", "config.json", "card.json", "README.md"),
    }
    assert b"ftyp" in files["1-2.mp4"][:16]
    text = files["README.md"].decode()
    assert text.startswith("---\nlicense: ")
    assert (
        f"python -m trainer.evaluate --policy {ADDRESS} --episodes 2 --seed 5" in text
    )
    assert "| 1-2 | 0.0 % |" in text
    card = card_of(server)
    assert [len(about["results"]) for about in card["policies"].values()] == [2]
    config = json.loads(files["config.json"])
    assert config["env"]["levels"] == ["1-2"]
    assert str(server.checkpoint.parent) not in files["config.json"].decode()


@pytest.mark.rom
def test_what_is_fetched_plays_as_what_was_pushed(server, capsys):
    words = ["--policy", ADDRESS, "--episodes", "2", "--seed", "5", "--json"]
    assert evaluate([*words, "--device", "cpu"]) == 0
    played = json.loads(capsys.readouterr().out)["results"]
    (about,) = card_of(server)["policies"].values()
    here = [{key: row[key] for key in about["results"][0]} for row in played]
    assert here == about["results"]
    policy = load_policy(ADDRESS)
    own = load_policy(server.checkpoint)
    for name, weights in policy.model.state_dict().items():
        assert torch.equal(weights, own.model.state_dict()[name].half().float())


@pytest.mark.rom
def test_it_is_downloaded_once(server):
    first = hub.locate(Path(ADDRESS))
    server.asked.clear()
    assert hub.locate(Path(f"{ADDRESS}/1-2")) == first
    assert not [path for method, path in server.asked if method == "GET" and
                "resolve" in path]  # fmt: skip


@pytest.mark.slow
@pytest.mark.rom
def test_a_folder_is_written_in_place_of_a_push(server, tmp_path, capsys):
    words = [str(server.checkpoint), "--episodes", "1", "--to", str(tmp_path / "a")]
    assert publish(words) == 0
    assert "wrote 5 files" in capsys.readouterr().out
    assert released.read_card(tmp_path / "a").levels == ["1-2"]
    assert publish(words) == 2
    assert "holds a published policy" in capsys.readouterr().err
    assert publish([*words, "--private"]) == 2
    assert "--private needs --to hf://user/name" in capsys.readouterr().err


@pytest.mark.parametrize("memory", ["none", "gru", "lstm", "gtrxl"])
@pytest.mark.parametrize(
    "name", ["tiles", "nature", "impala", "convnext", "cnn-72k", "cnn-345k"]
)
def test_every_network_has_its_shapes_without_memory(name, memory):
    """On the device meta, as those of others are compared."""
    config = change(RunConfig(), model=name, memory=memory).model
    shape = (1, 16, 16) if name == "tiles" else (4, 84, 84)
    real = build_model(config, shape, 5).state_dict()
    with torch.device("meta"):
        known = build_model(config, shape, 5).state_dict()
    assert {tensor.device.type for tensor in known.values()} == {"meta"}
    assert [(n, t.shape) for n, t in known.items()] == [
        (n, t.shape) for n, t in real.items()
    ]


# -- what is refused -----------------------------------------------------------


@pytest.mark.rom
def test_a_damaged_file_is_refused(server, capsys):
    content = server.repos[REPO]["1-2.safetensors"]
    server.repos[REPO]["1-2.safetensors"] = content[:-100]
    assert "its SHA-256 is not that of" in refused(capsys)
    put(server, content[:-100])  # by the author of the card, too
    assert "is damaged" in refused(capsys)


@pytest.mark.rom
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_in_disguise_is_refused(server, capsys, zipped):
    file = io.BytesIO()
    torch.save({"a": 1}, file, _use_new_zipfile_serialization=zipped)
    put(server, file.getvalue())
    assert "or no .safetensors file; no code in it was run" in refused(capsys)


@pytest.mark.rom
def test_another_rom_is_refused(server, tmp_path, capsys):
    put(server, rewritten(server, tmp_path, rom_sha1="1" * 40))
    assert "1111, but its card has" in refused(capsys)
    put(server, rom_sha1="0" * 40)
    said = refused(capsys)
    assert f"{ADDRESS}: the policy needs the ROM with SHA-1 0000" in said
    assert "an unknown revision, which is not installed" in said


@pytest.mark.rom
def test_a_network_of_another_shape_is_refused(server, tmp_path, capsys):
    path = tmp_path / "known.safetensors"
    path.write_bytes(server.repos[REPO]["1-2.safetensors"])
    model = dict(released.read_policy(path, torch.device("cpu")).model)
    # One that would not fit into memory.
    model["memory"] = {"kind": "gru", "size": 10**8}
    put(server, rewritten(server, tmp_path, model=model))
    assert "the checkpoint's weights do not fit" in refused(capsys)


@pytest.mark.rom
@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("env", "reward_fn", "os:system"),
        ("env", "rom_path", "/etc/passwd"),
    ],
)
def test_a_reward_and_files_of_this_machine_are_not_named(
    server, tmp_path, capsys, part, name, value
):
    path = tmp_path / "known.safetensors"
    path.write_bytes(server.repos[REPO]["1-2.safetensors"])
    known = released.read_policy(path, torch.device("cpu"))._asdict()[part]
    put(server, rewritten(server, tmp_path, **{part: known | {name: value}}))
    said = refused(capsys)
    assert f"is {value!r}, a file or code of another machine" in said


@pytest.mark.rom
def test_a_network_that_is_code_is_not_imported(server, tmp_path, capsys):
    path = tmp_path / "known.safetensors"
    path.write_bytes(server.repos[REPO]["1-2.safetensors"])
    known = released.read_policy(path, torch.device("cpu")).model
    put(server, rewritten(server, tmp_path, model=known | {"name": "os:system"}))
    said = refused(capsys)
    assert f"{ADDRESS} names code that is not part of this package" in said
    assert "add --model os:system to this command" in said


@pytest.mark.rom
def test_what_is_missing_or_too_large_is_refused(server, capsys):
    server.sizes["1-2.safetensors"] = 2**40
    assert "1-2.safetensors has 1,099,511,627,776 bytes" in refused(capsys)
    card = card_of(server)
    card["policies"]["1-2"]["file"] = "model.pt"
    put(server, policies=card["policies"])
    assert "the policy must be a .safetensors file, got 'model.pt'" in refused(capsys)
    card["policies"]["1-2"]["file"] = "../1-2.safetensors"
    put(server, policies=card["policies"])
    assert "the file of 1-2 must be in the card's folder" in refused(capsys)
    card["policies"]["1-2"]["file"] = "1-2.safetensors"
    put(server, policies=card["policies"] | {"1-3": card["policies"]["1-2"]})
    assert f"it has the policies '1-2', '1-3': name one, such as {ADDRESS}/8-1" in (
        refused(capsys)
    )
    del server.repos[REPO][released.CARD]
    assert "card.json is missing" in refused(capsys)
    del server.repos[REPO]
    assert f"error: {ADDRESS}: " in refused(capsys)


def test_addresses():
    assert parse(Path("hf://user/a.b")) == ("user/a.b", None, "")
    assert parse("hf://user/name@v1.0/8-1") == ("user/name", "v1.0", "8-1")
    assert str(parse("hf://user/name@v1.0/8-1")) == "hf://user/name@v1.0/8-1"
    assert not hub.is_address(Path("runs/hf"))
    for wrong in ("hf://user", "hf://user/a/b/c", "hf://user/na me"):
        with pytest.raises(
            ValueError, match="is not an address on the Hub; give hf://"
        ):
            parse(wrong)


def test_a_policy_is_no_run(tmp_path, capsys):
    assert run(["--resume", ADDRESS, "--device", "cpu"]) == 2
    assert "is a policy (weights only)" in capsys.readouterr().err


def test_without_the_library(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for command in (
        lambda: evaluate(["--policy", ADDRESS]),
        lambda: publish([str(tmp_path), "--to", ADDRESS]),
    ):
        assert command() == 2
        said = capsys.readouterr().err
        assert said == (
            "error: hf:// needs huggingface_hub: pip install 'mario-envpool[hub]'\n"
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none", "--to", "a"], "no checkpoint at none"),
        (["none", "--to", "hf://user"], "is not an address on the Hub"),
        (["none", "--to", "hf://user/a/1-1"], "--to must be hf://user/name"),
        (["none", "--to", "a", "--episodes", "0"], "episodes must be at least 1"),
        (["none", "--to", "a", "--seed", "-1"], "seed must be 0 to 20000, got -1"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert publish(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
