"""Cells are told apart and counted; the frontier keeps what is worth to begin from."""

from types import SimpleNamespace

import numpy as np
import pytest
from fake_pools import CELL, JUMP, WALK, Corridors, step

from trainer.explore import frontier
from trainer.explore.cells import DECAY, CellCounts, cell_keys
from trainer.explore.frontier import Archive, Candidate, Frontier
from trainer.rollout.episodes import OpenEpisodes

LIVES = 4  # steps, and cells, that these tests ask a snapshot's episode to get on


@pytest.fixture(autouse=True)
def short_lives(monkeypatch):
    monkeypatch.setattr(frontier, "_CONFIRM_STEPS", LIVES)
    monkeypatch.setattr(Archive, "SCREEN", LIVES * CELL)


def row(*without, **changes):
    """The columns of one row; `without`: fields that the pool does not have."""
    names = "world stage area_pointer loop x_pos y_pos".split()
    values = dict.fromkeys(names, 1) | changes | {"env_id": 0, "elapsed_step": 0}
    info = {k: np.array([v], np.int32) for k, v in values.items() if k not in without}
    no = np.zeros(1, bool)
    return OpenEpisodes(1).observe(np.zeros(1, np.float32), no, no, info)


# -- cells ---------------------------------------------------------------------


def test_every_part_of_a_place_makes_another_cell():
    most = {"world": 255, "stage": 4, "area_pointer": 127, "loop": 4095}
    most |= {"x_pos": 65535, "y_pos": 510}
    rows = [row(), *(row(**{name: value}) for name, value in most.items()), row(**most)]
    keys = [int(cell_keys(columns, 1)[0]) for columns in rows]
    assert len(set(keys)) == len(rows)
    assert min(keys) >= 0


def test_pixels_of_a_square_are_one_cell():
    keys = [cell_keys(row(x_pos=x, y_pos=y), 32)[0] for x in (32, 63) for y in (0, 31)]
    assert len(set(keys)) == 1
    assert cell_keys(row(x_pos=64, y_pos=0), 32)[0] != keys[0]


def test_pools_without_mazes_have_cells():
    assert cell_keys(row("loop"), 32) == cell_keys(row(loop=0), 32)


def enter(counts, env_id, keys, first=False):
    ids = np.array(env_id, np.int32)
    is_first = np.full(len(ids), first)
    columns = SimpleNamespace(env_id=ids, is_first=is_first, progress=0 * ids)
    return counts.enter(columns, np.array(keys, np.int64))


def test_cells_are_counted_once_an_episode_and_at_every_entry():
    counts = CellCounts(3)
    entered = enter(counts, [0, 2], [7, 7], first=True)
    assert entered.rows.tolist() == [0, 1]
    assert entered.cells.tolist() == [0, 0]
    assert entered.new.all()
    assert enter(counts, [0, 2], [7, 8]).rows.tolist() == [1]  # 0 has stayed
    back = enter(counts, [2], [7])
    assert (back.cells.tolist(), back.new.tolist()) == ([0], [False])
    assert counts.episodes[:2].tolist() == [2, 1]
    assert counts.entries[:2].tolist() == [3, 1]
    assert counts.total == 4
    assert enter(counts, [2], [7], first=True).new.all()  # another episode
    assert len(counts) == 2


def test_counts_grow_and_go_on():
    counts = CellCounts(2)
    enter(counts, [0], [5], first=True)
    for key in range(3000):
        enter(counts, [1], [key])
    restored = CellCounts(2)
    restored.restore(counts.state(), going_on=True)
    for cells in (counts, restored):
        again = enter(cells, [0, 1], [2999, 2999])
        assert again.cells.tolist() == [2999]  # 1 is still there
        assert again.new.tolist() == [True]
        assert (len(cells), cells.total) == (3000, 3002)
        assert cells.episodes[2999] == 2


