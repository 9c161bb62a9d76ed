"""The page without Python (web/) in Debian's Chromium: files, games, policies."""

import base64
import contextlib
import functools
import gzip
import hashlib
import http.server
import json
import re
import shutil
import subprocess
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import save_policy

from mario_envpool import _core, rom
from mario_envpool.env import MarioEnv
from trainer.envs.pool import packed
from trainer.models import policy as policies
from trainer.models.native import BEST

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no Playwright: pip install 'mario-envpool[test]'"
)
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "build" / "web"
RELEASED = ROOT / "trainer" / "released"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SEED = 2**30  # of episodes in the page, where Math.random returns 0.25

in_chromium = [
    pytest.mark.rom,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install chromium"),
    pytest.mark.skipif(
        not (PAGE / "index.html").exists(), reason="no page: run web/build.sh"
    ),
]


def browser_test(function):
    for mark in in_chromium:
        function = mark(function)
    return function


@pytest.fixture(scope="module")
def address():
    for name in ("index.html", "play.js"):
        assert (PAGE / name).read_text() == (ROOT / "web" / name).read_text(), (
            "the page is old: run web/build.sh"
        )

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=PAGE)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def open_page(address):
    """Opens pages: no script of theirs fails, they only get files of their folder."""
    problems = []

    def check(request):
        own = request.url.startswith((address, "data:", PAGE.as_uri()))
        if not own or request.method != "GET" or "?" in request.url:
            problems.append((request.method, request.url))

    with playwright.sync_playwright() as driver, contextlib.ExitStack() as stack:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        stack.callback(browser.close)

        def open_one(url=address, **options):
            page = browser.new_page(**options)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("request", check)
            page.goto(url)
            return page

        yield open_one
    assert problems == []


def give(page, name, data):
    """Opens a file in a page."""
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    page.set_input_files("#file", files=[file])


