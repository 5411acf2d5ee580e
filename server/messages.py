"""Protocol v1, the words on the wire: text to messages and back. No I/O, no clock; docs/protocol.md is its description.

Whatever a client sends gives a message or a `ProtocolError` whose code and text go back to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from asr.channels import Channel
from asr.errors import (
    AudioFormatError,
    ConfigError,
    EarlybirdError,
    Overloaded,
    PhraseError,
    ProtocolError,
    StreamClosed,
)
from asr.words import Word
from streaming.emission_delay import DelaySummary
from streaming.events import Words

PROTOCOL = 1
Encoding = Literal["pcm_s16le", "pcm_f32le", "mulaw", "alaw", "ogg-opus"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)

MOST_PHRASES = 1_000
"""A live list; a file's may be longer."""
LONGEST_PHRASE = 200
HIGHEST_BOOST = 5.0
HIGHEST_LM_WEIGHT = 2.0
MOST_CHANNELS = 8
LONGEST_TOKEN = 512
"""Characters of a bearer or resume token."""
LARGEST_NUMBER = 2**53
"""Beyond, JSON numbers are not exact everywhere."""

T = TypeVar("T")


# -- from the client -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Which session to go on with: its token, and the last `seq` that the client has."""

    token: str
    seq: int = 0


@dataclass(frozen=True, kw_only=True)
class PhraseText:
    """A phrase to recognise more readily, and its own boost if it has one."""

    text: str
    boost: float | None = None


@dataclass(frozen=True, kw_only=True)
class Start:
    """The first message of a connection; the fields are those of docs/protocol.md."""

    encoding: Encoding
    sample_rate: int
    version: int = PROTOCOL
    channels: int = 1
    channel: Channel = "mix"
    delay_ms: int | None = None
    chunk_ms: int | None = None
    phrases: tuple[PhraseText, ...] = ()
    boost: float | None = None
    lm_weight: float | None = None
    timestamps: bool = True
    resume: Resume | None = None
    token: str | None = None


@dataclass(frozen=True, kw_only=True)
class Update:
    """Settings that change from here in the audio on; None leaves one as it is."""

    phrases: tuple[PhraseText, ...] | None = None
    boost: float | None = None
    lm_weight: float | None = None
    delay_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Flush:
    """Decode all audio before it to its last word; `id` comes back in the answer."""

    id: str | int | None = None


@dataclass(frozen=True, kw_only=True)
class Keepalive:
    """The client is there and has nothing to say."""


@dataclass(frozen=True, kw_only=True)
class Ack:
    """The client has every message up to `seq`."""

    seq: int


@dataclass(frozen=True, kw_only=True)
class End:
    """No more audio."""


ClientMessage = Start | Update | Flush | Keepalive | Ack | End


def bad(text: str) -> ProtocolError:
    """The error of a message that is JSON and still no message."""
    return ProtocolError("bad_message", text)


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _whole(least: int, most: int) -> Callable[[str, object], int]:
    def check(name: str, value: object) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise bad(f"{name} is {_shown(value)}; a whole number from {least} to {most} is needed")
        return value

    return check