def test_there_are_no_more_cells_than_fit(monkeypatch):
    monkeypatch.setattr("trainer.explore.cells.MOST_CELLS", 10)
    counts = CellCounts(1)
    for key in range(100):
        enter(counts, [0], [key])
    assert counts.entries.sum() == 100
    restored = CellCounts(1)
    restored.restore(counts.state(), going_on=True)
    assert restored.entries[9] == counts.entries[9] == 91


# -- the archive ---------------------------------------------------------------


class TwoLevels(Corridors):
    STAGES = ("1-1", "4-2")


class Explored:
    """Corridors whose rows a frontier observes."""

    def __init__(self, num_envs=1, levels=("1-1",), pool=Corridors):
        self.pool = pool(num_envs, num_envs)
        self.counts = CellCounts(num_envs)
        self.frontier = Frontier(self.pool, self.counts, levels, num_envs)
        self.archive = self.frontier.archive
        stages = self.pool.num_stages
        self.episodes = OpenEpisodes(num_envs, levels=levels, num_stages=stages)
        self.pool.set_starts(np.ones(self.pool.num_stages))

    def __call__(self, *actions):
        """Some steps, the same action for all environments."""
        for action in actions:
            _, *results, info = step(self.pool, np.full(self.pool.num_envs, action))
            columns = self.episodes.observe(*results, info)
            entered = self.counts.enter(columns, cell_keys(columns, CELL))
            self.frontier.observe(columns, entered)
        return info

    def offer(self, share=1.0):
        """Cells of the corridor on offer, with their weights."""
        _, weights, snapshots = self.archive.offer(np.array([share]))
        fake = Corridors(1, 1)
        cells = []
        for snapshot in snapshots:
            fake.restore(np.zeros(1, np.int32), snapshot[None])
            cells.append(int(fake.cell[0]))
            assert not fake.falling[0]
        return dict(zip(cells, weights, strict=True))


def test_a_snapshot_waits_until_its_episode_has_got_on():
    explored = Explored()
    explored(0, WALK, WALK, WALK)  # to the brink: cells 1, 2, 3
    assert len(explored.archive) == 0
    explored(JUMP, WALK)
    assert list(explored.offer()) == [1]
    explored(WALK)
    assert sorted(explored.offer()) == [1, 2]
    assert explored.archive.progress == 2 * CELL


def test_who_dies_soon_leaves_nothing():
    explored = Explored()
    info = explored(0, *[WALK] * 6)  # into the pit
    assert explored.pool.over.all()
    # Five steps before that, and so not doomed.
    assert list(explored.offer()) == [1]
    assert info["elapsed_step"][0] == 6


def test_who_clears_leaves_everything(monkeypatch):
    monkeypatch.setattr(Corridors, "GOAL", 5)
    explored = Explored()
    explored(0, *[JUMP] * 5)
    assert sorted(explored.offer()) == [1, 2, 3, 4]
    assert explored.archive._entries["proven"].sum() == 4


def test_an_episode_from_a_snapshot_goes_on_with_its_progress():
    explored = Explored()
    explored(0, *[JUMP] * 12)
    _, weights, snapshots = explored.archive.offer(np.ones(1))
    assert len(weights) == 8
    explored.pool.set_starts(np.append(0.0, weights), snapshots)
    explored.pool.over[:] = True
    info = explored(0)
    begun = info["x_pos"][0] // CELL
    assert info["start"][0] > 0
    assert begun > 0
    explored(*[JUMP] * 14)
    assert explored.archive.progress == CELL * (begun + 10)


def test_uncertain_outcomes_come_first(monkeypatch):
    monkeypatch.setattr(Archive, "SCREEN", 0)  # no edge
    explored = Explored()
    explored(0, *[JUMP] * 6)
    weights = explored.offer(share=0.5)
    assert list(weights.values()) == pytest.approx([0.1] * 5)
    for times, got_on in enumerate([1, 1, 0, 0, 1, 0, 1, 0]):
        # Cells 1 and 2 are always passed, from 3 one gets on at times, 4 is a trap.
        outcome = np.array([True, True, got_on, False])
        explored.counts.add_outcomes(np.arange(1, 5), outcome)
        assert explored.counts.passed[1] <= times + 1
    weights = explored.offer(share=0.5)
    assert weights[5] > weights[3] > 2 * weights[1]  # of 5 nothing is known
    assert weights[1] == weights[2] == pytest.approx(weights[4])
    assert sum(weights.values()) == pytest.approx(0.5)


