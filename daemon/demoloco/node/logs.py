"""The shape of every line on stderr: this project's own and those of the libraries under it.

Rule: one line an event, `time event key=value …` for people or one JSON object for machines; only a
traceback takes more. Text from elsewhere can't break a line or steer the terminal. Peer ids and
digests are short for people, whole for machines.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable
from typing import Any, TextIO

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from demoloco.types import Digest, PeerId, short

FORMATS = ("text", "json")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
TALKATIVE = ("hivemind", "grpc", "asyncio", "urllib3", "matplotlib")
"""Libraries whose phase changes are no news: below a warning they are heard at level debug only."""

CHATTERING = ("_cygrpc",)
"""It logs each call of the direct road: never heard below a warning, or nobody could read on."""

_EVENT_WIDTH = 26
_PEER_ID = re.compile(r"12D3Koo[1-9A-HJ-NP-Za-km-z]{45}|Qm[1-9A-HJ-NP-Za-km-z]{44}")
_DIM, _BOLD, _YELLOW, _RED, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[33m", "\x1b[31m", "\x1b[0m"


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is now, so that a live display can put itself in between."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure_logging(*, format: str = "text", level: str = "info") -> None:
    """Send all logging of this process to stderr in one shape; call again after late imports.

    Raises: ValueError for a format or level that there is none of.
    """
    if format not in FORMATS or level not in LEVELS:
        raise ValueError(f"format is one of {FORMATS}, level one of {tuple(LEVELS)}")
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.format_exc_info,
    ]
    handler = _Stderr()
    handler.setFormatter(
        ProcessorFormatter(
            processors=[
                *shared,
                _time(format, local=format == "text" and colour),
                ProcessorFormatter.remove_processors_meta,
                _Json() if format == "json" else _Text(colour),
            ],
        )
    )
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Stderr)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
    _adopt(quiet=level != "debug")
    logging.captureWarnings(True)
    structlog.configure(
        processors=[ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=BoundLogger,
        cache_logger_on_first_use=False,
    )


def _adopt(*, quiet: bool) -> None:
    """Take away the handlers that libraries give themselves at import, and their chatter."""
    for name in TALKATIVE:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING if quiet else logging.NOTSET)
    for name in CHATTERING:
        logging.getLogger(name).setLevel(logging.WARNING)


def _time(format: str, *, local: bool) -> Processor:
    """Machines reckon with it, so theirs is to the microsecond."""
    if local:
        return structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False, key="time")
    second = "%Y-%m-%dT%H:%M:%S" + (".%fZ" if format == "json" else "Z")
    return structlog.processors.TimeStamper(fmt=second, utc=True, key="time")


def readable(value: object) -> str:
    """A fact as people read it: short ids, four digits, quoted if it has spaces."""
    match value:
        case None:
            return "-"
        case bytes():
            return short(Digest(value))
        case float():
            return f"{value:.4g}"
        case str() if _PEER_ID.fullmatch(value):
            return short(PeerId(value))
        case list() | tuple() | set() | frozenset():
            return ",".join(readable(item) for item in value) or "-"
        case _:
            return _quoted(str(value))


def _quoted(text: str) -> str:
    if not text.isprintable():
        return json.dumps(text)
    if not text or any(mark in text for mark in ' ="'):
        return json.dumps(text, ensure_ascii=False)
    return text


def _on_one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text.strip())[1:-1]


class _Text:
    """`14:39:53 round committed    round=12 loss=2.101`; level and library where they matter."""

    def __init__(self, colour: bool) -> None:
        self._paint: Callable[[str, str], str] = (
            (lambda paint, text: f"{paint}{text}{_RESET}") if colour else (lambda _, text: text)
        )

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        level, source = event.pop("level"), event.pop("logger", "")
        traceback = event.pop("exception", None)
        head = [self._paint(_DIM, event.pop("time"))]
        if level not in ("info", "debug"):
            head.append(self._paint(_YELLOW if level == "warning" else _RED, level))
        if source and not source.startswith("demoloco"):
            head.append(self._paint(_DIM, f"[{source}]"))
        said = _on_one_line(str(event.pop("event")))
        facts = [f"{self._paint(_DIM, key + '=')}{readable(value)}" for key, value in event.items()]
        head.append(self._paint(_BOLD, said.ljust(_EVENT_WIDTH)) if facts else said)
        line = " ".join([*head, *facts])
        return f"{line}\n{traceback}" if traceback else line


class _Json:
    """One object a line: time, level, logger, event, facts; no NaN, which JSON does not have."""

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        first = ("time", "level", "logger", "event")
        ordered = {key: event.pop(key) for key in first if key in event}
        ordered.update(event)
        return json.dumps({key: _plain(value) for key, value in ordered.items()})


def _plain(value: Any) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return value.hex()
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case None | bool() | int() | str():
            return value
        case _:
            return str(value)