def _number(least: float, most: float) -> Callable[[str, object], float]:
    def check(name: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise bad(f"{name} is {_shown(value)}; a number from {least:g} to {most:g} is needed")
        return float(value)

    return check


def _text(longest: int) -> Callable[[str, object], str]:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or len(value) > longest:
            raise bad(f"{name} is {_shown(value)}; text of at most {longest} characters is needed")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise bad(f"{name} is {_shown(value)}; it holds half of a surrogate pair, which is no character")
        return value

    return check


def _truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise bad(f"{name} is {_shown(value)}; true or false is needed")
    return value


def _encoding(name: str, value: object) -> str:
    if value not in ENCODINGS:
        raise bad(f"{name} is {_shown(value)}; one of {', '.join(ENCODINGS)} is needed")
    return str(value)


def _channel(name: str, value: object) -> Channel:
    return "mix" if value == "mix" else _whole(0, MOST_CHANNELS - 1)(name, value)


def _phrases(name: str, value: object) -> tuple[PhraseText, ...]:
    if not isinstance(value, list) or len(value) > MOST_PHRASES:
        got = f"{len(value)} entries" if isinstance(value, list) else _shown(value)
        raise bad(f"{name} is {got}; a list of at most {MOST_PHRASES} phrases is needed")
    return tuple(_phrase(f"{name}[{at}]", phrase) for at, phrase in enumerate(value))


def _phrase(name: str, value: object) -> PhraseText:
    if isinstance(value, dict):
        checks = {"text": _text(LONGEST_PHRASE), "boost": _number(0.0, HIGHEST_BOOST)}
        return PhraseText(**_fields(value, checks, ("text",), name))
    return PhraseText(text=_text(LONGEST_PHRASE)(name, value))


def _flush_id(name: str, value: object) -> str | int:
    return _text(64)(name, value) if isinstance(value, str) else _whole(0, LARGEST_NUMBER)(name, value)


def _resume(name: str, value: object) -> Resume:
    if not isinstance(value, dict):
        raise bad(f"{name} is {_shown(value)}; an object with token and seq is needed")
    return Resume(**_fields(value, {"token": _text(LONGEST_TOKEN), "seq": _whole(0, LARGEST_NUMBER)}, ("token",), name))


Check = Callable[[str, object], Any]
_SHAPES: dict[str, tuple[type, dict[str, Check], tuple[str, ...]]] = {
    "start": (
        Start,
        {
            "encoding": _encoding,
            "sample_rate": _whole(8_000, 48_000),
            "version": _whole(1, LARGEST_NUMBER),
            "channels": _whole(1, MOST_CHANNELS),
            "channel": _channel,
            "delay_ms": _whole(0, 60_000),
            "chunk_ms": _whole(0, 60_000),
            "phrases": _phrases,
            "boost": _number(0.0, HIGHEST_BOOST),
            "lm_weight": _number(0.0, HIGHEST_LM_WEIGHT),
            "timestamps": _truth,
            "resume": _resume,
            "token": _text(LONGEST_TOKEN),
        },
        ("encoding", "sample_rate"),
    ),
    "update": (
        Update,
        {
            "phrases": _phrases,
            "boost": _number(0.0, HIGHEST_BOOST),
            "lm_weight": _number(0.0, HIGHEST_LM_WEIGHT),
            "delay_ms": _whole(0, 60_000),
        },
        (),
    ),
    "flush": (Flush, {"id": _flush_id}, ()),
    "keepalive": (Keepalive, {}, ()),
    "ack": (Ack, {"seq": _whole(0, LARGEST_NUMBER)}, ("seq",)),
    "end": (End, {}, ()),
}


def _fields(
    values: Mapping[str, object], checks: Mapping[str, Check], needed: Sequence[str], where: str
) -> dict[str, Any]:
    for name in values:
        if name not in checks:
            known = ", ".join(checks) or "none"
            raise bad(f"{where} has the unknown field {_shown(name)}; the fields it may have: {known}")
    for name in needed:
        if values.get(name) is None:
            raise bad(f"{where} lacks {name}; {' and '.join(needed)} must be there")
    return {name: checks[name](name, value) for name, value in values.items() if value is not None}


def parse(text: str) -> ClientMessage:
    """The message that a text frame holds.

    Raises:
        ProtocolError: `bad_json` if it is no JSON, `bad_message` if it is no message of this protocol.

    >>> parse('{"type": "flush", "id": 7}')
    Flush(id=7)
    """
    values = parse_object(text)
    kind = values.pop("type", None)
    if not isinstance(kind, str) or kind not in _SHAPES:
        raise bad(f"type is {_shown(kind)}; one of {', '.join(_SHAPES)} is needed")
    made, checks, needed = _SHAPES[kind]
    message: ClientMessage = made(**_fields(values, checks, needed, kind))
    if isinstance(message, Start):
        _check_start(message)
    return message


def _check_start(start: Start) -> None:
    if start.version != PROTOCOL:
        raise ProtocolError("bad_version", f"version is {start.version}; this server speaks version {PROTOCOL}")
    if start.channel != "mix" and start.channel >= start.channels:
        raise bad(f"channel is {start.channel}; with {start.channels} channels it must be below that, or 'mix'")
    if start.encoding == "ogg-opus" and start.sample_rate != 48_000:
        raise bad(f"sample_rate is {start.sample_rate}; Opus has a clock of 48000 whatever was recorded")
    if start.encoding == "ogg-opus" and start.channels > 2:
        raise bad(f"channels is {start.channels}; ogg-opus has 1 or 2")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object that a text frame holds.

    Raises:
        ProtocolError: `bad_json` if it holds no such thing.
    """
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("bad_json", f"a text frame must be a JSON object: {error}") from None
    if not isinstance(values, dict):
        raise ProtocolError("bad_json", f"a text frame must be a JSON object; it is {_shown(values)}")
    return values


# -- to the client -------------------------------------------------------------------------------------------------


def encode(kind: str, **fields: object) -> str:
    """A text frame; ASCII, so that no text can break it."""
    return json.dumps({"type": kind, **fields}, allow_nan=False, separators=(",", ":"))


def word_fields(word: Word, wall_ms: int | None, *, timestamps: bool) -> dict[str, object]:
    """A committed word as `words` states it."""
    if not timestamps:
        return {"text": word.text}
    return {
        "text": word.text,
        "start_ms": word.start_ms,
        "end_ms": word.end_ms,
        "emitted_ms": word.emitted_ms,
        "delay_ms": {"audio": word.delay_ms, "wall": wall_ms},
        "confidence": round(word.confidence, 4),
    }


def words_fields(event: Words, wall_ms: Sequence[int | None], *, timestamps: bool) -> dict[str, object]:
    """The fields of `words`; `wall_ms` has one entry a word of the event."""
    fields: dict[str, object] = {
        "text": event.text,
        "first": event.first,
        "words": [
            word_fields(word, wall, timestamps=timestamps) for word, wall in zip(event.words, wall_ms, strict=True)
        ],
    }
    if event.amended is not None:
        number, word = event.amended
        fields["amended"] = {"index": number, "text": word.text}
    return fields


def summary_fields(summary: DelaySummary | None) -> dict[str, int] | None:
    """A session's delays as `closed` states them."""
    if summary is None:
        return None
    return {
        "words": summary.count,
        "p50": summary.p50_ms,
        "p90": summary.p90_ms,
        "p95": summary.p95_ms,
        "max": summary.max_ms,
    }


_CODES: tuple[tuple[type[EarlybirdError], str], ...] = (
    (ConfigError, "bad_setting"),
    (AudioFormatError, "bad_audio"),
    (PhraseError, "bad_phrases"),
    (Overloaded, "overloaded"),
    (StreamClosed, "closed"),
)


def error_code(error: BaseException) -> str:
    """The code of an `error` message."""
    if isinstance(error, ProtocolError):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), "internal")


def error_text(error: BaseException) -> str:
    """Its text. What was not raised on purpose is the server's own affair and is not told to a client."""
    return str(error) if isinstance(error, EarlybirdError) else "the server failed at this session; its log says why"