def test_the_edge_is_tried_until_somebody_gets_on(monkeypatch):
    monkeypatch.setattr(Archive, "SCREEN", 2 * CELL)
    explored = Explored()
    explored(0, *[JUMP] * 5, *[0] * 55)
    explored.archive._entries["failed"] = 0.0  # no bottlenecks
    cells = np.arange(1, 6)
    for _ in range(30):
        # From 1 one always gets on; 2 and 3 are traps; 4 and 5 are the edge.
        explored.counts.add_outcomes(
            cells, np.array([True, False, False, False, False])
        )
    weights = explored.offer()
    assert weights[4] == weights[5] > 10 * max(weights[1], weights[2])
    for _ in range(200):
        explored.counts.add_outcomes(cells, np.array([True, False, False, True, True]))
    weights = explored.offer()
    assert weights[5] < 3 * weights[1]


def test_half_is_for_where_one_fails_from_the_start_though_one_can_get_on():
    explored = Explored()
    explored(0, *[JUMP] * 29, JUMP)  # to the flag: all are proven
    archive = explored.archive
    assert not archive._entries["failed"].any()
    for _ in range(60):  # from the start, no jump over the pit at 3
        explored(0, *[WALK] * 6)
    archive._entries["proven"][archive._slots[1]] = 0
    for _ in range(2):
        weights = explored.offer()
        others = {cell: weights[cell] for cell in weights if cell not in (2, 3)}
        assert weights[2] + weights[3] > 0.5
        assert sum(others.values()) == pytest.approx(0.5, abs=0.02)
        # It is not known whether one can from 1; at 5, where one can, nobody fails.
        assert weights[1] < 0.01 < weights[5]
        # Those from snapshots have learned it, which helps none from the start.
        for _ in range(200):
            explored.counts.add_outcomes(np.array([2, 3]), np.ones(2, bool))


def begin_at(explored, cell):
    """The next episodes begin at the snapshot of a cell."""
    cells = list(explored.offer())
    _, _, snapshots = explored.archive.offer(np.ones(1))
    explored.pool.set_starts(np.append(0.0, np.array(cells) == cell), snapshots)
    explored.pool.over[:] = True


def test_failures_of_those_from_snapshots_make_no_bottleneck():
    explored = Explored()
    explored(0, *[JUMP] * 12)
    begin_at(explored, 2)
    explored(0, *[WALK] * 4)
    assert explored.pool.over.all()
    assert explored.counts.passed[2] == 1.0  # the first episode goes on for ever
    assert not explored.archive._entries["failed"].any()


def test_failures_are_forgotten_and_keep_their_cell():
    explored = Explored()
    explored(0, *[JUMP] * 12)
    explored.pool.over[:] = True
    archive = explored.archive
    for _ in range(200):
        explored(0, *[WALK] * 6)
    slot = archive._slots[2]
    known = archive._entries["failed"][slot]
    assert known == pytest.approx(1 / (1 - DECAY), rel=0.05)
    archive._add(snapshot_of(archive, slot), proven=True)
    assert archive._entries["failed"][slot] == known
    archive._drop(slot)
    archive._add(snapshot_of(archive, slot, cell=99), proven=True)
    assert archive._entries["failed"][archive._slots[99]] == 0.0


def test_who_gets_on_from_a_snapshot_proves_it():
    explored = Explored()
    explored(0, JUMP, JUMP, *[0] * 58)
    assert explored.pool.over.all()
    proven, slots = explored.archive._entries["proven"], explored.archive._slots
    for jumps, expected in ((2, [0, 0]), (6, [0, 1])):
        begin_at(explored, 2)
        explored(0, *[JUMP] * jumps, *[0] * (60 - jumps))
        assert explored.pool.over.all()
        assert [proven[slots[cell]] for cell in (1, 2)] == expected


