"""Search spaces, mutations and options by name: what they accept, and their errors."""

import dataclasses
import random

import pytest

from trainer.config.learning import Adam
from trainer.config.schema import RunConfig
from trainer.machine.imports import load
from trainer.tuning import mutations, options
from trainer.tuning.mutations import Range
from trainer.tuning.options import all_options, find
from trainer.tuning.search_config import default

BASE = RunConfig()


@pytest.fixture
def study():
    """Functions of the module that needs Optuna."""
    pytest.importorskip("optuna")
    from trainer.tuning import study

    study.quiet_optuna()
    return study


# Options by name.


@pytest.mark.parametrize("name", ["lr", "learner.lr"])
def test_options_are_named_with_or_without_their_part(name):
    config = options.apply(BASE, {name: 5e-4})
    assert config.learner.lr == 5e-4
    assert config.env == BASE.env
    assert options.flags({name: 5e-4}) == "--lr 0.0005"


@pytest.mark.parametrize("name", ["model", "model.name"])
def test_the_network_is_named_as_on_the_command_line(name):
    assert options.apply(BASE, {name: "cnn-345k"}).model.name == "cnn-345k"
    assert options.flags({name: "cnn-345k"}) == "--model cnn-345k"


def test_every_option_has_a_flag_of_its_own():
    known = all_options()
    assert {"lr", "num_envs", "max_steps", "replay_share", "model"} <= known.keys()
    assert len({option.path for option in known.values()}) == len(known)
    for option in known.values():
        if option.holds == "secret":
            with pytest.raises(ValueError, match="cannot be searched"):
                options.find(option.name)
        elif option.name not in options._NOT_SEARCHED:
            (value,) = options.values_of(BASE, [option.name]).values()
            assert options.apply(BASE, {option.name: value}) == BASE


def test_values_of_the_config_by_name():
    values = options.values_of(BASE, ["lr", "learner.gamma", "model", "no_option"])
    assert values == {
        "lr": BASE.learner.lr,
        "learner.gamma": BASE.learner.gamma,
        "model": BASE.model.name,
    }


def test_lists_are_accepted_where_a_config_has_tuples():
    assert options.apply(BASE, {"widths": [8, 16]}).model.widths == (8, 16)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 1}, "there is no option 'learning_rate'"),
        ({"learner.gama": 1}, "similar: .*gamma"),
        ({"seed": 1}, "seed cannot be searched"),
        ({"run_dir": "a"}, "run_dir cannot be searched"),
        ({"lr": "big"}, "lr must be of type float, got 'big'"),
        ({"epochs": 1.5}, "epochs must be of type int, got 1.5"),
        ({"epochs": True}, "epochs must be of type int, got True"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"gamma": 1.5}, "gamma must be 0 to 1, got 1.5"),
        ({"optimizer": "sgd"}, "optimizer must be one of muon, .*got 'sgd'"),
        ({"widths": 8}, "widths must be a list, got 8"),
        ({"popart": 1}, "popart must be of type bool, got 1"),
    ],
)
def test_wrong_options_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        options.apply(BASE, values)


def test_flags_are_those_of_the_trainer():
    from trainer.cli import parse

    values = {"lr": 0.00123456, "epochs": 2, "popart": True, "videos": False}
    values |= {"widths": (8, 16), "optimizer": "adam", "model": "cnn-345k"}
    config = parse([*options.flags(values).split(), "--device", "cpu"])
    assert config.learner.lr == 0.001235
    assert config.learner.epochs == 2
    assert config.learner.optimizer == Adam()
    assert config.model.name == "cnn-345k"
    assert config.model.widths == (8, 16)
    assert config.model.popart
    assert not config.videos


# Search spaces.


def test_the_space_of_the_package_is_valid_and_holds_the_recipe(study):
    ranges = study.dry_run(default, BASE)
    own = options.values_of(BASE, ranges)
    assert own.keys() == ranges.keys()
    assert all(study._contains(ranges[name], value) for name, value in own.items())
    assert all(find(name).path[0] == "learner" for name in ranges)


@pytest.mark.parametrize(
    ("suggest", "message"),
    [
        (lambda t: {"lr": t.suggest_float("x", 1e-3, 1e-4)}, "low.*high"),
        (lambda t: {"learning_rate": t.suggest_float("x", 0, 1)}, "learning_rate"),
        (lambda t: {"epochs": t.suggest_float("x", 1, 4)}, "must be of type int"),
        (lambda t: {"epochs": t.suggest_int("x", 0, 4)}, "at least 1, got 0"),
        (lambda t: {"gamma": t.suggest_float("x", 0.9, 1.5)}, "gamma must be 0 to 1"),
        (
            lambda t: {"optimizer": t.suggest_categorical("x", ["adam", "sgd"])},
            "one of muon, .*got 'sgd'",
        ),
        (lambda t: {}, "returned {}, not values by option"),
        (lambda t: None, "returned None, not values by option"),
        (lambda t: {"lr": 1e-3}, "nothing to search"),
        (lambda t: {"lr": t.no_such_method()}, "no_such_method"),
    ],
)
def test_a_wrong_space_is_an_error_before_any_trial(study, suggest, message):
    with pytest.raises(ValueError, match=f"^--space: .*{message}"):
        study.dry_run(suggest, BASE)


