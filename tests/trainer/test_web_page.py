"""The page without Python (web/) in Debian's Chromium: files, games, policies."""

import base64
import contextlib
import functools
import hashlib
import http.server
import json
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import save_policy

from mario_envpool import _core, rom
from mario_envpool.env import MarioEnv
from trainer.config.environment import POLICY_OPTIONS
from trainer.envs.pool import OBS_TYPES, packed
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


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address():
    if not CHROMIUM:
        pytest.skip("no Chromium: apt-get install chromium")
    if not (PAGE / "index.html").exists():
        pytest.skip("no page: run web/build.sh")
    viewer = (ROOT / "trainer" / "film" / "page" / "index.html").read_text()
    new = (PAGE / "play.js").read_text() == (ROOT / "web" / "play.js").read_text()
    new &= (PAGE / "viewer.js").read_text() in viewer
    assert new, "the page is older than its sources: run web/build.sh"
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

        def open_one(url=address, image=None, **options):
            page = browser.new_page(**options)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("request", check)
            page.goto(url)
            give(page, "game.nes", image or rom.load())
            until(page, "state.levels")
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


# Plays in the page, which stands still meanwhile: some buttons, or a level's policy to
# the end. Returns RAM after each frame or step, the SHA-1 of some pictures, and the
# probabilities of each decision.
PLAY = """async ([buttons, level]) => {
  const game = localGame, { core } = game, rams = [], pictures = [], odds = [];
  const keep = () => rams.push(core.HEAPU8.slice(core._ram(), core._ram() + 2048));
  game.ready = false;
  if (buttons.length) {
    game.make(level, null);
    core._reset(0);
  } else {
    Math.random = () => 0.25;
    await game.start(level);
    game.ready = false;
    while (!game.ending) {
      if (game.frame % game.skip === 0) odds.push(game.decision.probabilities);
      game.advance(0);
      if (game.ending || game.frame % game.skip === 0) keep();
    }
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
  return { ram: reader.result.split(",")[1], pictures, odds, ending: game.ending };
}"""


def play(page, level, buttons=()):
    result = page.evaluate(PLAY, [list(buttons), level])
    ram = np.frombuffer(base64.b64decode(result["ram"]), np.uint8)
    return ram.reshape(-1, 2048), result


@pytest.mark.rom
@pytest.mark.slow
def test_ram_and_pictures_of_10_000_frames_equal_the_native_core(open_page):
    page = open_page()
    random = np.random.default_rng(7)
    for level in ("1-1", "2-2", "4-4", "8-4"):
        # Buttons are held for ten frames, and rightwards more often; never start.
        buttons = random.integers(256, size=250)
        buttons = np.repeat((buttons | 128 * (buttons > 80)) & ~8, 10).tolist()
        ram, result = play(page, level, buttons)
        options = {"stages": [level], "frame_skip": 1, "action_set": "raw"}
        env = _core._MarioEnv(rom.load(), options | {"obs_type": "ram"}, 0, 0)
        env.reset()
        for i, byte in enumerate(buttons):
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
    """A greedy episode in MarioEnv: RAM after each step, the end, all odds."""
    policy = policies.load_policy(file)
    kinds = OBS_TYPES.get(policy.env.obs, ["gray"])
    same = (*POLICY_OPTIONS, "action_set", "noop_max")
    game = MarioEnv(
        f"SuperMarioBros-{level}-v0",
        obs_type=[*kinds, "ram"],
        **{name: getattr(policy.env, name) for name in same},
    )
    obs, _ = game.reset(seed=SEED)
    rams, odds, over = [], [], False
    state, first = torch.zeros(1, 0), torch.zeros(1, 1, dtype=torch.bool)
    while not over:
        parts = [obs[kind] for kind in kinds]
        seen = packed(*parts) if policy.env.sees_tiles else parts[0]
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            output, _ = policy.model(torch.from_numpy(seen)[None, None], state, first)
        odds.append(output.logits[0, 0].softmax(-1).numpy())
        obs, _, over, _, info = game.step(int(output.logits.argmax()))
        rams.append(obs["ram"].reshape(-1, 2048)[-1].copy())
    game.close()
    ending = "cleared" if info["flag_get"] else "died"
    return np.array(rams), ending, odds


