"""Pools without a game: EnvPool's API in NumPy, for tests of the trainer."""

import pickle
from collections import deque
from types import SimpleNamespace

import numpy as np

from trainer.rollout.episodes import OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes

NUM_ACTIONS = 3
SIZE = 36
RESTORED = -1  # in the place of an action
_PLACE = ("area_pointer", "y_pos", "time")  # where an episode ends


def pickle_row(values):
    """Some arrays and numbers as (1024 n,) uint8, of equal length for equal ones."""
    data = pickle.dumps([np.asarray(value) for value in values])
    data += bytes(-len(data) % 1024)
    return np.frombuffer(data, np.uint8)


def unpickle_row(row):
    return pickle.loads(row.tobytes())


class FakePool:
    """Rewards the action whose column of the newest picture is bright.

    In async mode the order of completion is shuffled; in sync mode (batch_size ==
    num_envs) recv answers the oldest request, in its order. Autoreset is next-step,
    every env has its own episode length, every third episode is truncated, and an
    env that was never reset takes any action for a reset.

    Observations are stacks of pictures: a step shifts them by one, and those of an
    episode's first row are four new ones that all differ, as after a restored
    state. The first pixels of a picture say who and when: env, episode, step.
    """

    _STATE = ("step_of", "episode", "over", "good", "stacks")
    STEPS = (5, 1)  # of an episode: of env 0, and how many more of the next
    refuses = False  # snapshots

    def __init__(self, num_envs=6, batch_size=4, seed=0, *, stack=4, steps=None):
        self.num_envs, self.batch_size = num_envs, batch_size
        self.sync = batch_size == num_envs
        self.steps = steps or self.STEPS
        shape = (stack, SIZE, SIZE)
        self.observation_space = SimpleNamespace(shape=shape)
        self.action_space = SimpleNamespace(n=NUM_ACTIONS)
        self.all_env_ids = np.arange(num_envs, dtype=np.int32)
        self.rng = np.random.default_rng(seed)
        self.step_of = np.zeros(num_envs, int)
        self.episode = np.full(num_envs, -1)
        self.over = np.ones(num_envs, bool)
        self.good = np.zeros(num_envs, int)
        self.stacks = np.zeros((num_envs, *shape), np.uint8)
        self.requests = deque()
        self.closed = False
        self.sent = []  # (env, episode, step, action) of actions that counted

    def async_reset(self):
        self.over[:] = True
        self.requests.append([(env, 0) for env in range(self.num_envs)])

    def send(self, action, env_id):
        assert action.dtype == env_id.dtype == np.int32
        assert action.shape == env_id.shape
        waiting = {env for request in self.requests for env, _ in request}
        assert not waiting & set(env_id.tolist()), "an env was sent twice"
        assert ((action >= 0) & (action < NUM_ACTIONS)).all()
        self.requests.append(list(zip(env_id.tolist(), action.tolist(), strict=True)))

    def recv(self):
        rows = self._next_request() if self.sync else self._some_requests()
        results = [self._result(env, action) for env, action in rows]
        reward, terminated, truncated, x_pos, flag = map(
            np.array, zip(*results, strict=True)
        )
        env_id = np.array([env for env, _ in rows], np.int32)
        info = {
            "env_id": env_id,
            "elapsed_step": self.step_of[env_id].astype(np.int32),
            "x_pos": x_pos.astype(np.int32),
            "flag_get": flag.astype(bool),
            "end_reason": (terminated * np.where(flag, 2, 1)).astype(np.int8),
        }
        info |= {name: np.zeros_like(x_pos) for name in _PLACE}
        return (
            self.stacks[env_id],
            reward.astype(np.float32),
            terminated.astype(bool),
            truncated.astype(bool),
            info,
        )

    def _next_request(self):
        assert self.requests, "recv would block for ever"
        return self.requests.popleft()

    def _some_requests(self):
        waiting = [row for request in self.requests for row in request]
        assert len(waiting) >= self.batch_size, "recv would block for ever"
        self.rng.shuffle(waiting)
        self.requests = deque([waiting[self.batch_size :]])
        return waiting[: self.batch_size]

    def snapshot(self, env_id):
        """What `restore` takes: a row of bytes for each env."""
        parts = [getattr(self, name)[env_id] for name in self._STATE]
        return np.stack([pickle_row(row) for row in zip(*parts, strict=True)])

    def restore(self, env_id, blobs, rng="saved"):
        assert rng == "saved"
        if self.refuses:
            raise ValueError("blob 0 is refused: saved by another version")
        for env, blob in zip(env_id.tolist(), blobs, strict=True):
            for name, value in zip(self._STATE, unpickle_row(blob), strict=True):
                getattr(self, name)[env] = value
        self.requests.append([(env, RESTORED) for env in env_id.tolist()])

    def _result(self, env, action):
        if action == RESTORED:  # the row before the snapshot, without its reward
            done = bool(self.over[env])
            return 0.0, done, False, 10 * self.good[env], False
        return self._step(env, action)

    def _step(self, env, action):
        if self.over[env]:
            self.over[env], self.step_of[env], self.good[env] = False, 0, 0
            self.episode[env] += 1
            noise = np.random.default_rng((env, self.episode[env]))
            self.stacks[env] = noise.integers(0, 100, self.stacks[env].shape)
            self.stacks[env, -1] = self._picture(env)
            return 0.0, False, False, 0, False
        where = (env, int(self.episode[env]), int(self.step_of[env]))
        self.sent.append((*where, action))
        right = action == self._answer(env)
        self.good[env] += right
        self.step_of[env] += 1
        self.stacks[env, :-1] = self.stacks[env, 1:]
        self.stacks[env, -1] = self._picture(env)
        over = self.step_of[env] >= self.steps[0] + self.steps[1] * env
        self.over[env] = over
        truncated = over and self.episode[env] % 3 == 2
        cleared = over and self.good[env] == self.step_of[env]
        return (
            float(right),
            over and not truncated,
            truncated,
            10 * self.good[env],
            cleared,
        )

    def _answer(self, env):
        return (7 * env + 3 * self.episode[env] + self.step_of[env]) % NUM_ACTIONS

    def _picture(self, env):
        picture = np.full((SIZE, SIZE), 144, np.uint8)
        column = 12 * self._answer(env)
        picture[:, column : column + 12] = 250
        picture[0, :3] = env, self.episode[env] % 256, self.step_of[env]
        return picture

    def close(self):
        self.closed = True