class Lives(Corridors):
    """A lost life does not end an episode."""

    life = 2

    def recv(self):
        *results, info = super().recv()
        info["life"][:] = self.life
        return *results, info


def test_another_life_proves_nothing():
    explored = Explored(levels=(), pool=Lives)
    explored(0, JUMP, JUMP)
    explored.pool.life = 1
    explored(*[JUMP] * 10)
    assert sorted(explored.offer()) == [3, 4, 5, 6, 7, 8]


def test_who_waits_at_the_edge_joins_in_the_end_if_he_lived():
    explored = Explored()
    explored(0, JUMP, JUMP, *[0] * 57)
    assert not explored.offer()
    explored(0)
    assert explored.pool.over.all()
    assert sorted(explored.offer()) == [1, 2]
    assert not explored.archive._entries["proven"].any()
    explored(0, *[JUMP] * 6)  # another time one gets on from them
    assert explored.archive._entries["proven"].sum() == 2


def test_who_gets_a_screen_further_has_got_on(monkeypatch):
    monkeypatch.setattr(Archive, "SCREEN", 4 * CELL)
    explored = Explored()
    explored(0, *[JUMP] * 6, *[0] * 54)  # to cell 6, and waits
    assert explored.pool.over.all()
    assert explored.counts.passed[:7].tolist() == [1.0] * 7
    assert explored.counts.advanced[:7].tolist() == [1.0] * 3 + [0.0] * 4


def test_who_clears_has_got_on_from_everywhere(monkeypatch):
    monkeypatch.setattr(Corridors, "GOAL", 5)
    explored = Explored()
    explored(0, *[JUMP] * 5)
    assert explored.counts.advanced[:6].tolist() == [1.0] * 6


def test_late_outcomes_count_more():
    counts = CellCounts(1)
    cells = np.zeros(1, np.int64)
    for got_on in (True, False):
        for _ in range(200):
            counts.add_outcomes(cells, np.array([got_on]))
    assert counts.advanced[0] < 0.05 * counts.passed[0]
    assert counts.passed[0] == pytest.approx(50, rel=0.05)


def test_no_more_is_offered_than_wanted_and_the_share_stays(monkeypatch):
    monkeypatch.setattr(frontier, "_OFFERED", 3)
    monkeypatch.setattr(frontier, "_OFFERED_PER_STAGE", 2)
    monkeypatch.setattr(Archive, "SCREEN", 0)
    explored = Explored()
    explored(0, *[JUMP] * 12)
    explored.counts.passed[:6] = 100
    weights = explored.offer(share=0.25)
    assert sorted(weights) == [6, 7, 8]
    assert sum(weights.values()) == pytest.approx(0.25)


def test_a_used_snapshot_gives_way(monkeypatch):
    monkeypatch.setattr(frontier, "_USES", 1)
    explored = Explored()
    explored(0, *[JUMP] * 12)
    before = explored.frontier.state()["snapshots"]
    again = [0, 0, *[JUMP] * 12]  # slower: less time left, so only what is used
    explored.pool.over[:] = True
    explored(*again)
    after = explored.frontier.state()["snapshots"]
    assert (before == after[: len(before)]).all()
    explored.archive._entries["uses"][:] = 1
    explored.pool.over[:] = True
    explored(*again)
    after = explored.frontier.state()["snapshots"]
    assert (before != after[: len(before)]).any(1).all()


def snapshot_of(archive, slot, **changes):
    """What waits, as the one in a slot of the archive."""
    names = ("cell", "stage", "progress", "clock")
    about = {name: int(archive._entries[name][slot]) for name in names} | changes
    snapshot = archive._snapshots[slot].copy()
    return Candidate(**about, snapshot=snapshot)