@pytest.mark.rom
@pytest.mark.slow
@pytest.mark.skipif(BEST is None, reason="this CPU has no kernels for the encoders")
def test_policies_play_as_in_python(open_page, tmp_path):
    torch.manual_seed(3)
    save_policy(tmp_path, 1000, action=None)  # it sees pictures
    mine = tmp_path / "mine.safetensors"
    policies.save_policy(tmp_path, mine)
    page = open_page()
    page.set_checked("#greedy", True)
    give(page, mine.name, mine.read_bytes())
    until(page, "state.caption === 'trained 1,000 steps'")
    for choice, file, level, ends in (
        ("mine.safetensors", mine, "1-1", "died"),
        ("own", RELEASED / "1-1.safetensors", "1-1", "cleared"),
        ("own", RELEASED / "8-4.safetensors", "8-4", "cleared"),
        ("one", RELEASED / "one.safetensors", "3-1", "cleared"),
    ):
        page.select_option("#choice", choice)
        ram, result = play(page, level)
        expected, ending, odds = greedy_episode(file, level)
        assert result["ending"] == ending == ends
        assert np.array_equal(ram, expected)
        assert np.allclose(result["odds"], odds, atol=1e-5)


@pytest.mark.rom
@pytest.mark.slow
def test_the_page(open_page):
    page = open_page()
    until(page, "state.x > 60")
    assert page.inner_text("#title") == "Level 1-1"
    assert page.locator("#odds .name").all_inner_texts()[1] == "right"
    assert page.locator("#level option").count() == 33
    drawn = page.evaluate("document.getElementById('screen').toDataURL()")
    until(page, f"document.getElementById('screen').toDataURL() !== '{drawn}'")
    # Taking over, rewinding, giving back; another page has its own game.
    page.keyboard.press("t")
    until(page, "playing()")
    page.keyboard.down("ArrowLeft")
    until(page, "state.buttons === 64")
    page.keyboard.up("ArrowLeft")
    page.keyboard.press("Space")
    until(page, "state.paused")
    before = page.evaluate("localGame.clock")
    page.keyboard.press("Backspace")
    clock = page.evaluate("localGame.clock")
    assert clock < before - 59 or clock == 0
    page.keyboard.press(".")
    until(page, f"localGame.clock === {clock} + 1")
    page.keyboard.press("Space")
    other = open_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert other.evaluate("document.documentElement.scrollWidth") <= 390
    assert not other.evaluate("playing()")
    other.close()
    page.keyboard.press("t")
    until(page, f"!playing() && localGame.clock > {clock} + 30")
    # An end, and the next level; another level; no policy.
    page.select_option("#speed", "8")
    until(page, "state.ending === 'cleared'")
    until(page, "state.level === '1-2'")
    page.select_option("#level", "8-1")
    until(page, "state.level === '8-1' && state.caption.startsWith('trained')")
    page.select_option("#choice", "")
    until(page, "state.player === null && state.levels.length === 32")
    assert page.inner_text("#notice") == "Press “Play” to begin."
    # What the page could send, it may not.
    refused = page.evaluate(
        """new Promise((done) => {
          addEventListener("securitypolicyviolation", ({ blockedURI }) =>
            done(blockedURI));
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


@pytest.mark.rom
@pytest.mark.slow
def test_the_folder_itself_can_be_opened(open_page):
    page = open_page((PAGE / "index.html").as_uri())
    until(page, "state.levels.length === 32")
    assert "serve the folder (python -m http.server)" in page.inner_text("#message")
    give(page, "1-1.safetensors", (RELEASED / "1-1.safetensors").read_bytes())
    until(page, "state.x > 60")
    assert page.inner_text("#message") == ""


@pytest.mark.rom
@pytest.mark.slow
def test_the_world_revision_is_for_people(open_page, load_rom):
    page = open_page(image=load_rom("world"))
    until(page, "state.levels.length === 32")
    assert "play it yourself" in page.inner_text("#message")
    page.keyboard.press("t")
    page.keyboard.down("ArrowRight")
    until(page, "state.x > 60")


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


REFUSED = {
    "a memory": {"model": {"memory": {"kind": "gru"}}},
    "the network impala": {"model": {"name": "impala"}},
    "layer normalisation": {"model": {"layer_norm": True}},
    "noisy heads": {"model": {"noisy": True}},
    "the task Pong-v5": {"env": {"task": "Pong-v5"}},
    "timing nes_py": {"env": {"timing": "nes_py"}},
    "observations of pixels": {"env": {"obs": "pixels"}},
    "observations of rooms": {"env": {"obs": "rooms"}},
    "4 frames of tiles": {"env": {"stack_num": 4}},
}


def bad_files():
    """Name and contents of files, and what the page says of them."""
    image, released = rom.load(), (RELEASED / "1-1.safetensors").read_bytes()
    changed = image[:5000] + bytes([image[5000] ^ 1]) + image[5001:]
    damaged = "is damaged, or no policy's file"
    yield "empty.nes", b"", "is empty"
    yield "rom.zip", b"PK\3\4" + image, "is packed: unpack it, and open the .nes"
    yield "rom.gz", b"\x1f\x8b" + image, "is packed: unpack it, and open the .nes"
    yield "cut.nes", image[:30000], "is cut off: it has 30000 bytes and declares 40976"
    yield "other.nes", changed, "is another game, or a changed one: this page knows"
    yield "text.nes", b"hello", "is no ROM file of a NES: open a .nes file of Super"
    yield "film.nes", bytes(17 << 20), "is too large for a ROM or a policy: it has 18"
    yield "a.safetensors", b"hello", damaged
    yield "b.safetensors", released[:50000], damaged
    yield "c.safetensors", with_facts(env=None), damaged
    yield "d.safetensors", b"\2" + bytes(7) + b"{}", "is no policy of this trainer"
    other = with_facts(env={"action_set": "simple"})
    yield "e.safetensors", other, "is damaged: head.policy.weight is missing or has"
    other = with_facts(rom_sha1=rom.SHA1["world"])
    yield "f.safetensors", other, "is a policy for another ROM (World revision)"
    other = with_facts(env={"hud": "none"})
    yield "h.safetensors", other, "has options that are not possible: choose another"
    for what, facts in REFUSED.items():
        line = f"has {what}, which this page cannot run: watch it with python -m"
        yield "g.safetensors", with_facts(**facts), line


@pytest.mark.rom
@pytest.mark.slow
def test_bad_files_get_one_line_and_the_game_goes_on(open_page):
    page = open_page()
    for name, data, line in bad_files():
        give(page, name, data)
        said = "document.getElementById('message').textContent"
        until(page, f"{said}.includes({json.dumps(f'{name} {line}')})")
        page.select_option("#choice", "own")
        until(page, "localGame.ready && state.levels.length === 33")
        frame = page.evaluate("localGame.frame")
        until(page, f"localGame.frame !== {frame}")


def test_the_page_knows_the_revisions_of_the_package():
    script = (ROOT / "web" / "play.js").read_text()
    known = re.findall(r"^  \"?([0-9a-f]{40})\"?:", script, re.M)
    expected = [sha1 for name, sha1 in rom.SHA1.items() if "lost" not in name]
    assert sorted(known) == sorted(expected)


@pytest.mark.skipif(not shutil.which("bash"), reason="the script is for bash")
def test_the_script_names_what_is_missing(tmp_path):
    for tool in ("bash", "dirname", "realpath"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = subprocess.run(
        [tmp_path / "bash", ROOT / "web" / "build.sh", tmp_path / "page"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    missing = "emcmake is missing: apt-get install emscripten cmake ninja-build"
    assert (done.returncode, done.stderr) == (1, f"web/build.sh: {missing}\n")