WALK, JUMP = 1, 2
CELL = 32  # pixels


class Corridors(FakePool):
    """Any action but 0 goes a cell to the right; a pit needs a jump.

    Who walks into the pit falls for `FALL` steps, in cells of its own, and dies. The
    flag is in cell `GOAL`. Levels differ in nothing but their number. Starts are drawn
    with a generator of each episode's own.
    """

    _STATE = (*FakePool._STATE, "level", "cell", "best", "falling", "start")
    PIT, GOAL, FALL = 3, 30, 2
    STAGES = ("1-1",)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_stages = len(self.STAGES)
        for name in self._STATE[-5:]:
            setattr(self, name, np.zeros(self.num_envs, int))
        self.start[:] = -1
        self.starts = None
        self.sets = []  # all that set_starts was given

    def set_starts(self, weights, snapshots=None):
        if self.refuses and snapshots is not None:
            raise ValueError("blob 0 is refused: saved by another version")
        weights = np.asarray(weights, float)
        rows = [] if snapshots is None else [row.copy() for row in snapshots]
        assert weights.shape == (self.num_stages + len(rows),)
        assert (weights >= 0).all()
        assert weights.sum() > 0
        self.starts = (weights / weights.sum(), rows)
        self.sets.append(self.starts)

    def recv(self):
        obs, reward, terminated, truncated, info = super().recv()
        env_id = info["env_id"]
        worlds, stages = np.array([n.split("-") for n in self.STAGES], int).T
        level, falling = self.level[env_id], self.falling[env_id]
        more = {
            "world": worlds[level],
            "stage": stages[level],
            "area_pointer": np.full(len(env_id), 37),
            "x_pos": CELL * self.cell[env_id],
            "best_x": CELL * self.best[env_id],
            "y_pos": 80 - CELL * falling,
            "time": 400 - self.step_of[env_id],
            "loop": np.zeros(len(env_id)),
            "life": np.full(len(env_id), 2),
            "start": self.start[env_id],
        }
        info |= {name: values.astype(np.int32) for name, values in more.items()}
        return obs, reward, terminated, truncated, info

    def _result(self, env, action):
        if action == RESTORED:
            return 0.0, bool(self.over[env]), False, 0, False
        if self.over[env]:
            self._begin(env)
            return 0.0, False, False, 0, False
        super()._step(env, action)  # the picture, and who did what
        self.over[env] = False
        before = self.best[env]
        if self.falling[env] or (self.cell[env] == self.PIT and action != JUMP):
            self.falling[env] += 1
        else:
            self.cell[env] += action != 0
        self.best[env] = max(before, self.cell[env])
        died = self.falling[env] > self.FALL
        cleared = self.cell[env] == self.GOAL
        late = self.step_of[env] == 60
        self.over[env] = died or cleared or late
        return float(self.best[env] - before), died or cleared, late, 0, cleared

    def _begin(self, env):
        super()._step(env, 0)
        weights, snapshots = self.starts or (np.ones(1), [])
        draw = np.random.default_rng((env, self.episode[env], 1))
        start = int(draw.choice(len(weights), p=weights))
        self.start[env] = start if self.starts else -1
        self.level[env], self.cell[env] = min(start, self.num_stages - 1), 0
        self.falling[env] = 0
        if start >= self.num_stages:
            saved = unpickle_row(snapshots[start - self.num_stages])
            kept = dict(zip(self._STATE, saved, strict=True))
            for name in ("stacks", "level", "cell", "falling"):
                getattr(self, name)[env] = kept[name]
        self.best[env] = self.cell[env]


def step(pool, actions):
    """All environments act; gives what recv does."""
    pool.send(np.asarray(actions, np.int32), pool.all_env_ids)
    return pool.recv()


class Followed:
    """Episodes of made-up rows: the record of open ones, and those that finished."""

    def __init__(self, num_envs, *, window=100, levels=(), game=(), num_stages=None):
        self.open = OpenEpisodes(
            num_envs, levels=levels, game=game, num_stages=num_stages
        )
        self.finished = FinishedEpisodes(window, levels=levels, whole_game=bool(game))
        self.step_of = np.full(num_envs, -1)

    def add(self, env_id, reward, done, info):
        """Rows of one recv; counts the steps, as a pool does. Gives their columns."""
        self.step_of[env_id] += 1
        steps = self.step_of[env_id].astype(np.int32)
        info = {"env_id": env_id, "elapsed_step": steps} | info
        columns = self.open.observe(reward, done, np.zeros_like(done), info)
        self.finished.observe(columns)
        self.step_of[env_id[done]] = -1
        return columns

    def statistics(self):
        return self.finished.statistics() | self.open.statistics()