def test_a_short_cut_is_no_less_far():
    explored = Explored()
    explored(0, *[JUMP] * 12)
    archive = explored.archive
    slot = int(archive._used()[3])
    known = int(archive._entries["progress"][slot])
    for progress in (known - 10, known + 10):
        archive._add(snapshot_of(archive, slot, progress=progress), proven=True)
        assert archive._entries["progress"][slot] == max(known, progress)


def test_who_is_thrown_back_is_no_further_than_he_stands():
    explored = Explored()
    explored(0)
    explored.pool.cell[0] = 8
    explored(JUMP)
    explored.pool.cell[0] = 3
    explored(*[JUMP] * 9)  # cells 4 to 12, no further than what had been reached
    assert len(explored.archive) == 0
    explored(JUMP)
    progress = dict.fromkeys(explored.archive._slots, 0)
    for cell, slot in explored.archive._slots.items():
        progress[cell] = int(explored.archive._entries["progress"][slot])
    assert sorted(progress.values()) == [CELL * cell for cell in range(4, 10)]


class Growing(Corridors):
    """Mario grows in the first rows, and has no best position until he has grown."""

    def recv(self):
        *results, info = super().recv()
        info["best_x"][info["elapsed_step"] < 3] = 0
        return *results, info


def test_who_is_not_in_control_at_first_is_no_further():
    explored = Explored(pool=Growing)
    explored(0, *[JUMP] * 12)
    archive = explored.archive
    _, weights, snapshots = archive.offer(np.ones(1))
    explored.pool.set_starts(np.append(0.0, weights), snapshots)
    explored.pool.over[:] = True
    explored(0, *[JUMP] * 12)
    fake = Corridors(1, 1)
    for slot in archive._used():
        fake.restore(np.zeros(1, np.int32), archive._snapshots[slot][None])
        assert archive._entries["progress"][slot] == CELL * fake.cell[0]


def test_who_warps_says_nothing_of_the_other_level():
    explored = Explored(levels=("1-1", "4-2"), pool=TwoLevels)
    archive, pool = explored.archive, explored.pool
    explored(0, *[JUMP] * 12)
    failed, slots = archive._entries["failed"], archive._used()
    failed[slots] = 7.0
    here = int(pool.level[0])
    pool.set_starts(np.eye(2)[1 - here])
    pool.over[:] = True
    explored(0)
    pool.level[0] = here
    explored(*[WALK] * 6)
    assert pool.over.all()
    assert explored.counts.passed[1] == 1.0
    assert (failed[slots] == 7.0).all()


def test_another_level_is_not_kept():
    """Nobody knows how far from its start a warp zone leads."""
    explored = Explored(levels=("1-1", "4-2"), pool=TwoLevels)
    explored(0, JUMP, JUMP)
    here = int(explored.pool.level[0])
    explored.pool.level[0] = 1 - here
    explored(*[JUMP] * 12)
    archive = explored.archive
    assert len(archive) == 2
    assert (archive._entries["stage"][archive._used()] == here).all()


def test_who_began_before_the_offer_changed_knows_where():
    explored = Explored()
    explored(0, *[JUMP] * 12)
    archive = explored.archive
    slot = int(archive._used()[3])
    cell, progress = (int(archive._entries[n][slot]) for n in ("cell", "progress"))
    assert progress
    explored.offer()
    archive._drop(slot)
    explored.offer()
    assert archive.begin(cell)[1] == progress
    explored.offer()  # by now nobody can begin there
    assert archive.begin(cell) == (-1, 0)


def test_who_began_two_offers_ago_is_about_where_the_archive_says():
    """In async mode several batches may begin while an environment is reset."""
    explored = Explored()
    explored(0, *[JUMP] * 12)
    archive = explored.archive
    slot = int(archive._used()[3])
    cell, progress = (int(archive._entries[n][slot]) for n in ("cell", "progress"))
    archive._offered = archive._offered_before = {}
    number, known = archive.begin(cell)
    assert known == progress > 0
    # What becomes of it is not noted: the snapshot may be another one.
    archive.end(cell, number, lived=True)
    assert archive._entries["uses"][slot] == archive._entries["ended"][slot] == 0


