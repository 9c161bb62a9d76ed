"""Videos: files that play, panels that fit, episodes played again exactly."""

import json
import re
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import change, full_disk

from mario_envpool import nes
from trainer.config.plain import to_dict
from trainer.config.schema import EnvConfig, LearnerConfig, ModelConfig, RunConfig
from trainer.envs.pool import make_pool
from trainer.film import draw
from trainer.film import record as record_module
from trainer.film.draw import (
    ACCENT,
    BACKGROUND,
    ENDINGS,
    Camera,
    Panel,
    VideoWriter,
    controller,
    enlarge,
    gif_palette,
)
from trainer.film.filmed_env import FilmedEnv, Reading, Shot, button_names, game_config
from trainer.film.record import BEST, INDEX, Filmer, Recorder, Recording, replay
from trainer.models import build_model, checkpoint
from trainer.rollout.episodes import Episode, OpenEpisodes
from trainer.rollout.finished import FinishedEpisodes
from trainer.session.training import run_training
from trainer.video import HEADER_HEIGHT, Grid, best_columns, main, tint


def read(path):
    """What ffmpeg says of a video, and its pictures."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo"]
    command += ["-pix_fmt", "rgb24", "-fps_mode", "passthrough", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    stream = next(x for x in done.stderr.decode().splitlines() if "Video:" in x)
    width, height = map(int, re.search(r", (\d+)x(\d+)", stream).groups())
    meta = {
        "codec": re.search(r"Video: (\w+)", stream)[1],
        "pix_fmt": re.search(r", (yuv\w+)", stream)[1],
        "fps": float(re.search(r"([\d.]+) fps", stream)[1]),
        "size": (width, height),
    }
    return meta, np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


def stripes(number, height=48, width=64):
    """A picture of its own for every number: a bar that moves."""
    picture = np.full((height, width, 3), 30, np.uint8)
    picture[:, 4 * number : 4 * number + 8] = (230, 180, 40)
    return picture


# Encoding.


def test_an_mp4_plays_everywhere_and_has_every_picture(tmp_path):
    path = tmp_path / "new" / "a.mp4"
    with VideoWriter(path, size=(64, 48), fps=60.0988) as writer:
        for number in range(10):
            writer.write(stripes(number))
        assert not path.exists(), "only whole files appear"
    meta, pictures = read(path)
    assert meta["codec"] == "h264"
    assert meta["pix_fmt"].startswith("yuv420p")
    assert meta["size"] == (64, 48)
    assert meta["fps"] == pytest.approx(60.1, abs=0.05)
    assert len(pictures) == 10
    for number, picture in enumerate(pictures):
        assert np.abs(picture.astype(int) - stripes(number)).mean() < 6
    assert [p.name for p in path.parent.iterdir()] == ["a.mp4"]


def test_a_gif_has_the_exact_colours(tmp_path):
    path = tmp_path / "a.gif"
    colours = gif_palette().reshape(-1, 3)
    pictures = [
        np.resize(np.roll(colours[:64], k, axis=0), (33, 65, 3)) for k in range(5)
    ]
    with VideoWriter(path, size=(65, 33), fps=20) as writer:
        for picture in pictures:
            writer.write(picture)
    with Image.open(path) as image:
        assert (image.size, image.n_frames) == ((65, 33), 5)
        assert image.info["duration"] == 50
        assert image.info["loop"] == 0  # for ever
        for number, picture in enumerate(pictures):
            image.seek(number)
            np.testing.assert_array_equal(np.asarray(image.convert("RGB")), picture)


def test_a_failure_leaves_no_file(tmp_path):
    def fail():
        with VideoWriter(tmp_path / "a.mp4", size=(64, 48), fps=30) as writer:
            writer.write(stripes(1))
            raise KeyError("other")

    with pytest.raises(KeyError, match="other"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_ffmpeg_says_is_told(tmp_path, monkeypatch):
    """On a full disk, for instance; here it has no such encoder."""
    monkeypatch.setattr(draw, "_MP4", ("-c:v", "none-such"))

    def write(pictures):
        with VideoWriter(tmp_path / "a.mp4", size=(640, 480), fps=30) as writer:
            for _ in range(pictures):
                writer.write(stripes(0, 480, 640))

    for pictures in (0, 1, 100):  # told at the end, or when the pipe breaks
        with pytest.raises(OSError, match=r"ffmpeg could not write .*a\.mp4: .+"):
            write(pictures)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_by_a_folder(tmp_path):
    (tmp_path / "a.mp4").mkdir()
    with (
        pytest.raises(IsADirectoryError),
        VideoWriter(tmp_path / "a.mp4", size=(64, 48), fps=30) as writer,
    ):
        writer.write(stripes(0))
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_without_ffmpeg(tmp_path, monkeypatch):
    def missing():
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", missing)
    with pytest.raises(OSError, match="; imageio-ffmpeg includes one"):
        VideoWriter(tmp_path / "a.mp4", size=(64, 48), fps=30)


@pytest.mark.parametrize("kind", ["missing", "not a program"])
def test_an_ffmpeg_that_cannot_be_started(tmp_path, monkeypatch, kind):
    path = tmp_path / "ffmpeg"
    if kind != "missing":
        path.write_text("")
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(path))
    with pytest.raises(
        OSError, match=f"cannot start ffmpeg .*{path}.*IMAGEIO_FFMPEG_EXE"
    ):
        VideoWriter(tmp_path / "a.mp4", size=(64, 48), fps=30)


def test_wrong_pictures_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.mp4 or \.gif"):
        VideoWriter(tmp_path / "a.webm", size=(64, 48), fps=30)
    with pytest.raises(ValueError, match="even width and height, got 63 x 48"):
        VideoWriter(tmp_path / "a.mp4", size=(63, 48), fps=30)
    writer = VideoWriter(tmp_path / "a.mp4", size=(64, 48), fps=30)
    with pytest.raises(ValueError, match=r"uint8 \(48, 64, 3\), got uint8 \(64, 48"):
        writer.write(stripes(0, 64, 48))
    writer.abort()


# Drawing.


NAMES = [button_names(b) for b in (0, 128, 129, 130, 131, 1, 64, 65, 66, 67, 32, 16)]
READING = Reading(
    level="8-4", caption="trained 100,000,000 steps", buttons=131, names=NAMES,
    action=4,
    probabilities=np.eye(12, dtype=np.float32)[4], value=-123.45, total=-123.45,
    step=12345, x=65535, obs=np.full((4, 84, 84), 200, np.uint8),
)  # fmt: skip


def test_button_names():
    assert button_names(0) == "none"
    assert button_names(nes.RIGHT | nes.A | nes.B) == "right A B"
    assert button_names(nes.LEFT) == "left"


@pytest.mark.parametrize("scale", [1, 2, 3])
@pytest.mark.parametrize("ending", ["", *ENDINGS])
def test_nothing_in_the_panel_is_cut_off(scale, ending):
    picture = Panel(scale).draw(replace(READING, ending=ending))
    assert picture.shape == (240 * scale, 128 * scale, 3)
    margin = 4 * scale
    for edge in (
        picture[:margin],
        picture[-margin:],
        picture[:, :margin],
        picture[:, -margin:],
    ):
        assert (edge == BACKGROUND).all()
    assert (picture == ENDINGS[ending]).all(-1).any() if ending else True


@pytest.mark.parametrize(
    "change",
    [
        {"level": "1-1"}, {"caption": "7 steps"}, {"buttons": 0}, {"action": 3},
        {"probabilities": np.full(12, 1 / 12, np.float32)}, {"value": 1.0},
        {"total": 2.0}, {"step": 3}, {"x": 4}, {"obs": None}, {"ending": "died"},
        {"probabilities": None}, {"value": None},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_the_panel_shows(change):
    panel = Panel(2)
    assert (panel.draw(READING) != panel.draw(replace(READING, **change))).any()


def test_bars_are_as_long_as_the_odds():
    def lit(chance):
        odds = np.full(12, (1 - chance) / 11, np.float32)
        odds[4] = chance
        picture = Panel(2).draw(replace(READING, probabilities=odds, buttons=0))
        rows = (picture == ACCENT).all(-1)[:, 100:212].sum(1)
        return rows.max()

    assert lit(0.5) == pytest.approx(lit(1.0) / 2, abs=2)
    assert lit(0.0) < 10


def test_of_many_actions_the_likeliest_are_shown():
    odds = np.full(256, 0.5 / 255, np.float32)
    odds[200] = 0.5
    names = [button_names(b) for b in range(256)]
    reading = replace(READING, names=names, probabilities=odds, action=200)
    assert Panel(2).draw(reading).shape == (480, 256, 3)


def test_pressed_buttons_are_lit():
    def lit(buttons):
        return (np.asarray(controller(buttons, 2)) == ACCENT).all(-1)

    assert not lit(0).any()
    counts = {b: lit(b).sum() for b in (nes.A, nes.B, nes.LEFT, nes.RIGHT, nes.UP)}
    assert min(counts.values()) > 100
    both = lit(nes.A | nes.LEFT)
    np.testing.assert_array_equal(both, lit(nes.A) | lit(nes.LEFT))


def test_the_camera_scales_and_thins():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (6, 240, 256, 3)).astype(np.uint8)
    camera = Camera(scale=2, every=4)
    pictures = list(camera.develop(Shot(frames, READING)))
    pictures += camera.develop(Shot(frames[:3], READING))
    assert camera.size == (768, 480)
    assert camera.fps == pytest.approx(60.0988 / 4)
    assert len(pictures) == 3  # of frames 0, 4, 8
    np.testing.assert_array_equal(pictures[1][:, :512], enlarge(frames[4], 2))
    np.testing.assert_array_equal(pictures[2][:, 512:], Panel(2).draw(READING))
    (plain,) = Camera(scale=1, overlay=False).develop(Shot(frames[:1], READING))
    np.testing.assert_array_equal(plain, frames[0])


def test_a_grid_has_a_place_for_each_level():
    grid = Grid(3, columns=2, scale=1)
    assert grid.canvas.shape == (*grid.size[::-1], 3)
    assert [side % 2 for side in grid.size] == [0, 0]
    frame = np.full((240, 256, 3), 77, np.uint8)
    before, (width, height) = grid.canvas.copy(), grid.size
    grid.show(2, frame, "1-3", "")
    changed = (grid.canvas != before).any(-1)
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    assert (len(rows), len(columns)) == (HEADER_HEIGHT + 240, 256)
    assert rows[0] > height // 2
    assert columns[-1] < width // 2
    grid.show(2, frame, "1-3", "died")
    assert (grid.canvas == ENDINGS["died"]).all(-1).any()


def test_tints_keep_the_picture_recognisable():
    picture = np.zeros((2, 2, 3), np.uint8)
    picture[0] = 255
    tinted = tint(picture, "cleared").astype(int)
    assert (tinted[0] > tinted[1]).all()
    assert (tinted[..., 1] > tinted[..., 0]).all()  # green


def test_columns_of_a_grid():
    assert best_columns(32) == 8
    assert [best_columns(n) for n in (1, 2, 4, 6)] == [1, 2, 2, 3]


# Playing again.


ENV = EnvConfig(
    num_envs=6, groups=2, img_height=36, img_width=36, stall_steps=8,
    max_episode_steps=60, repeat_action_probability=0.25,
)  # fmt: skip


def record(env, rows, *, asynchronous=False, wanted=lambda episode: True):
    """Random play of a pool; the recordings that were taken, and its config."""
    taken = []
    pool = make_pool(env, seed=3, asynchronous=asynchronous)
    recorder = Recorder(pool, taken.append, wanted)
    episodes, tracker = OpenEpisodes(env.num_envs), FinishedEpisodes()
    rng = np.random.default_rng(0)
    pool.async_reset()
    for number in range(rows):
        _, reward, terminated, truncated, info = pool.recv()
        columns = episodes.observe(reward, terminated, truncated, info)
        tracker.observe(columns)
        recorder.observe(columns, 10 * number)
        env_id = columns.env_id
        logits = rng.normal(size=(len(env_id), 5)).astype(np.float32)
        actions = rng.choice(5, len(env_id), p=(0.1, 0.2, 0.2, 0.2, 0.3))
        actions = actions.astype(np.int32)
        pool.send(actions, env_id)
        recorder.record(env_id, actions, logits, logits[:, 0])
    pool.recv()
    config = dict(pool.config)
    pool.close()
    return taken, config, tracker


@pytest.mark.rom
@pytest.mark.parametrize("asynchronous", [False, True])
def test_episodes_are_played_again_exactly(asynchronous):
    taken, config, tracker = record(ENV, 300, asynchronous=asynchronous)
    assert len(taken) == tracker.count > 10
    endings = set()
    for recording in taken:
        shots = list(replay(recording, config))  # raises where anything differs
        reading = shots[-1].reading
        assert reading.total == recording.episode.total_reward
        assert reading.step == recording.episode.steps == len(recording.actions)
        steps = shots[: reading.step]
        assert [s.reading.action for s in steps] == recording.actions.tolist()
        np.testing.assert_allclose(
            [s.reading.value for s in steps], recording.values, rtol=1e-6
        )
        for shot in steps:
            assert shot.reading.probabilities.sum() == pytest.approx(1)
        endings.add((reading.ending, reading.step == ENV.max_episode_steps))
    # A death, a stall and the limit of steps. In async mode no two runs play the same.
    if not asynchronous:
        assert endings >= {("died", False), ("stopped", False), ("stopped", True)}


@pytest.mark.rom
def test_a_replay_that_differs_is_noticed():
    taken, config, _ = record(ENV, 100)
    recording = max(taken, key=lambda r: len(r.actions))
    episode = recording.episode._replace(total_reward=99.0)
    with pytest.raises(RuntimeError, match=r"return .* instead of 99\.000"):
        list(replay(recording._replace(episode=episode), config))
    short = [getattr(recording, f)[:-1] for f in ("actions", "logits", "values")]
    cut = recording._replace(actions=short[0], logits=short[1], values=short[2])
    with pytest.raises(RuntimeError, match="did not end after its last action"):
        list(replay(cut, config))
    with pytest.raises(ValueError, match="not a snapshot for an environment with"):
        list(replay(recording, config | {"frame_skip": 4}))


@pytest.mark.rom
def test_episodes_whose_beginning_was_not_seen_are_left_out():
    """After a resumed run, and where they are longer than the arrays."""
    env = replace(ENV, num_envs=1, groups=1)
    taken = []
    pool = make_pool(env, seed=3)
    recorder = Recorder(pool, taken.append, lambda episode: True)
    only, none = np.zeros(1, np.int32), np.zeros(1, bool)
    finished = [(0, Episode(1.0, 5, 40, False))]
    ended = SimpleNamespace(env_id=only, is_first=none, finished=finished)
    begins = SimpleNamespace(env_id=only, is_first=~none, finished=[])
    for _ in range(5):
        recorder.record(only, only, np.zeros((1, 5), np.float32), np.zeros(1))
    recorder.observe(ended, 5)
    assert taken == []
    pool.reset()
    recorder.observe(begins, 5)
    for _ in range(60):
        recorder.record(only, only, np.zeros((1, 5), np.float32), np.zeros(1))
    recorder.observe(ended, 65)
    assert len(taken) == 1
    recorder.record(only, only, np.zeros((1, 5), np.float32), np.zeros(1))
    recorder.observe(ended, 66)
    assert len(taken) == 1
    pool.close()


def test_the_odds_of_a_very_sure_network():
    recording = Recording(
        start=b"",
        actions=np.zeros(2, np.int16),
        logits=np.array([[300, 0, -300], [0, 0, -np.inf]], np.float16),
        values=np.zeros(2, np.float16),
        episode=Episode(0.0, 2, 40, False),
        env=0,
        run_steps=2,
    )
    decisions = record_module._decisions(recording)
    odds = [decision.probabilities.tolist() for decision in decisions]
    assert odds == [[1, 0, 0], [0.5, 0.5, 0]]


POOL = SimpleNamespace(
    all_env_ids=[0],
    config={"max_episode_steps": 9},
    action_space=SimpleNamespace(n=2),
)


@pytest.mark.parametrize(
    "index", ["", "[]", "7", '{"best": 7}', '{"best": {"return": "high"}}', "\0\0"]
)
def test_a_foreign_index_of_videos_is_as_none(tmp_path, index):
    (tmp_path / INDEX).write_text(index)
    filmer = Filmer(POOL, print)
    filmer.open(tmp_path)
    assert filmer.wanted(Episode(-100.0, 5, 40, False))
    filmer.close()


def test_the_index_of_videos_is_whole_or_as_before(tmp_path):
    filmer = Filmer(POOL, print)
    filmer.open(tmp_path)
    none = np.zeros((0, 2))
    episode = Episode(1.0, 5, 40, True)
    first = Recording(b"", none, none, none, episode, env=0, run_steps=7)
    second = first._replace(run_steps=8)
    filmer._note(BEST, tmp_path / "best.mp4", first)
    with full_disk(), pytest.raises(OSError, match="too large"):
        filmer._note(BEST, tmp_path / "best.mp4", second)
    filmer.close()
    assert json.loads((tmp_path / INDEX).read_text())[BEST]["run_steps"] == 7


class Board:
    """A MetricsWriter that only notes videos."""

    def __init__(self):
        self.videos = []

    def write_video(self, step, name, path, gif):
        self.videos.append((step, name, path, gif))


def film(folder, taken, env=ENV, seconds_between=0.0):
    """What a filmer says and shows of some recordings."""
    said, board = [], Board()
    pool = make_pool(replace(env, num_envs=1, groups=1), seed=0)
    filmer = Filmer(pool, said.append, seconds_between=seconds_between)
    filmer.open(folder)
    for recording in taken:
        if filmer.wanted(recording.episode):
            filmer.take(recording)
    filmer.finish(board.write_video)
    filmer.close()
    pool.close()
    return said, board


@pytest.mark.rom
def test_the_best_episode_is_filmed(tmp_path):
    taken, _, _ = record(ENV, 60)
    best = max(taken, key=lambda r: r.episode.total_reward)
    said, board = film(tmp_path, taken)
    step, name, path, gif = board.videos[-1]
    assert (step, name, path) == (best.run_steps, BEST, tmp_path / "best.mp4")
    assert gif.startswith(b"GIF89a")
    meta, pictures = read(path)
    assert meta["size"] == (768, 480)
    assert meta["fps"] == pytest.approx(30.05, abs=0.05)
    assert len(pictures) >= 6 * (best.episode.steps - 1) / 2
    assert f"filmed {path} (return {best.episode.total_reward:.2f}" in said[-1]
    known = json.loads((tmp_path / INDEX).read_text())
    assert known[BEST]["return"] == best.episode.total_reward
    assert known[BEST]["run_steps"] == best.run_steps
    # A resumed run continues from it: the same episode is not better.
    said, board = film(tmp_path, taken)
    assert (said, board.videos) == ([], [])


@pytest.mark.rom
def test_what_goes_wrong_is_said_once(tmp_path):
    taken, _, _ = record(ENV, 60)
    (tmp_path / "videos").write_text("no folder")
    said, board = film(tmp_path / "videos", taken)
    problems = [
        text for text in said if text.startswith("filming stopped, the run continues")
    ]
    assert len(problems) == 1
    assert board.videos == []


@pytest.mark.rom
def test_what_waits_is_filmed_at_the_end(tmp_path):
    taken, _, _ = record(ENV, 60)
    said, board = film(tmp_path, taken, seconds_between=1e6)
    assert said[0] == "filming the remaining episodes (a few seconds)"
    assert len(board.videos) == len(said) - 1 >= 1


@pytest.mark.slow
@pytest.mark.rom
def test_videos_change_no_weights(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    weights = []
    for videos in (False, True):
        config = RunConfig(
            device="cpu", precision="fp32", run_dir=tmp_path / str(videos),
            log_seconds=100.0, max_steps=640, stop_when_solved=False, videos=videos,
            env=replace(ENV, num_envs=4),
            learner=LearnerConfig(
                unroll=4, unrolls_per_batch=4, minibatch_size=16, epochs=1
            ),
        )  # fmt: skip
        run_training(config)
        model = checkpoint.load(config.run_dir, torch.device("cpu"))["model"]
        weights.append(torch.cat([w.flatten() for w in model.values()]))
    assert torch.equal(*weights)
    assert not (tmp_path / "False" / "videos").exists()
    assert read(tmp_path / "True" / "videos" / "best.mp4")[0]["size"] == (768, 480)
    events = EventAccumulator(str(tmp_path / "True")).Reload()
    image = events.Images("videos/best")[0]
    assert image.encoded_image_string.startswith(b"GIF89a")
    assert (image.width, image.height) == (256, 240)


# The command.


@pytest.fixture
def run_dir(tmp_path):
    """A run whose policy presses right A B nearly always."""
    env = EnvConfig(num_envs=4, groups=2, img_height=36, img_width=36)
    config = change(RunConfig(precision="fp32"), env=env)
    model = build_model(ModelConfig(), (4, 36, 36), 5)
    with torch.no_grad():
        model.head.policy.bias[4] = 9.0
    state = {"config": to_dict(config), "model": model.state_dict(), "steps": 4321}
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    checkpoint.save(folder / "checkpoints" / "step-000004321.pt", state)
    return folder


def command(*words):
    return main(["--device", "cpu", *map(str, words)])


@pytest.mark.rom
def test_the_command_films_an_episode(run_dir, capsys):
    assert command("--checkpoint", run_dir) == 0
    path = run_dir / "videos" / "play.mp4"
    out = capsys.readouterr().out
    assert out.startswith("1-1: died after ")
    assert f"wrote {path} (768 x 480, " in out
    meta, pictures = read(path)
    assert meta["fps"] == pytest.approx(60.1, abs=0.05)
    steps = int(out.split("died after ")[1].split()[0])
    # Every frame of the steps, the fall, and a still.
    assert 6 * (steps - 1) < len(pictures) <= 6 * steps + 150
    first = FilmedEnv(
        game_config(EnvConfig(img_height=36, img_width=36), level="1-1"), seed=1
    ).reset()
    sky = first.frames[0][100, 100]
    assert np.abs(pictures[0][200, 200].astype(int) - sky).max() < 12


@pytest.mark.rom
def test_the_command_without_panel_as_gif_and_several_levels(run_dir, tmp_path, capsys):
    path = tmp_path / "two.gif"
    words = ("--levels", "1-3,8-4", "--no-overlay", "--scale", 1, "--episodes", 2)
    assert command("--checkpoint", run_dir, *words, "--out", path, "--fps", 10) == 0
    out = capsys.readouterr().out
    assert [line[:4] for line in out.splitlines()] == [
        *["1-3:"] * 2,
        *["8-4:"] * 2,
        "wrot",
    ]
    with Image.open(path) as image:
        assert image.size == (256, 240)
        assert image.n_frames > 10
        assert image.info["duration"] == 100


@pytest.mark.rom
def test_what_the_video_does_not_show_is_said(run_dir, tmp_path, capsys):
    words = ("--out", tmp_path / "x.gif", "--episodes", 2, "--max-seconds", 1)
    assert command("--checkpoint", run_dir, *words) == 0
    *episodes, line = capsys.readouterr().out.splitlines()
    assert len(episodes) == 2
    assert re.search(r"\b1\.0 s .*; --max-seconds cuts off the last [\d.]+ s$", line)


@pytest.mark.rom
def test_the_same_seed_is_the_same_video(run_dir, tmp_path):
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        path = tmp_path / f"{name}.gif"
        command("--checkpoint", run_dir, "--out", path, "--fps", 10, "--seed", seed)
        files.append(path.read_bytes())
    assert files[0] == files[1] != files[2]


@pytest.mark.rom
def test_the_command_films_a_grid(run_dir, capsys):
    words = ("--levels", "1-1,1-3,4-1,8-4", "--grid", "--max-seconds", 5)
    assert command("--checkpoint", run_dir, *words) == 0
    out = capsys.readouterr().out
    assert out.startswith("filming 4 levels at once\n")
    assert "of 4 levels cleared" in out
    assert "\n8-4: died after " in out
    meta, pictures = read(run_dir / "videos" / "grid.mp4")
    grid = Grid(4, columns=2, scale=1)
    assert meta["size"] == grid.size
    assert meta["fps"] == pytest.approx(30.05, abs=0.05)
    # The name of the level is above the first game.
    header = pictures[1][grid.GAP : grid.GAP + HEADER_HEIGHT, grid.GAP : 40]
    assert header.max() > 150
    # 8-4 ends within seconds: its tile is red at the end.
    corner = pictures[-1][-20, -20].astype(int)
    assert corner[0] > corner[1] + 40


@pytest.mark.rom
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--level", "9-9"), "there is no level '9-9' in SuperMarioBros-v0; levels"),
        (("--episodes", 0), "episodes must be at least 1, got 0"),
        (("--grid", "--episodes", 2), "a grid shows one episode of each level"),
        (("--out", "a.avi"), "the video a.avi must be MP4 or GIF: give a name that"),
        (("--scale", -1), "scale must be at least 0, got -1"),
        (("--seed", -1), "seed must be 0 to 20000, got -1"),
        (
            ("--out", "/dev/null/a.mp4"),
            "cannot write to the folder /dev/null",
        ),
    ],
)
def test_bad_input_is_one_line(run_dir, capsys, words, message):
    assert command("--checkpoint", run_dir, *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_no_checkpoint_is_one_line(tmp_path, capsys):
    assert command("--checkpoint", tmp_path / "none.pt") == 2
    assert capsys.readouterr().err.startswith("error: no checkpoint at ")


def test_films_are_of_our_own_game():
    with pytest.raises(ValueError, match=r"SuperMarioBros2-v0; levels are 1-1 to 4-4"):
        game_config(EnvConfig(task="SuperMarioBros2-v0"), level="5-1")

    with pytest.raises(ValueError, match="got the task Pong-v5"):
        game_config(EnvConfig(task="Pong-v5"))