def test_every_end_of_every_range_is_tried(study):
    seen = []

    def space(trial):
        name = trial.suggest_categorical("optimizer", ["adam", "muon"])
        values = {"optimizer": name, "epochs": trial.suggest_int("epochs", 1, 4)}
        if name == "muon":
            values["muon_lr"] = trial.suggest_float("muon_lr", 0.01, 0.1)
        seen.append(values)
        return values

    assert set(study.dry_run(space, BASE)) == {"optimizer", "epochs", "muon_lr"}
    for name, ends in {"optimizer": ["adam", "muon"], "epochs": [1, 4]}.items():
        assert set(ends) <= {values[name] for values in seen}


def test_a_space_is_loaded_from_a_module_or_a_file(tmp_path):
    assert load("trainer.tuning.search_config:default", "--space", "it") is default
    (tmp_path / "mine.py").write_text("three = 3")
    assert load(f"{tmp_path}/mine.py:three", "--space", "it") == 3


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("space.toml", "--space 'space.toml': the name must be FILE.py:NAME"),
        ("none.py:space", "'none.py' cannot be imported .FileNotFoundError"),
        ("wrong.py:space", "'wrong.py' cannot be imported .SyntaxError"),
    ],
)
def test_what_cannot_be_loaded_is_named(tmp_path, monkeypatch, where, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text("def space(trial:")
    with pytest.raises(ValueError, match=message):
        load(where, "--space", "FILE.py:NAME")


# Mutations.


def test_the_mutations_of_the_package_are_valid_and_hold_the_recipe():
    mutations.check(mutations.DEFAULT, BASE)
    own = options.values_of(BASE, mutations.DEFAULT)
    assert all(own[name] in some for name, some in mutations.DEFAULT.items())


def test_mutations_stay_within_their_ranges():
    table = {"gamma": Range(0.9, 0.99), "lr": Range(1e-4, 1e-2, log=True)}
    table |= {"unroll": [8, 16, 32], "lr_schedule": ["linear", "cosine"]}
    mutations.check(table, BASE)
    rng = random.Random(1)
    for _ in range(100):
        values = mutations.draw(table, rng)
        near = mutations.explore(table, values, rng)
        for some in (values, near):
            assert all(value in table[name] for name, value in some.items())
            assert type(some["unroll"]) is int
            options.apply(BASE, some)


def test_logarithms_are_drawn_uniformly():
    rng, lr = random.Random(1), Range(1e-4, 1e-2, log=True)
    below = sum(lr.draw(rng) < 1e-3 for _ in range(1000))
    assert 430 < below < 570  # a uniform draw would have 90


def test_exploring_multiplies_or_adds_and_stays_within():
    rng, lr = random.Random(2), Range(1e-4, 1e-3, log=True)
    rates = {lr.perturb(4e-4, rng) for _ in range(20)}
    assert sorted(rates) == pytest.approx([3.2e-4, 5e-4])
    rates = {lr.perturb(9e-4, rng) for _ in range(20)}
    assert sorted(rates) == pytest.approx([7.2e-4, 1e-3])
    gammas = {Range(0.9, 1.0).perturb(0.95, rng) for _ in range(20)}
    assert sorted(gammas) == pytest.approx([0.93, 0.97])


def test_values_of_a_list_move_to_neighbours():
    rng, sizes = random.Random(3), [128, 256, 512, 1024]
    near = {mutations._perturb(sizes, 256, rng) for _ in range(20)}
    assert near == {128, 512}
    near = {mutations._perturb(sizes, 128, rng) for _ in range(20)}
    assert near == {128, 256}
    near = {mutations._perturb([1, 2, 3, 4], 4, rng) for _ in range(20)}
    assert near == {3, 4}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "a dictionary of options, got dict"),
        ([], "a dictionary of options, got list"),
        ({"learning_rate": [1, 2]}, "there is no option 'learning_rate'"),
        ({"lr": Range(1e-3, 1e-4)}, "low must be below high"),
        ({"lr": Range(1e-3, 1e-3)}, "low must be below high"),
        ({"entropy": Range(0.0, 1.0, log=True)}, "low must be below high"),
        ({"gamma": Range(0.9, 1.5)}, "gamma must be 0 to 1, got 1.5"),
        ({"epochs": Range(1, 2.5)}, "epochs must be of type int, got 2.5"),
        ({"epochs": [0, 1]}, "epochs must be at least 1, got 0"),
        ({"epochs": [1]}, "a Range or a list of two or more values"),
        ({"epochs": 1}, "a Range or a list of two or more values"),
    ],
)
def test_wrong_mutations_are_named(table, message):
    with pytest.raises(ValueError, match=message):
        mutations.check(table, BASE)


# What both commands share.


@pytest.mark.parametrize("name", ["resume", "run_dir"])
def test_runs_have_folders_of_their_own(name, tmp_path):
    options.check_base(BASE)
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} cannot apply"):
        options.check_base(dataclasses.replace(BASE, **{name: tmp_path}))


def test_a_changed_setup_is_named():
    old = options.setup(BASE, members=4, space={"lr": "x"})
    options.check_setup("mine", old, options.setup(BASE, members=4, space={"lr": "x"}))
    with pytest.raises(
        ValueError, match="'mine' was begun with another members, space"
    ):
        options.check_setup("mine", old, options.setup(BASE, members=5, space={}))
