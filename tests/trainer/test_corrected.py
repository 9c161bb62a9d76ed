"""A network with a table of corrections, alone, in a file, and as a teacher."""

import pytest
import torch

from trainer.config.network import GRU
from trainer.config.schema import ModelConfig
from trainer.learn import distil
from trainer.models import build_model
from trainer.models.actor_critic import ActorCritic
from trainer.models.corrected import Corrected, Table, split
from trainer.models.policy import load_policy
from trainer.models.released import FOLDER, PolicyFile, read_policy, write_policy

CPU = torch.device("cpu")
SHAPE, ACTIONS = (1, 16, 16), 5


def images(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(8, (count, *SHAPE), generator=generator, dtype=torch.uint8)


def table(count=3, alike=1e-3, parts=None):
    known = Table(images(count), torch.arange(count) % ACTIONS, torch.tensor(alike))
    return known._replace(**(parts or {}))


def make(**options):
    torch.manual_seed(1)
    config = ModelConfig(name="tiles", **options)
    return build_model(config, SHAPE, ACTIONS).eval()


def logits_of(network, obs):
    rows = obs.view(2, -1, *SHAPE)
    first = torch.zeros(rows.shape[:2], dtype=torch.bool)
    with torch.no_grad():
        output, _ = network(rows, torch.zeros(rows.shape[1], 0), first)
    return output.logits


def test_the_actions_of_the_table_are_certain():
    network, known = make(), table()
    corrected = Corrected(network, known, SHAPE, ACTIONS)
    obs = torch.cat([known.obs, images(3, seed=9)])
    before, after = logits_of(network, obs), logits_of(corrected, obs)
    assert torch.equal(after[0].softmax(-1), torch.eye(3, ACTIONS))
    assert torch.equal(after[1], before[1])
    # With a large distance all observations look alike.
    everywhere = Corrected(network, table(1, alike=1e9), SHAPE, ACTIONS)
    assert (logits_of(everywhere, obs).argmax(-1) == 0).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(logits_of(corrected, obs)[0].softmax(-1), torch.eye(3, 5))


def test_parts_of_a_file():
    known = table()
    own = {"head.bias": torch.zeros(2)}
    assert split(own) == (own, None)
    weights, again = split(own | known.weights())
    assert weights == own
    assert all(map(torch.equal, known, again))
    missing = own | known.weights()
    del missing["corrections.actions"]
    for wrong in (missing, own | known.weights() | {"corrections.x": torch.zeros(1)}):
        with pytest.raises(ValueError, match=r"corrections.obs, corrections.actions"):
            split(wrong)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"obs": images(2)}, r"obs is torch.uint8 \(2, 1, 16, 16\), but must be"),
        ({"obs": images(3).float()}, "obs is torch.float32"),
        ({"obs": images(3)[:, :, 1:]}, r"must be torch.uint8 \(3, 1, 16, 16\)"),
        ({"obs": images(3).fill_(255)}, "obs has values that no tile has"),
        ({"actions": torch.tensor([0, 1, 5])}, "actions must be 0 to 4"),
        ({"actions": torch.tensor([0, -1, 2])}, "actions must be 0 to 4"),
        ({"actions": torch.tensor(1)}, "actions is torch.int64"),
        ({"actions": torch.zeros(3)}, "actions is torch.float32"),
        ({"actions": torch.zeros(0).long(), "obs": images(0)}, "actions is"),
        ({"alike": torch.tensor(0.0)}, "alike must be above 0, got 0"),
        ({"alike": torch.tensor(-1.0)}, "alike must be above 0, got -1"),
        ({"alike": torch.ones(2)}, "alike is torch.float32"),
    ],
)
def test_a_wrong_table(parts, message):
    with pytest.raises(ValueError, match=message):
        Corrected(make(), table(parts=parts), SHAPE, ACTIONS)


def test_a_memory_has_no_table():
    with pytest.raises(ValueError, match="need an ActorCritic without memory"):
        Corrected(make(memory=GRU()), table(), SHAPE, ACTIONS)


@pytest.fixture
def corrected(tmp_path):
    """A file of the one network with a table of two observations."""
    path = tmp_path / "1-1.safetensors"
    stored = read_policy(FOLDER / "one.safetensors", CPU)
    known = table(2)
    write_policy(path, stored._replace(weights=dict(stored.weights) | known.weights()))
    return path, known


@pytest.mark.rom
def test_a_file_with_a_table(corrected, tmp_path):
    path, known = corrected
    policy = load_policy(path)
    assert isinstance(policy.model, Corrected)
    plain = load_policy("released:one")
    assert type(plain.model) is ActorCritic
    assert policy.dtype == plain.dtype
    probs = logits_of(policy.model, known.obs)[:, 0].softmax(-1)
    assert (probs.argmax(-1) == known.actions).all()
    assert (probs.max(-1).values == 1).all()
    stored = read_policy(path, CPU)
    for name, value in (
        ("actions", torch.tensor([0, 99])),
        ("alike", torch.tensor([0.5])),
    ):
        weights = dict(stored.weights) | {f"corrections.{name}": value}
        write_policy(tmp_path / "bad.safetensors", stored._replace(weights=weights))
        with pytest.raises(ValueError, match=rf"bad.* is damaged: corrections.{name}"):
            load_policy(tmp_path / "bad.safetensors")


@pytest.mark.rom
def test_a_table_teaches(corrected):
    """The log-probabilities that a student learns are those of the table's actions."""
    path, known = corrected
    env = load_policy(path).env
    teacher = distil._load(path, env, CPU, "")
    logits = distil.run_rows(teacher.policy.model, known.obs, teacher.policy.dtype)
    probable = logits.logits[0].float().log_softmax(-1).clamp(min=distil._NEVER)
    assert torch.isfinite(probable).all()
    assert (probable.argmax(-1) == known.actions).all()


def test_a_policy_file_keeps_the_types_of_a_table(tmp_path):
    path = tmp_path / "x.safetensors"
    facts = {"env": {}, "model": {}, "precision": "fp32", "steps": 1, "rom_sha1": ""}
    write_policy(path, PolicyFile(**facts, averaged=False, weights=table().weights()))
    _, again = split(read_policy(path, CPU).weights)
    assert [part.dtype for part in again] == [torch.uint8, torch.int64, torch.float32]
    assert torch.equal(again.obs, table().obs)