@pytest.mark.parametrize("replaced", ["never", "before", "meanwhile"])
def test_a_new_snapshot_is_not_judged_by_episodes_of_the_old_one(replaced):
    explored = Explored()
    explored(0, *[JUMP] * 12)
    archive = explored.archive
    slot = int(archive._used()[3])
    cell = int(archive._entries["cell"][slot])
    explored.offer()
    if replaced == "before":
        archive._add(snapshot_of(archive, slot), proven=False)
    number, _ = archive.begin(cell)
    if replaced == "meanwhile":
        archive._add(snapshot_of(archive, slot), proven=False)
    archive.prove(cell, number)
    archive.end(cell, number, lived=False)
    known = archive._entries[slot]
    assert (known["uses"], known["ended"]) == (
        (1, 1) if replaced == "never" else (0, 0)
    )
    assert known["proven"] == (replaced == "never")


def test_the_better_of_two_that_wait_stays():
    explored = Explored()
    explored(0, *[JUMP] * 12)
    archive = explored.archive
    slot = int(archive._used()[3])
    for clock, proven in ((500, True), (499, True), (501, False)):
        archive.take(snapshot_of(archive, slot, clock=clock), proven=proven)
    assert archive._entries["clock"][slot] == 500
    archive._entries["proven"][slot] = 0
    for clock, proven in ((501, False), (499, True)):
        archive.take(snapshot_of(archive, slot, clock=clock), proven=proven)
        assert archive._entries["clock"][slot] == clock


def test_ranks_within_groups():
    groups = np.array([7, 2, 7, 7, 2])
    assert frontier._ranks(groups).tolist() == [0, 0, 1, 2, 1]


def test_no_level_is_left_without_an_offer(monkeypatch):
    """The more cells a level has, the less is each of them worth beside others'."""
    monkeypatch.setattr(frontier, "_OFFERED", 4)
    monkeypatch.setattr(frontier, "_OFFERED_PER_STAGE", 2)
    explored = Explored(levels=("1-1", "4-2"))
    for cell in range(14):
        enter(explored.counts, [0], [cell])
        stage, blob = int(cell >= 10), np.zeros(3, np.uint8)
        new = Candidate(cell, stage, 0, 400, blob)
        explored.archive._add(new, proven=True)
    stages, weights, _ = explored.archive.offer(np.array([0.3, 0.1]))
    assert np.bincount(stages).tolist() == [2, 2]
    assert np.bincount(stages, weights).tolist() == pytest.approx([0.3, 0.1])


def test_more_time_left_is_better():
    explored = Explored()
    explored(0, 0, 0, 0, *[JUMP] * 12)
    slow = explored.archive._entries["clock"].max()
    explored.pool.over[:] = True
    explored(0, *[JUMP] * 12)
    assert explored.archive._entries["clock"].max() == slow + 3


@pytest.mark.parametrize("proven", [False, True])
def test_a_start_from_which_nobody_lives_is_given_up(monkeypatch, proven):
    monkeypatch.setattr(frontier, "_HOPELESS", 3)
    explored = Explored()
    explored(0, *[JUMP] * 7)
    assert 3 in explored.offer()
    explored.archive._entries["proven"] = proven
    _, _, snapshots = explored.archive.offer(np.ones(1))
    brink = list(explored.offer()).index(3)
    weights = np.zeros(1 + len(snapshots))
    weights[1 + brink] = 1.0
    explored.pool.set_starts(weights, snapshots)
    for left in (True, True, False):
        explored.pool.over[:] = True
        explored(0, WALK, WALK, WALK)
        assert (3 in explored.offer()) == (left or proven)
    assert 2 in explored.offer()