def until(page, expression, seconds=60):
    """Waits for a JavaScript expression; Playwright's own wait needs `eval`."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        said = page.inner_text("#message")
        assert time.monotonic() < end, f"{expression}: {page.evaluate('state')} {said}"
        page.wait_for_timeout(50)


# Plays in the page, which stands still meanwhile. After each of some buttons, or after
# each step of the policy until the end: RAM. Of some frames: the picture's SHA-1.
PLAY = """async ([buttons, level]) => {
  const game = localGame, { core } = game, rams = [], pictures = [];
  const keep = () => rams.push(core.HEAPU8.slice(core._ram(), core._ram() + 2048));
  game.ready = false;
  if (level) {
    Math.random = () => 0.25;
    await game.start(level);
    game.ready = false;
    while (!game.ending) {
      game.advance(0);
      if (game.ending || game.frame % game.skip === 0) keep();
    }
  } else {
    game.make(...buttons.shift());
    core._reset(0);
  }
  for (const [i, byte] of buttons.entries()) {
    core._run_frame(byte, i % 100 === 0);
    keep();
    if (i % 100 === 0) {
      const at = core._picture(), hash =
        await crypto.subtle.digest("SHA-1", core.HEAPU8.slice(at, at + 4 * 256 * 240));
      pictures.push([...new Uint8Array(hash)]);
    }
    game.look();
    if (game.facts.over) core._reset(0);
  }
  const reader = new FileReader();
  reader.readAsDataURL(new Blob(rams));
  await new Promise((done) => { reader.onload = done; });
  const odds = game.decision?.probabilities ?? [];
  return { ram: reader.result.split(",")[1], pictures, odds, ending: game.ending };
}"""


def play(page, *, buttons=(), level=""):
    result = page.evaluate(PLAY, [list(buttons), level])
    ram = np.frombuffer(base64.b64decode(result["ram"]), np.uint8)
    return ram.reshape(-1, 2048), result


@browser_test
def test_ram_and_pictures_of_10_000_frames_equal_the_native_core(open_page):
    page = open_page()
    give(page, "game.nes", rom.load())
    until(page, "state.x > 40")
    random = np.random.default_rng(7)
    for level in ("1-1", "2-2", "4-4", "8-4"):
        buttons = random.integers(256, size=2500)
        # Buttons are held for some frames, and rightwards more often.
        buttons = (np.repeat(buttons[::10], 10) | 128 * (buttons > 80)) & ~8
        ram, result = play(page, buttons=[[level, None], *buttons.tolist()])
        options = {"stages": [level], "frame_skip": 1, "action_set": "raw"}
        env = _core._MarioEnv(rom.load(), options | {"obs_type": "ram"}, 0, 0)
        env.reset()
        for i, byte in enumerate(buttons.tolist()):
            frames, _, over, *_ = env.film(byte)
            assert np.array_equal(ram[i], env.ram), (level, i)
            if i % 100 == 0:
                rgba = np.full((240, 256, 4), 255, np.uint8)
                rgba[..., :3] = frames[0]
                drawn = bytes(result["pictures"][i // 100])
                assert drawn == hashlib.sha1(rgba).digest(), (level, i)
            if over:
                env.reset()


def greedy_episode(file, level):
    """A greedy episode in MarioEnv: RAM after each step, the end, the last odds."""
    policy = policies.load_policy(file)
    env, tiles = policy.env, policy.env.obs == "tiles"
    game = MarioEnv(
        f"SuperMarioBros-{level}-v0",
        obs_type=["tiles", "motion", "ram"] if tiles else ["gray", "ram"],
        frame_skip=env.frame_skip,
        stack_num=env.stack_num,
        img_height=env.img_height or 84,
        img_width=env.img_width or 84,
        hud=env.hud,
        action_set=env.action_set,
        noop_max=env.noop_max,
        stall_steps=env.stall_steps,
    )
    obs, _ = game.reset(seed=SEED)
    rams, over, stopped = [], False, False
    state, first = torch.zeros(1, 0), torch.zeros(1, 1, dtype=torch.bool)
    while not (over or stopped):
        seen = packed(obs["tiles"], obs["motion"]) if tiles else obs["gray"]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            output, _ = policy.model(torch.from_numpy(seen)[None, None], state, first)
        obs, _, over, stopped, info = game.step(int(output.logits.argmax()))
        rams.append(obs["ram"].reshape(-1, 2048)[-1].copy())
    game.close()
    ending = "stopped" if stopped else "cleared" if info["flag_get"] else "died"
    return np.array(rams), ending, output.logits[0, 0].softmax(-1).numpy()


def check_greedy(page, file, level):
    page.set_checked("#greedy", True)
    ram, result = play(page, level=level)
    expected, ending, odds = greedy_episode(file, level)
    assert result["ending"] == ending
    assert np.array_equal(ram, expected)
    assert np.allclose(result["odds"], odds, atol=1e-5)
    return ending, len(ram)


@browser_test
@pytest.mark.skipif(BEST is None, reason="this CPU has no kernels for the encoders")
def test_policies_play_as_in_python(open_page, tmp_path):
    page = open_page()
    give(page, "game.nes", rom.load())
    until(page, "state.x > 40")
    for level in ("1-1", "8-4"):
        ending, _ = check_greedy(page, RELEASED / f"{level}.safetensors", level)
        assert ending == "cleared"
    page.select_option("#choice", "one")
    check_greedy(page, RELEASED / "one.safetensors", "2-2")
    # A policy that sees pictures, from a file.
    torch.manual_seed(3)
    save_policy(tmp_path, 1000, action=None)
    policies.save_policy(tmp_path, tmp_path / "mine.safetensors")
    give(page, "mine.safetensors", (tmp_path / "mine.safetensors").read_bytes())
    until(page, "state.caption === 'trained 1,000 steps'")
    _, steps = check_greedy(page, tmp_path / "mine.safetensors", "1-1")
    assert steps > 20


@browser_test
def test_the_page(open_page):
    page = open_page()
    assert page.is_disabled("#take")
    give(page, "game.nes", rom.load())
    until(page, "state.x > 60")
    assert page.inner_text("#title") == "Level 1-1"
    assert page.locator("#odds .name").all_inner_texts()[1] == "right"
    assert page.locator("#level option").count() == 33
    drawn = page.evaluate("document.getElementById('screen').toDataURL()")
    until(page, f"document.getElementById('screen').toDataURL() !== '{drawn}'")
    # Taking over, rewinding, giving back.
    page.keyboard.press("t")
    until(page, "playing()")
    page.keyboard.down("ArrowLeft")
    until(page, "state.buttons === 64")
    page.keyboard.up("ArrowLeft")
    page.keyboard.press("Space")
    until(page, "state.paused")
    before = page.evaluate("[localGame.clock, state.history]")
    page.keyboard.press("Backspace")
    after = page.evaluate("[localGame.clock, localGame.frame]")
    assert before[0] - 120 < after[0] < before[0] - 59 or after[0] == 0
    page.keyboard.press(".")
    until(page, f"localGame.clock === {after[0]} + 1")
    page.keyboard.press("Space")
    page.keyboard.press("t")
    until(page, f"!playing() && localGame.frame > {after[1]} + 30")
    # An end, and the next level.
    page.select_option("#speed", "8")
    until(page, "state.ending === 'cleared'")
    until(page, "state.level === '1-2'")
    page.select_option("#level", "8-1")
    until(page, "state.level === '8-1' && state.caption.startsWith('trained')")
    # Without a policy.
    page.select_option("#choice", "")
    until(page, "state.player === null && state.levels.length === 32")
    assert page.inner_text("#notice") == "Press “Play” to begin."
    # What it could send, it may not.
    refused = page.evaluate(
        """new Promise((done) => {
          addEventListener("securitypolicyviolation", (event) => done(event.blockedURI));
          fetch("https://example.org/", { method: "POST" }).catch(() => 0);
        })"""
    )
    assert refused == "https://example.org/"
    # A page that was hidden for a minute does not catch up.
    page.select_option("#choice", "own")
    until(page, "localGame.policy && localGame.ready")
    gained = page.evaluate(
        """() => {
          window.requestAnimationFrame = () => 0;
          localGame.speed = 1;
          localGame.tick(localGame.last + 10);
          const { frame } = localGame;
          localGame.tick(localGame.last + 60000);
          return localGame.frame - frame;
        }"""
    )
    assert 0 < gained <= 7


@browser_test
def test_narrow_pages_and_several(open_page):
    one = open_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    other = open_page()
    for page in (one, other):
        give(page, "game.nes", rom.load())
        until(page, "state.x > 40")
    assert one.evaluate("document.documentElement.scrollWidth") <= 390
    one.locator("#take").click()
    until(one, "playing()")
    assert not other.evaluate("playing()")


@browser_test
def test_the_folder_itself_can_be_opened(open_page):
    page = open_page((PAGE / "index.html").as_uri())
    give(page, "game.nes", rom.load())
    until(page, "state.levels && state.levels.length === 32")
    assert "serve the folder (python -m http.server)" in page.inner_text("#message")
    give(page, "1-1.safetensors", (RELEASED / "1-1.safetensors").read_bytes())
    until(page, "state.x > 60")
    assert page.inner_text("#message") == ""


def with_facts(**changes):
    """The file of a released policy with other facts."""
    data = (RELEASED / "1-1.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    facts = json.loads(header["__metadata__"]["policy"])
    for part, values in changes.items():
        facts[part] = facts[part] | values if isinstance(values, dict) else values
    header["__metadata__"]["policy"] = json.dumps(facts)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def bad_files(tmp_path):
    """Name, contents, and what the page says."""
    image = rom.load()
    with zipfile.ZipFile(tmp_path / "rom.zip", "w") as archive:
        archive.writestr("game.nes", image)
    other = image[:5000] + bytes([image[5000] ^ 1]) + image[5001:]
    with contextlib.suppress(rom.RomError):
        yield "lost.nes", rom.load("lost-levels"), "lost.nes is another game"
    yield "empty.nes", b"", "empty.nes is empty"
    yield "rom.zip", (tmp_path / "rom.zip").read_bytes(), "rom.zip is packed: unpack it"
    yield "rom.gz", gzip.compress(image), "rom.gz is packed: unpack it"
    yield (
        "cut.nes",
        image[:30000],
        "cut.nes is cut off: it has 30000 bytes and declares 40976",
    )
    yield (
        "other.nes",
        other,
        "other.nes is another game, or a changed one: this page knows",
    )
    yield "text.nes", b"hello", "text.nes is no ROM file of a NES"
    yield (
        "film.nes",
        bytes(17 << 20),
        "film.nes is too large for a ROM or a policy: it has 18 MB",
    )
    released = (RELEASED / "1-1.safetensors").read_bytes()
    damaged = "is damaged, or no policy's file"
    yield "text.safetensors", b"hello", f"text.safetensors {damaged}"
    yield "cut.safetensors", released[:50000], f"cut.safetensors {damaged}"
    yield (
        "a.safetensors",
        (2).to_bytes(8, "little") + b"{}",
        "a.safetensors is no policy",
    )
    cannot = "which this page cannot run: watch it with python -m trainer.watch"
    for facts, what in (
        ({"model": {"memory": {"kind": "gru"}}}, "a memory"),
        ({"model": {"name": "impala"}}, "the network impala"),
        ({"model": {"layer_norm": True}}, "layer normalisation"),
        ({"model": {"noisy": True}}, "noisy heads"),
        ({"env": {"task": "Pong-v5"}}, "the task Pong-v5"),
        ({"env": {"timing": "nes_py"}}, "timing nes_py"),
        ({"env": {"obs": "pixels"}}, "observations of pixels"),
    ):
        yield (
            "b.safetensors",
            with_facts(**facts),
            f"b.safetensors has {what}, {cannot}",
        )
    shape = (
        "c.safetensors is damaged: head.policy.weight is missing or has another shape"
    )
    yield "c.safetensors", with_facts(env={"action_set": "simple"}), shape
    another = "d.safetensors is a policy for another ROM (World revision)"
    yield "d.safetensors", with_facts(rom_sha1=rom.SHA1["world"]), another


@browser_test
def test_bad_files_get_one_line_and_the_game_goes_on(open_page, tmp_path):
    page = open_page()
    give(page, "game.nes", rom.load())
    until(page, "state.x > 40")
    for name, data, line in bad_files(tmp_path):
        give(page, name, data)
        said = "document.getElementById('message').textContent"
        until(page, f"{said}.includes({json.dumps(line)})")
        page.select_option("#choice", "own")
        until(page, "localGame.ready && state.levels.length === 33")
        frame = page.evaluate("localGame.frame")
        until(page, f"localGame.frame !== {frame}")


@browser_test
def test_the_world_revision_is_for_people(open_page, load_rom):
    page = open_page()
    give(page, "world.nes", load_rom("world"))
    until(page, "state.levels && state.levels.length === 32")
    assert "play it yourself" in page.inner_text("#message")
    page.keyboard.press("t")
    page.keyboard.down("ArrowRight")
    until(page, "state.x > 60")


def test_the_page_knows_the_revisions_of_the_package():
    known = re.findall(
        r"^  \"?([0-9a-f]{40})\"?:", (ROOT / "web/play.js").read_text(), re.M
    )
    expected = {sha1 for name, sha1 in rom.SHA1.items() if "lost" not in name}
    assert len(known) == 5
    assert set(known) == expected


@pytest.mark.skipif(not shutil.which("bash"), reason="the script is for bash")
def test_the_script_names_what_is_missing(tmp_path):
    for tool in ("bash", "dirname", "realpath"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = subprocess.run(
        [tmp_path / "bash", ROOT / "web" / "build.sh", tmp_path / "page"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "web/build.sh: emcmake is missing: apt-get install emscripten cmake "
        "ninja-build\n"
    )
