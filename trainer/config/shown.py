"""What others may see of options, command lines and messages.

Everything that leaves a run folder goes through this module: reports, curves for
TensorBoard and Weights & Biases, published policies, cards, notifications, and the
setup of a search in a shared database. An option declares what it `holds`
(`options.option`): of a secret only the scheme of its URL is shown, of a path only its
last name. A secret that is a reference to an environment variable, `$NAME`, is shown.
"""

from __future__ import annotations

import functools
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from trainer.config import flags
from trainer.config.options import Holds

HIDDEN = "***"

# What the options of other commands hold. Their classes are in rooms that import this
# one; tests/trainer/test_shown.py finds an option that is missing here.
_OF_OTHER_COMMANDS: dict[str, Holds] = {
    "storage": "secret", "web_token": "secret", "web_host": "secret",
    "ray_address": "secret", "merge_flags": "flags", "space": "code",
    "mutations": "code",
}  # fmt: skip

# What the further entries of config.json hold.
_BESIDE: dict[str, Holds] = {"command": "flags", "commit": "", "device_used": ""}

_REFERENCES = re.compile(r"(\$\{?\w+\}?[,\s]*)+")
_URL = re.compile(r"([A-Za-z][\w+.-]*)://(?P<rest>[^\s'\"<>]*)")
_PUBLIC = re.compile(r"hf:/|released:")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_SEGMENT = r"[/\\][^\s/\\'\",;:()<>]+"
_ABSOLUTE = re.compile(
    rf"(?<![\w/.:*~<])(?:~|\.\.|[A-Za-z]:)?(?:{_SEGMENT}){{2,}}[/\\]?"
)


def value(holds: Holds | None, given: Any) -> Any:
    """The value of an option as others may see it; `holds` is None if unknown."""
    if isinstance(given, list | tuple):
        return [value(holds, one) for one in given]
    if holds == "" or not isinstance(given, str | Path) or not str(given):
        return given
    text = str(given)
    if holds == "secret":
        return _secret(text)
    if holds == "flags":
        return command_text(text)
    if holds is None and "://" in text and not _PUBLIC.match(text):
        return _secret(text)
    return path(text) if holds is not None or re.search(r"[/\\]", text) else text


def path(given: Path | str) -> str:
    """The last name of a path, but not of a home; the name of a published policy."""
    text = str(given)
    if _PUBLIC.match(text):
        return text
    if text.rstrip("/\\") == str(Path.home()):
        return "~"
    return re.split(r"[/\\]", text.rstrip("/\\"))[-1] or HIDDEN


def _secret(text: str) -> str:
    """References to environment variables, and the schemes of URLs."""
    if _REFERENCES.fullmatch(text):
        return text
    return ",".join(map(_scheme, _urls(text.strip())))


def _urls(text: str) -> list[str]:
    return re.split(r"[,\s]+(?=\w[\w+.-]*://)", text)


def _scheme(url: str) -> str:
    scheme, colon, rest = url.partition("://")
    if not colon or not re.fullmatch(r"[A-Za-z][\w+.-]*", scheme):
        return HIDDEN
    # A URL without a host is that of a file: it has neither a user nor a password.
    file = rest.startswith("/") and re.fullmatch(r"journal|sqlite", scheme)
    return f"{scheme}:///{path(rest)}" if file else f"{scheme}://{HIDDEN}"


@functools.cache
def _holds() -> dict[tuple[str, ...], Holds]:
    """What each option holds, by its name and by the path of its field."""
    options = flags.options().values()
    others = (_OF_OTHER_COMMANDS | _BESIDE).items()
    return (
        {(option.name,): option.holds for option in options}
        | {option.path: option.holds for option in options}
        | {(name,): holds for name, holds in others}
    )


def settings(data: Mapping[str, Any], part: tuple[str, ...] = ()) -> dict[str, Any]:
    """Options of any command by name, or the content of config.json, for others.

    The content may be a part of it, such as ("env",).
    """
    result = {}
    for name, given in data.items():
        where = (*part, name)
        is_part = isinstance(given, Mapping)
        holds = _holds().get(where)
        result[name] = settings(given, where) if is_part else value(holds, given)
    return result


def without_secrets(data: Mapping[str, Any]) -> dict[str, Any]:
    """A config for files that may travel but that a run continues from: paths stay."""
    return {**data, **{name: _secret(given) for name, given in _secrets(data)}}


def with_secrets(
    data: Mapping[str, Any], complete: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The inverse of `without_secrets`, and the names of secrets not in `complete`."""
    hidden = [name for name, given in _secrets(data) if HIDDEN in given]
    secrets = dict.fromkeys(hidden, "") | dict(_secrets(complete))
    secrets = {name: secrets[name] for name in hidden}
    return {**data, **secrets}, [name for name in hidden if not secrets[name]]


def _secrets(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values of the secrets in a config, all of which are at its top."""
    for name, option in flags.options().items():
        given = data.get(name)
        if option.holds == "secret" and isinstance(given, str) and given:
            yield name, given


def command(words: Sequence[str]) -> list[str]:
    """A program of this package and its arguments as others may see them."""
    result: list[str] = []
    holds: Holds | None = "path"
    for word in words:
        if word == "--":
            holds = None
        elif _FLAG.fullmatch(word):
            flag, equals, given = word.partition("=")
            holds = _holds().get((flag.lstrip("-").replace("-", "_"),))
            word = flag + equals + str(value(holds, given))
        else:
            word = str(value(holds, word))
        result.append(word)
    return result


def command_text(text: str) -> str:
    """The same for a command line as text, quoted for a shell."""
    try:
        return shlex.join(command(shlex.split(text)))
    except ValueError:  # a quote without its other half
        return HIDDEN


def message(text: str, data: Mapping[str, Any] | None = None) -> str:
    """A text, which may quote secrets of a config, URLs and paths, for others."""
    text = without(text, [given for _, given in _secrets(data or {})])
    text = _URL.sub(lambda m: m[0] if _is_public(m) else f"{m[1]}://{HIDDEN}", text)
    places = {str(place) for place in (Path.cwd(), Path.home(), tempfile.gettempdir())}
    for place in sorted(places - {"/"}, key=len, reverse=True):
        # A name in it may have a blank.
        text = re.sub(rf"(?<![\w/.]){re.escape(place)}(?![\w.-])", "~", text)
    return _ABSOLUTE.sub(lambda match: path(match[0]), text)


def _is_public(url: re.Match[str]) -> bool:
    """Whether a URL in a text is an address of the web without a user."""
    return url[1] in ("hf", "https") and "@" not in url["rest"]


def without(text: str, secrets: Iterable[str]) -> str:
    """A text with secrets and all of their parts hidden, but not `$NAME`."""
    parts: set[str] = set()
    for secret in secrets:
        if _REFERENCES.fullmatch(secret):
            continue
        parts |= {secret}
        for url in _urls(secret):
            rest = url.partition("://")[2] or url
            parts |= {rest, *re.split(r"[/:@?&=#,]+", rest)}
    parts |= {unquote(part) for part in parts}
    for part in sorted(parts - {""}, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(part)}(?!\w)", HIDDEN, text)
    return text
