"""The page in a real browser: Debian's Chromium, driven by Playwright."""

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import save_policy

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no Playwright: pip install 'mario-envpool[test]'"
)
pytest.importorskip("uvicorn", reason="pip install 'mario-envpool[web]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.rom,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install chromium"),
]
ROOT = Path(__file__).resolve().parents[2]


class Server:
    """`python -m trainer.watch --web` on a fixed port; may be started again."""

    def __init__(self, *words):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._words = words
        self.start()

    def start(self):
        command = [sys.executable, "-m", "trainer.watch", "--web"]
        command += ["--web-port", str(self.port), *self._words]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.address = self._process.stdout.readline().split()[4]

    def stop(self):
        self._process.terminate()
        self._process.communicate(timeout=60)


@pytest.fixture
def server(tmp_path):
    save_policy(tmp_path, 1000, action=1)  # right
    server = Server("--policy", str(tmp_path))
    yield server
    server.stop()


@pytest.fixture
def open_page(server):
    """Opens pages: no script of theirs fails, nothing is loaded from elsewhere."""
    problems = []
    with playwright.sync_playwright() as driver, contextlib.ExitStack() as stack:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        stack.callback(browser.close)

        def open_one(**options):
            page = browser.new_page(**options)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("request", lambda request: problems.append(request.url)
                    if not request.url.startswith((server.address, "data:", "blob:"))
                    else None)  # fmt: skip
            page.goto(server.address)
            return page

        yield open_one
    assert problems == []


def until(page, expression, seconds=60):
    """Waits until a JavaScript expression is true of `state`, the page's own."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"{expression}: {page.evaluate('state')}"
        page.wait_for_timeout(50)


def until_drawn(page, before):
    """Waits for another picture: a state may come before its picture is decoded."""
    drawn = "document.getElementById('screen').toDataURL()"
    until(page, f"{drawn} !== '{before}'")
    return page.evaluate(drawn)


def test_the_page(server, open_page):
    page = open_page()
    # It loads, and the game moves.
    until(page, "state.x > 45")
    before = until_drawn(page, before="")
    until(page, "state.x > 60")
    until_drawn(page, before)
    assert page.inner_text("#title") == "Level 1-1"
    assert page.locator("#odds .name").all_inner_texts()[1] == "right"
    assert page.locator("#level option").count() == 33
    until(page, "document.getElementById('view').naturalWidth === 4 * 36")
    # Keys of the page.
    page.keyboard.press("Space")
    until(page, "state.paused")
    step = page.evaluate("state.step")
    page.keyboard.press(".")
    until(page, f"state.step === {step} + 1")
    page.keyboard.press("Backspace")
    until(page, f"state.step < {step}")
    page.keyboard.press("Space")
    until(page, "!state.paused")
    # Taking over: now keys are buttons.
    page.keyboard.down("ArrowLeft")
    page.keyboard.up("ArrowLeft")
    page.click("#take")
    until(page, "playing()")
    page.keyboard.down("ArrowLeft")
    page.keyboard.down("x")
    until(page, "state.buttons === 64 + 1")
    page.keyboard.up("x")
    until(page, "state.buttons === 64")
    page.keyboard.up("ArrowLeft")
    until(page, "state.buttons === 0")
    page.locator("#pad [data-bit='128']").hover()
    page.mouse.down()
    until(page, "state.buttons === 128")
    page.mouse.up()
    until(page, "state.buttons === 0")
    # A second viewer sees it, and has to wait for the pad.
    other = open_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    until(other, "state.viewers === 2 && state.player !== null")
    assert other.is_disabled("#take")
    assert other.inner_text("#notice") == "Another viewer is playing."
    page.keyboard.press("t")
    until(other, "state.player === null && state.buttons === 128")
    assert other.is_enabled("#take")
    # Narrow: nothing is wider than the window.
    assert other.evaluate("document.documentElement.scrollWidth") <= 390
    other.select_option("#level", "4-1")
    until(page, "state.level === '4-1'")
    other.close()
    until(page, "state.viewers === 1")


def test_the_page_comes_back_after_the_server(server, open_page):
    page = open_page()
    until(page, "state.x > 40")
    server.stop()
    until(page, "document.getElementById('notice').textContent.includes('again')")
    assert page.is_disabled("#take")
    server.start()
    until(page, "socket && socket.readyState === 1")
    number = page.evaluate("pictureNumber")
    until(page, f"pictureNumber > {number} + 10")
    assert page.is_enabled("#take")
