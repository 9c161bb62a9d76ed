"""Playing and showing in a notebook, in a kernel of Jupyter."""

import subprocess
import sys

import numpy as np
import pytest

EXTRA = "pip install 'mario-envpool[notebook]'"
pytest.importorskip("anywidget", reason=EXTRA)

import gymnasium  # noqa: E402

import mario_envpool  # noqa: E402, F401
from mario_envpool import notebook  # noqa: E402

CELLS = [
    """
import gymnasium
import mario_envpool
from mario_envpool import nes, notebook
env = gymnasium.make("mario_envpool:SuperMarioBros-1-1-v0", render_mode="rgb_array")
game = notebook.play(env)
game
""",
    # What the browser sends, and what it is sent.
    """
sent = []
game.send = lambda content, buffers: sent.append((content, buffers[0]))
game._handle_custom_msg({"look": True}, [])
for _ in range(20):
    game._handle_custom_msg({"buttons": nes.RIGHT | nes.B}, [])
last = sent[-1]
print(len(game.episode), last[0]["text"], last[1][:4], sent[0][1] != last[1])
print(game.get_state()["first"] == sent[0][1])
""",
    "notebook.show(game.episode)",
]


@pytest.mark.rom
@pytest.mark.slow
def test_a_notebook():
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="pip install nbclient ipykernel")
    cells = [nbformat.v4.new_code_cell(code) for code in CELLS]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=250, kernel_name="python3").execute()
    played, answered, shown = (cell["outputs"] for cell in book["cells"])
    assert "application/vnd.jupyter.widget-view+json" in played[-1]["data"]
    count, text = answered[0]["text"].split(" ", 1)
    assert int(count) == 21
    assert text.startswith("step 20, return ")
    assert text.endswith("b'\\x89PNG' True\nTrue\n")
    video = shown[-1]["data"]["text/html"]
    assert video.startswith("<video controls")
    assert 'src="data:video/mp4;base64,' in video


@pytest.mark.rom
def test_an_episode_that_is_over_begins_again():
    env = gymnasium.make(
        "mario_envpool:SuperMarioBros-1-1-v0",
        render_mode="rgb_array",
        max_episode_steps=3,
    )
    game = notebook.play(env)
    texts = []
    game.send = lambda content, buffers: texts.append(content["text"])
    for _ in range(4):
        game._answer(game, {"buttons": 0}, [])
    assert [text.partition(",")[0] for text in texts] == [
        "step 1", "step 2", "step 3", "step 1",
    ]  # fmt: skip
    assert [text.endswith("over") for text in texts] == [False, False, True, False]


def test_the_nearest_action():
    simple = [0, 128, 129, 130, 131, 1, 64]
    for held, action in ((0, 0), (128, 1), (131, 4), (131 | 32, 4), (2, 0), (65, 5)):
        assert notebook.nearest_action(simple, held) == action
    assert notebook.nearest_action([131], 0) == 0


@pytest.mark.rom
def test_what_cannot_be_played():
    with pytest.raises(ValueError, match="play needs pictures, got render_mode=None"):
        notebook.play(gymnasium.make("mario_envpool:SuperMarioBros-1-1-v0"))
    with pytest.raises(
        ValueError, match="play is for the environments of this package"
    ):
        notebook.play(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize(
    "episode",
    [[], np.zeros((2, 4, 4), np.uint8), np.zeros((1, 5, 4, 3), np.uint8),
     np.zeros((1, 4, 4, 3))],
)  # fmt: skip
def test_what_cannot_be_shown(episode):
    with pytest.raises(ValueError, match="an episode is uint8 of"):
        notebook.show(episode)


def test_the_extra_that_is_missing():
    code = "import sys; sys.modules['anywidget'] = None; import mario_envpool.notebook"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'mario-envpool[notebook]'" in done.stderr