def test_a_full_archive_makes_room_for_some(monkeypatch):
    monkeypatch.setattr(frontier, "_CAPACITY", 2)
    monkeypatch.setattr(frontier, "_CAPACITY_PER_STAGE", 6)
    monkeypatch.setattr(frontier, "_ROOM_SHARE", 2)
    monkeypatch.setattr(Archive, "SCREEN", 0)
    explored = Explored()
    explored(0, *[JUMP] * 7)
    assert len(explored.archive) == 6
    explored.counts.passed[[2, 3, 5]] = 100
    explored(JUMP)
    assert sorted(explored.offer()) == [1, 4, 6, 7]


def test_a_full_archive_forgets_what_is_worth_least(monkeypatch):
    monkeypatch.setattr(frontier, "_CAPACITY", 2)
    monkeypatch.setattr(frontier, "_CAPACITY_PER_STAGE", 4)
    monkeypatch.setattr(Archive, "SCREEN", 0)
    explored = Explored()
    explored(0, *[JUMP] * 5)
    assert sorted(explored.offer()) == [1, 2, 3, 4]
    explored.counts.passed[2] = 100
    explored(JUMP)
    assert sorted(explored.offer()) == [1, 3, 4, 5]


def test_levels_share_by_their_own_weights():
    explored = Explored(8, TwoLevels.STAGES, TwoLevels)
    explored(0, *[JUMP] * 8)
    stages, weights, _ = explored.archive.offer(np.array([0.1, 0.3]))
    assert np.bincount(stages, weights).tolist() == pytest.approx([0.1, 0.3])
    stages, weights, _ = explored.archive.offer(np.array([0.0, 0.3]))
    assert np.bincount(stages, weights, 2).tolist() == pytest.approx([0.0, 0.3])


def test_levels_that_are_not_played_are_not_kept():
    explored = Explored(levels=("4-2",))  # the fake's is 1-1
    explored(0, *[JUMP] * 8)
    assert len(explored.archive) == 0
    whole_game = Explored(levels=())
    whole_game(0, *[JUMP] * 8)
    assert len(whole_game.archive) == 4


def test_clears_from_snapshots_are_counted_by_stage():
    explored = Explored(8, TwoLevels.STAGES, TwoLevels)
    archive = explored.archive
    explored(0, *[JUMP] * 29, JUMP)  # from the start: that is another rate
    assert explored.pool.over.all()
    assert not archive.clear_rates.any()
    stages, _, snapshots = archive.offer(np.ones(2))
    from_second = np.append([0.0, 0.0], stages == 1)
    explored.pool.set_starts(from_second, snapshots)
    for action, clears in ((JUMP, True), (0, False)):
        before = archive.clear_rates.copy()
        explored(0, *[action] * 60)
        assert archive.clear_rates[0] == 0.0
        assert (archive.clear_rates[1] > before[1]) == clears
    other = Explored(8, TwoLevels.STAGES, TwoLevels)
    other.frontier.restore(explored.frontier.state(), going_on=False)
    assert (other.archive.clear_rates == archive.clear_rates).all()


@pytest.mark.parametrize("going_on", [True, False])
def test_a_frontier_goes_on(going_on):
    explored, other = Explored(2), Explored(2)
    explored(0, *[JUMP] * 9)
    other.frontier.restore(explored.frontier.state(), going_on=going_on)
    other.counts.restore(explored.counts.state(), going_on=going_on)
    other.episodes.restore(explored.episodes.state())
    blobs = explored.pool.snapshot(explored.pool.all_env_ids)
    other.pool.restore(other.pool.all_env_ids, blobs)
    other.pool.recv()
    assert other.offer() == explored.offer()
    explored(*[JUMP] * 4)
    other(*[JUMP] * 4)
    # What had not been confirmed is only known where the episodes go on.
    assert (sorted(other.offer()) == sorted(explored.offer())) == going_on


def test_refused_snapshots_change_nothing():
    explored, other = Explored(), Explored()
    explored(0, *[JUMP] * 9)
    other.pool.refuses = True
    with pytest.raises(ValueError, match="refused"):
        other.frontier.restore(explored.frontier.state(), going_on=True)
    assert len(other.archive) == 0
