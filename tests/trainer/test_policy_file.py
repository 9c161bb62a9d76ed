"""Policies as files of their own: what they hold, and what is refused."""

import os

import pytest
import safetensors.torch
import torch
from learners import write_checkpoint

from trainer.evaluate import main
from trainer.models import checkpoint, released
from trainer.models.policy import load_policy, save_policy

CPU = torch.device("cpu")


@pytest.fixture
def policy(tmp_path):
    """A policy's file, beside the checkpoint that it is of."""
    write_checkpoint(tmp_path / "run.pt", levels=("1-2",))
    save_policy(tmp_path / "run.pt", tmp_path / "1-2.safetensors")
    return tmp_path / "1-2.safetensors"


@pytest.mark.rom
def test_it_plays_as_its_checkpoint(tmp_path):
    average = write_checkpoint(tmp_path / "run.pt", levels=("1-2",))
    save_policy(tmp_path / "run.pt", tmp_path / "one.safetensors")
    found = load_policy(tmp_path / "one.safetensors", CPU)
    original = load_policy(tmp_path / "run.pt", CPU)
    assert found.env == original.env
    assert (found.dtype, found.steps) == (original.dtype, 7)
    weights = found.model.state_dict()
    assert weights.keys() == average.keys()
    for name, weight in weights.items():
        assert weight.dtype == average[name].dtype
        torch.testing.assert_close(weight, average[name].half().float())


@pytest.mark.rom
def test_a_temperature_divides_the_logits(tmp_path):
    write_checkpoint(tmp_path / "run.pt", levels=("1-2",))
    logits = []
    for temperature in (1.0, 0.5):
        path = tmp_path / "one.safetensors"
        save_policy(tmp_path / "run.pt", path, temperature=temperature)
        model = load_policy(path, CPU).model
        rows = torch.zeros(1, 2, 1, 16, 16, dtype=torch.uint8)
        first = torch.zeros(1, 2, dtype=torch.bool)
        with torch.no_grad():
            logits.append(model(rows, torch.zeros(2, 0), first)[0].logits)
    torch.testing.assert_close(logits[1], 2 * logits[0])
    state = checkpoint.load(tmp_path / "run.pt", CPU)
    other = {"model": {"mine": torch.ones(2)}, "ema": None}
    checkpoint.save(tmp_path / "other.pt", state | other)
    with pytest.raises(ValueError, match="needs a network whose last layer is an"):
        save_policy(tmp_path / "other.pt", path, temperature=0.5)


@pytest.mark.rom
def test_it_holds_nothing_of_this_machine(tmp_path, monkeypatch):
    from mario_envpool import rom

    (path, *_) = [str(file.path) for file in rom.find() if file.name == "vanilla"]
    write_checkpoint(tmp_path / "run.pt", rom_path=path)
    save_policy(tmp_path / "run.pt", tmp_path / "one.safetensors")
    content = (tmp_path / "one.safetensors").read_bytes()
    assert os.path.dirname(path).encode() not in content
    assert str(tmp_path).encode() not in content
    assert released.read_policy(tmp_path / "one.safetensors", CPU).env["rom_path"] == ""


def test_large_matrices_have_8_bits_where_that_is_asked_for(tmp_path):
    g = torch.Generator().manual_seed(1)
    rows = torch.logspace(-3, 1, 128)[:, None]
    large = torch.randn(128, 200, generator=g) * rows
    large[5] = 0.0
    weights = {"join.weight": large, "head.weight": torch.randn(5, 128, generator=g)}
    policy = released.PolicyFile({}, {}, "bf16", 7, "", True, weights)
    sizes = {}
    for bits in (8, 16):
        released.write_policy(tmp_path / "x.safetensors", policy, bits=bits)
        sizes[bits] = (tmp_path / "x.safetensors").stat().st_size
        found = released.read_policy(tmp_path / "x.safetensors", CPU).weights
        assert found.keys() == weights.keys()
        half = weights["head.weight"].half().float()
        torch.testing.assert_close(found["head.weight"], half, rtol=0, atol=0)
        # Half a step of a row; of half precision far less.
        error = (found["join.weight"] - large).abs().amax(1)
        step = large.abs().amax(1) / 127
        assert (error <= 0.52 * step).all()
        assert (error.max() > 0.1 * step.max()) == (bits == 8)
    assert sizes[8] < 0.56 * sizes[16]


def test_scales_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    weights = {"x": torch.ones(128, 200), "x.scales": torch.ones(3)}
    released.write_policy(path, released.PolicyFile({}, {}, "", 7, "", True, weights))
    with pytest.raises(ValueError, match="is damaged"):
        released.read_policy(path, CPU)


@pytest.mark.rom
def test_another_rom_is_refused(policy, capsys):
    found = released.read_policy(policy, CPU)
    released.write_policy(policy, found._replace(rom_sha1="0" * 40))
    assert main(["--checkpoint", str(policy)]) == 2
    error = capsys.readouterr().err
    assert f"{policy} is a policy for the ROM with SHA-1 0000" in error
    assert len(error.splitlines()) == 1


@pytest.mark.rom
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:100], "is damaged"),
        (lambda content: b"", "is damaged"),
        (lambda content: b"\x00" * 500, "is damaged"),
        (
            lambda content: content.replace(b"policy 2", b"policy 1"),
            "not a policy of this",
        ),
        (lambda content: content.replace(b"precision", b"decision!"), "is damaged"),
    ],
)
def test_a_damaged_file_is_refused(policy, damage, message):
    policy.write_bytes(damage(policy.read_bytes()))
    with pytest.raises(ValueError, match=message):
        load_policy(policy, CPU)


@pytest.mark.rom
def test_weights_that_are_not_finite_are_refused(policy):
    found = released.read_policy(policy, CPU)
    name = next(iter(found.weights))
    found.weights[name][:] = torch.nan
    released.write_policy(policy, found)
    with pytest.raises(ValueError, match="is not finite"):
        load_policy(policy, CPU)


def test_a_file_of_others_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"w": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="not a policy of this trainer"):
        load_policy(path, CPU)
    with pytest.raises(FileNotFoundError, match="no policy at"):
        load_policy(tmp_path / "none.safetensors", CPU)
