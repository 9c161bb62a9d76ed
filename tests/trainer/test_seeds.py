"""One seed of a run, and a seed of its own for each generator."""

import itertools

import torch
from small_runs import CPU, make_config

from trainer.machine.ranks import Stream, seed_of
from trainer.session.training import open_run


def test_every_stream_of_every_run_has_a_seed_of_its_own():
    seeds = {seed_of(seed, stream) for seed in range(200) for stream in Stream}
    assert len(seeds) == 200 * len(Stream)
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert seed_of(1, Stream.WEIGHTS) == seed_of(1, Stream.WEIGHTS)


def test_weights_actions_and_minibatches_draw_different_numbers(
    tmp_path, pools, monkeypatch
):
    drawn = {}
    plain = torch.manual_seed

    def weights(seed):
        generator = plain(seed)
        drawn["weights"] = torch.rand(8, generator=generator.clone_state())
        return generator

    monkeypatch.setattr(torch, "manual_seed", weights)
    session = open_run(make_config(tmp_path, replay_share=0.5))
    try:
        for name, generator in (
            ("actions", session.action_generator),
            ("minibatches", session.learner.generator),
        ):
            drawn[name] = torch.rand(8, generator=generator, device=CPU)
    finally:
        session.close()
    for one, two in itertools.combinations(drawn.values(), 2):
        assert not (one == two).any()
