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
    """The value of an option as others may see it.

    Args:
        holds: what the option holds; None: unknown.
        given: a text, a path, a list of these, or any other value.
    """
    if isinstance(given, list | tuple):
        return [value(holds, one) for one in given]
    if holds == "" or not isinstance(given, str | Path) or not str(given):
        return given
    text = str(given)
    if holds == "secret":
        return _secret(text)
    if holds == "flags":
        return command_text(text)
    looks = "://" in text and not _PUBLIC.match(text)
    if holds is None and looks:
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
    parts = re.split(r"[,\s]+(?=\w[\w+.-]*://)", text.strip())
    return ",".join(map(_scheme, parts))


def _scheme(url: str) -> str:
    scheme, colon, rest = url.partition("://")
    if not colon or not re.fullmatch(r"[A-Za-z][\w+.-]*", scheme):
        return HIDDEN
    # A URL without a host is that of a file: it has neither a user nor a password.
    file = rest.startswith("/") and re.fullmatch(r"journal|sqlite", scheme)
    return f"{scheme}:///{path(rest)}" if file else f"{scheme}://{HIDDEN}"


@functools.cache
def _holds() -> dict[str, Holds]:
    """What each option holds, by name."""
    own = {name: option.holds for name, option in flags.options().items()}
    return own | _OF_OTHER_COMMANDS


@functools.cache
def _by_path() -> dict[tuple[str, ...], Holds]:
    """What each option of a run holds, by the path of its field."""
    own = {option.path: option.holds for option in flags.options().values()}
    return own | {(name,): holds for name, holds in _BESIDE.items()}


# -- configurations ----------------------------------------------------------


def settings(data: Mapping[str, Any], part: tuple[str, ...] = ()) -> dict[str, Any]:
    """A config as others may see it.

    Args:
        data: the result of `plain.to_dict`, or the content of config.json.
        part: where it belongs in the config of a run, such as ("env",).
    """
    result = {}
    for name, given in data.items():
        where = (*part, name)
        if isinstance(given, Mapping):
            result[name] = settings(given, where)
        else:
            result[name] = value(_by_path().get(where), given)
    return result


def options(data: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name as others may see them, of any command."""
    return {name: value(_holds().get(name), given) for name, given in data.items()}


def without_secrets(data: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `plain.to_dict` with secrets hidden and complete paths.

    For files that may travel but that a run continues from.
    """
    result = dict(data)
    for name, given in _secrets(data):
        result[name] = _secret(given)
    return result


def with_secrets(
    data: Mapping[str, Any], complete: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The inverse of `without_secrets`.

    Args:
        data: its result.
        complete: the same config with its secrets; {}: it is lost.

    Returns:
        The config, and the names of the secrets that are lost, which are "" in it.
    """
    result, lost = dict(data), []
    for name, hidden in _secrets(data):
        if HIDDEN not in hidden:
            continue
        known = complete.get(name)
        result[name] = known if isinstance(known, str) else ""
        if not result[name]:
            lost.append(name)
    return result, lost


def _secrets(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values of the secrets in a config, all of which are at its top."""
    for (name, *_), holds in _by_path().items():
        given = data.get(name)
        if holds == "secret" and isinstance(given, str) and given:
            yield name, given


# -- command lines and messages ----------------------------------------------


def command(words: Sequence[str]) -> list[str]:
    """A command line as others may see it.

    Args:
        words: the program and its arguments, of any command of this package.
    """
    result: list[str] = []
    holds: Holds | None = "path"
    for word in words:
        if word == "--":
            holds = None
        elif _FLAG.fullmatch(word):
            flag, equals, given = word.partition("=")
            holds = _holds().get(flag.lstrip("-").replace("-", "_"))
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
    """A text for people as others may see it.

    Args:
        text: may quote secrets of `data`, URLs and paths.
        data: config that the text is about, as of `plain.to_dict`.
    """
    secrets = [given for _, given in _secrets(data or {})]
    text = without(text, secrets)
    text = _URL.sub(lambda m: m[0] if _is_public(m) else f"{m[1]}://{HIDDEN}", text)
    known = {str(place) for place in (Path.cwd(), Path.home(), tempfile.gettempdir())}
    for place in sorted(known - {"/"}, key=len, reverse=True):
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
        for url in re.split(r"[,\s]+(?=\w[\w+.-]*://)", secret):
            rest = url.partition("://")[2] or url
            parts |= {rest, *re.split(r"[/:@?&=#,]+", rest)}
    parts |= {unquote(part) for part in parts}
    for part in sorted(parts - {""}, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(part)}(?!\w)", HIDDEN, text)
    return text
