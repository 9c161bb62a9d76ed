"""What MkDocs does to our pages: tables of options, and pages from the repository.

``<!-- options: stack_num hud -->`` becomes a table of these options, made from the
native table (csrc/mario/config.h), and ``<!-- options: rest -->`` one of all that no
other table of the page has. So no option is forgotten, and no default goes stale.

ARCHITECTURE.md and its like become pages of the site. Links are written as GitHub
reads them, from file to file, and rewritten here.

Where web/build.sh has built the page that plays without Python, the site has it as
play/index.html, and ``<!-- play -->`` becomes a link to it.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"

# Files of the repository, and the pages that they become.
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "bench/README.md": "benches.md",
}
# What web/build.sh builds.
PLAY = ROOT / "build" / "web"
MARKER = re.compile(r"<!-- options: ([a-z_ ]+) -->")
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the files that do not lie in the folder of the documentation."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    for path in sorted(PLAY.rglob("*.*")):
        target = f"play/{path.relative_to(PLAY).as_posix()}"
        files.append(File.generated(config, target, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Makes the tables of a page, and its links those of the site."""
    del config, files
    place = page.file.src_uri
    source = {v: k for k, v in PAGES.items()}.get(place, f"{DOCS}/{place}")
    markdown = LINK.sub(
        lambda match: _link(match, source, place), with_tables(markdown)
    )
    built = (PLAY / "index.html").exists()
    play = "**[Play it here](play/index.html).**" if built else ""
    return markdown.replace("<!-- play -->", play)


def with_tables(markdown: str) -> str:
    """Replaces the markers of options by tables.

    Raises:
        ValueError: there is no such option.
    """
    named = [name for names in MARKER.findall(markdown) for name in names.split()]
    options = native_options()
    if unknown := set(named) - options.keys() - {"rest"}:
        raise ValueError(f"no such option: {', '.join(sorted(unknown))}")
    rest = [name for name in options if name not in named]
    return MARKER.sub(
        lambda match: _table(options, rest if match[1] == "rest" else match[1].split()),
        markdown,
    )


def native_options() -> dict[str, tuple[Any, str]]:
    """Returns default and help of every option, in the order of the native table."""
    from mario_envpool._core import _MarioEnvSpec as spec

    defaults = zip(spec._config_keys, spec._default_config_values, strict=True)
    return {name: (value, spec._config_help[name]) for name, value in defaults}


def _table(options: dict[str, tuple[Any, str]], names: list[str]) -> str:
    lines = ["| Option | Type | Default | Meaning |", "|---|---|---|---|"]
    for name in names:
        default, text = options[name]
        kind = type(default).__name__
        shown = "no limit" if default == 2**31 - 1 else f"`{default!r}`"
        lines.append(f"| `{name}` | {kind} | {shown} | {text.replace('|', '/')} |")
    return "\n".join(lines)


def _link(match: re.Match[str], source: str, place: str) -> str:
    """Turns a link between files of the repository into one between pages."""
    target, anchor = match[1], match[2] or ""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = PAGES.get(path, os.path.relpath(path, DOCS) if path.startswith(DOCS) else "")
    if not page:
        return match[0]
    relative = posixpath.relpath(page, posixpath.dirname(place) or ".")
    return f"]({relative}{anchor})"
