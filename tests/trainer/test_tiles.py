"""Training on tiles and motion: packing, the network for them, a run on the game."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_runs import make_config, read_points

from trainer.cli import parse
from trainer.config.network import GRU
from trainer.config.presets import preset
from trainer.config.schema import TILES_SHAPE, EnvConfig, ModelConfig, RunConfig
from trainer.envs.pool import OBS_TYPES, TilesPool, packed, tiles_picture
from trainer.film.filmed_env import FilmedEnv, game_config
from trainer.models import build_model
from trainer.models.encoders import NEAR
from trainer.run import main
from trainer.session.training import run_training

RNG = np.random.default_rng(0)


def parts(*count):
    grids = RNG.integers(0, 21, (*count, 1, 13, 16), dtype=np.uint8)
    motion = RNG.integers(-128, 128, (*count, 8, 6)).astype(np.int8)
    motion[..., 0] = RNG.integers(0, 21, (*count, 8))
    return grids, motion


@pytest.mark.parametrize("count", [(), (5,)])
def test_both_parts_are_in_a_frame(count):
    grids, motion = parts(*count)
    frames = packed(grids, motion)
    assert frames.shape == (*count, *TILES_SHAPE)
    assert frames.dtype == np.uint8
    np.testing.assert_array_equal(frames[..., :13, :], grids)
    signed = frames[..., 13:, :].reshape(*count, 8, 6).view(np.int8)
    np.testing.assert_array_equal(signed, motion)


@pytest.mark.parametrize("names", OBS_TYPES.values(), ids=OBS_TYPES)
def test_a_pool_is_packed_and_else_itself(names):
    grids, motion = parts(3)

    class Pool:
        all_env_ids = (0, 1, 2)

        def recv(self):
            return {names[1]: motion, "tiles": grids}, "reward", "info"

    pool = TilesPool(Pool())
    obs, *rest = pool.recv()
    np.testing.assert_array_equal(obs, packed(grids, motion))
    assert rest == ["reward", "info"]
    assert pool.all_env_ids == (0, 1, 2)
    assert pool.observation_space.shape == TILES_SHAPE
    with pytest.raises(AttributeError):
        pool.nothing  # noqa: B018


def network(**options):
    torch.manual_seed(0)
    return build_model(ModelConfig(name="tiles", **options), TILES_SHAPE, 5)


def logits(model, frames):
    obs = torch.from_numpy(frames)[None]
    count = obs.shape[1]
    state = torch.zeros(count, model.state_size)
    first = torch.zeros(1, count, dtype=torch.bool)
    with torch.no_grad():
        return model(obs, state, first)[0].logits[0]


@pytest.mark.parametrize("memory", [None, GRU()])
def test_the_network_sees_every_cell_and_every_number(memory):
    model = network(memory=memory)
    grids, motion = parts()
    plain = logits(model, packed(grids[None], motion[None]))
    for row in range(13):
        for column in range(16):
            other = grids.copy()
            other[0, row, column] = (other[0, row, column] + 1) % 21
            changed = logits(model, packed(other[None], motion[None]))
            assert not torch.equal(changed, plain), (row, column)
    for thing in range(8):
        for number in range(6):
            other = motion.copy()
            other[thing, number] ^= 1 if number == 0 else 0x10
            changed = logits(model, packed(grids[None], other[None]))
            assert not torch.equal(changed, plain), (thing, number)


def test_numbers_of_motion_are_signed():
    encoder = network().encoder[0]
    grids, motion = parts()
    seen = {}
    encoder.join.register_forward_pre_hook(lambda _, given: seen.update(x=given[0]))
    for value in (-128, -1, 0, 1, 127):
        motion[:, 1] = value  # x of everything
        encoder(torch.from_numpy(packed(grids[None], motion[None])).float())
        numbers = seen["x"][0, -8 * 5 - NEAR : -NEAR].view(8, 5)
        torch.testing.assert_close(numbers[:, 0], torch.full((8,), value / 32))


def test_options_of_the_network_do_something():
    small, large = network(), network(widths=(8, 64), features=32, layer_norm=True)
    assert large.encoder[0].join.out_features == 32
    assert isinstance(large.encoder[1], torch.nn.LayerNorm)
    assert large.encoder[0].cells[0].out_channels == 8
    assert small.encoder[0].join.out_features == 128
    with pytest.raises(ValueError, match="blocks=2, but tiles has no blocks"):
        network(blocks=2)
    expected = r"needs --obs tiles or tiles\+world, of shape \(1, 16, 16\).*4, 84, 84"
    with pytest.raises(ValueError, match=expected):
        build_model(ModelConfig(name="tiles"), (4, 84, 84), 5)


@pytest.mark.parametrize("obs", OBS_TYPES)
def test_the_flag_chooses_the_network(obs):
    config = parse(["--obs", obs])
    assert config.model.name == "tiles"
    assert config.env == replace(preset("tiles").env, obs=obs)
    assert parse(["--obs", "tiles", "--features", "64"]).model.features == 64
    assert parse(["--device", "cpu"]) == RunConfig(device="cpu")


@pytest.mark.parametrize("name", ["tiles", "mine:Network"])
def test_any_network_gets_the_size_of_tiles(name):
    config = preset("tiles")
    config = replace(config, model=replace(config.model, name=name)).resolved()
    assert (1, config.env.img_height, config.env.img_width) == TILES_SHAPE


@pytest.mark.parametrize(
    ("model", "obs", "options", "message"),
    [
        ("cnn-72k", "tiles", {}, "model=cnn-72k does not take obs=tiles"),
        ("tiles", "pixels", {}, "model=tiles does not take obs=pixels"),
        ("tiles", "tiles", {"stack_num": 4}, "needs stack_num=1, got 4"),
        ("tiles", "tiles", {"img_height": 100}, "one size: leave out img_height=100"),
        ("tiles", "tiles", {"img_width": 84}, "one size.*img_width=84"),
        ("tiles", "tiles", {"img_height": 16, "img_width": 16}, ""),
        ("mine:Own", "tiles", {}, ""),
    ],
)
def test_what_does_not_fit_is_refused(model, obs, options, message):
    env = EnvConfig(obs=obs, **{"stack_num": 1} | options)
    config = RunConfig(env=env, model=ModelConfig(name=model))
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        config.validate()


@pytest.mark.families
def test_other_games_have_no_tiles(capsys, tmp_path):
    arguments = f"--obs tiles --task Pong-v5 --run-dir {tmp_path / 'run'}"
    assert main(arguments.split()) == 2
    assert "Pong-v5 has no tiles" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.rom
def test_replay_and_memory_work_on_tiles(tmp_path):
    config = make_config(
        tmp_path, obs="tiles", stack_num=1, model=preset("tiles").model,
        replay_share=0.5, unrolls_per_batch=12, memory="gru",
    )  # fmt: skip
    run_training(config)
    points = read_points(config.run_dir)
    assert points[-1]["learn/replay/share"] > 0


@pytest.mark.rom
@pytest.mark.parametrize("obs", OBS_TYPES)
def test_a_film_sees_what_the_pool_gives(obs):
    config = game_config(replace(preset("tiles").env, obs=obs))
    assert config["obs_type"] == "+".join(OBS_TYPES[obs])
    step = FilmedEnv(config, seed=1).reset(1)
    assert step.obs.shape == TILES_SHAPE
    assert step.obs[0, -3, 11] == (8 if obs == "tiles+world" else 0)
    assert tiles_picture(step.obs).shape == (208, 256, 3)
    assert len(np.unique(step.obs[0, :13])) > 2
