"""Space files: what they may say, and what is made of it."""

import dataclasses
import random

import pytest

from trainer.config.learning import Adam
from trainer.config.schema import RunConfig
from trainer.tuning import space
from trainer.tuning.space import config_fields, read_space

BASE = RunConfig()


def read(tmp_path, text):
    path = tmp_path / "space.toml"
    path.write_text(text)
    return read_space(path, BASE)


def test_the_space_of_the_package_is_valid_and_holds_the_recipe():
    ranges = read_space(None, BASE)
    assert space.defaults(BASE, ranges).keys() == ranges.keys()
    assert all(some.field.part == "learner" for some in ranges.values())


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OSError, match=r"cannot read the space file .*/no.toml \(No"):
        read_space(tmp_path / "no.toml", BASE)


@pytest.mark.parametrize("name", ["lr", "learner.lr", '"learner.lr"'])
def test_fields_are_named_with_or_without_their_part(tmp_path, name):
    ranges = read(tmp_path, f"[{name}]\nlow = 1e-4\nhigh = 1e-3\nlog = true")
    config = space.apply(BASE, ranges, {"lr": 5e-4})
    assert config.learner.lr == 5e-4
    assert config.env == BASE.env


@pytest.mark.parametrize("name", ["model", "model.model"])
def test_the_network_is_named_as_on_the_command_line(tmp_path, name):
    ranges = read(tmp_path, f'[{name}]\nchoices = ["cnn-72k", "cnn-345k"]')
    assert space.apply(BASE, ranges, {"model": "cnn-345k"}).model.name == "cnn-345k"
    assert space.flags({"model": "cnn-345k"}) == "--model cnn-345k"


def test_every_config_field_has_a_flag_of_its_own():
    fields = config_fields()
    assert {"lr", "num_envs", "max_steps", "replay_share", "model"} <= fields.keys()
    for field in fields.values():
        if field.flag != "run_dir":
            value = field.get(BASE)
            assert field.set(BASE, value) == BASE


def test_every_kind_of_range(tmp_path):
    ranges = read(
        tmp_path,
        """
        [gamma]
        low = 0.9
        high = 0.99
        [lr]
        low = 1e-4
        high = 1e-2
        log = true
        [unroll]
        low = 8
        high = 64
        step = 8
        [popart]
        choices = [true, false]
        [widths]
        choices = [[8, 16], [16, 32]]
        [env]
        frame_skip = { low = 2, high = 6 }
        """,
    )
    rng, old = random.Random(1), space.defaults(BASE, ranges)
    assert "widths" not in old  # () is none of the choices
    for _ in range(100):
        values = {flag: some.draw(rng) for flag, some in ranges.items()}
        near = space.explore(ranges, values, rng)
        for some in (values, near):
            assert all(value in ranges[flag] for flag, value in some.items())
            assert some["unroll"] % 8 == 0
            assert type(some["unroll"]) is type(some["frame_skip"]) is int
            space.apply(BASE, ranges, some)


def test_logarithms_are_drawn_uniformly(tmp_path):
    ranges = read(tmp_path, "[lr]\nlow = 1e-4\nhigh = 1e-2\nlog = true")
    rng = random.Random(1)
    below = sum(ranges["lr"].draw(rng) < 1e-3 for _ in range(1000))
    assert 430 < below < 570  # a uniform draw would have 90


def test_exploring_multiplies_and_stays_within(tmp_path):
    text = "[lr]\nlow = 1e-4\nhigh = 1e-3\nlog = true\n[epochs]\nlow = 1\nhigh = 4"
    ranges = read(tmp_path, text)
    rng = random.Random(2)
    rates = {ranges["lr"].perturb(4e-4, rng) for _ in range(20)}
    assert sorted(rates) == pytest.approx([3.2e-4, 5e-4])
    rates = {ranges["lr"].perturb(9e-4, rng) for _ in range(20)}
    assert sorted(rates) == pytest.approx([7.2e-4, 1e-3])
    assert {ranges["epochs"].perturb(2, rng) for _ in range(20)} == {1, 3}
    assert {ranges["epochs"].perturb(4, rng) for _ in range(20)} == {3, 4}


def test_choices_move_to_neighbours(tmp_path):
    ranges = read(tmp_path, "[minibatch_size]\nchoices = [128, 256, 512, 1024]")
    rng = random.Random(3)
    some = ranges["minibatch_size"]
    assert {some.perturb(256, rng) for _ in range(20)} == {128, 512}
    assert {some.perturb(128, rng) for _ in range(20)} == {128, 256}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[lr", "is not TOML"),
        ("", "has no range"),
        ("[learning_rate]\nlow = 1\nhigh = 2", "no config field 'learning_rate'"),
        ("[learner.gama]\nlow = 1\nhigh = 2", "near names: .*gamma"),
        ("[seed]\nlow = 1\nhigh = 2", "seed cannot be searched"),
        ("[run_dir]\nchoices = ['a', 'b']", "run_dir cannot be searched"),
        ("[lr]\nlow = 1e-3\nhigh = 1e-4", r"\[lr\]: the range is empty"),
        ("[lr]\nlow = 1e-3\nhigh = 1e-3", "the range is empty"),
        ("[lr]\nlow = 1e-3", "high missing"),
        ("[lr]\nlow = 1e-3\nhigh = 'big'", "high must be among the numbers, got 'big'"),
        ("[lr]\nlow = 1e-3\nhigh = 1\nlogg = true", "unknown key logg"),
        ("[lr]\nlow = 1e-3\nhigh = 1\nlog = 1", "log must be true or false"),
        ("[entropy]\nlow = 0.0\nhigh = 1\nlog = true", "log needs low above 0"),
        ("[lr]\nlow = 1e-3\nhigh = 1\nlog = true\nstep = 0.1", "exclude each other"),
        ("[epochs]\nlow = 1\nhigh = 4\nstep = 5", "step must be above 0 and fit"),
        ("[epochs]\nlow = 1.5\nhigh = 4", "low must be among the whole numbers"),
        ("[epochs]\nlow = 0\nhigh = 4", "epochs must be at least 1, got 0"),
        ("[gamma]\nlow = 0.9\nhigh = 1.5", "gamma must be 0 to 1, got 1.5"),
        ("[optimizer]\nlow = 1\nhigh = 2", "one of muon, .*: give choices"),
        ("[optimizer]\nchoices = ['adam', 'sgd']", "takes one of muon, .*got 'sgd'"),
        ("[optimizer]\nchoices = ['adam']", "two or more different values"),
        ("[optimizer]\nchoices = ['adam', 'adam']", "two or more different values"),
        ("[optimizer]\nchoices = 'adam'", "choices is a list"),
        ("[epochs]\nchoices = [1, 2]\nlow = 1", "excludes low, high"),
        ("[epochs]\nchoices = [1, true]", "whole numbers, got True"),
        ("[widths]\nchoices = [[1, 2], [1, 'a']]", "lists of whole numbers"),
        ("[lr]\nlow=1e-4\nhigh=1\n[learner.lr]\nlow=1e-4\nhigh=1", "two ranges"),
        ("lr = 3", "expected a table"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(OSError, match=r"none\.toml"):
        read_space(tmp_path / "none.toml", BASE)


def test_flags_are_those_of_the_trainer():
    from trainer.cli import parse

    values = {"lr": 0.00123456, "epochs": 2, "popart": True, "videos": False}
    values |= {"widths": (8, 16), "optimizer": "adam", "model": "cnn-345k"}
    config = parse([*space.flags(values).split(), "--device", "cpu"])
    assert config.learner.lr == 0.001235
    assert config.learner.epochs == 2
    assert config.learner.optimizer == Adam()
    assert config.model.name == "cnn-345k"
    assert config.model.widths == (8, 16)
    assert config.model.popart
    assert not config.videos


@pytest.mark.parametrize("name", ["resume", "run_dir"])
def test_runs_have_folders_of_their_own(name, tmp_path):
    space.check_base(BASE)
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} cannot hold"):
        space.check_base(dataclasses.replace(BASE, **{name: tmp_path}))


@pytest.mark.parametrize(
    "flag", [["--max-steps", "9"], ["--max-steps=9"], ["--max_steps", "9"]]
)
def test_flags_that_would_be_overruled_are_refused(flag):
    space.check_flags(["--model", "cnn-345k"], {"--max-steps": "--steps"})
    with pytest.raises(ValueError, match=r"--max-steps behind -- .* give --steps"):
        space.check_flags(["--model", "cnn-345k", *flag], {"--max-steps": "--steps"})


def test_a_changed_setup_is_named(tmp_path):
    ranges = read_space(None, BASE)
    old = space.setup(BASE, ranges, members=4)
    space.check_setup("mine", old, space.setup(BASE, ranges, members=4))
    with pytest.raises(
        ValueError, match="'mine' was begun with another members, space"
    ):
        space.check_setup("mine", old, space.setup(BASE, {}, members=5))


def test_flags_are_split_at_the_dashes():
    assert space.split(["--a", "--", "--b", "--"]) == (["--a"], ["--b", "--"])
    assert space.split(["--a"]) == (["--a"], [])
