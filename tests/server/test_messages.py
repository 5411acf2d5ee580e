import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.errors import (
    AudioFormatError,
    ConfigError,
    InvalidSamples,
    Overloaded,
    PhraseError,
    ProtocolError,
    StreamClosed,
)
from asr.resample import HIGHEST_RATE, LOWEST_RATE
from asr.words import Word
from lm_fusion.fusion import MAX_LM_WEIGHT
from lm_fusion.phrases import MAX_BOOST
from server.messages import (
    ENCODINGS,
    HIGHEST_BOOST,
    HIGHEST_LM_WEIGHT,
    Ack,
    End,
    Flush,
    Keepalive,
    PhraseText,
    Resume,
    Start,
    Update,
    encode,
    error_code,
    error_text,
    parse,
    summary_fields,
    words_fields,
)
from streaming.emission_delay import DelaySummary
from streaming.events import Words

START = {"type": "start", "encoding": "pcm_s16le", "sample_rate": 16_000}


def test_a_start_with_nothing_else() -> None:
    assert parse(json.dumps(START)) == Start(encoding="pcm_s16le", sample_rate=16_000)


def test_a_start_with_everything() -> None:
    fields = {
        "encoding": "mulaw",
        "sample_rate": 8_000.0,
        "version": 1,
        "channels": 2,
        "channel": 1,
        "delay_ms": 480,
        "chunk_ms": 320,
        "phrases": ["Kubernetes", {"text": "AC/DC", "boost": 2}],
        "boost": 1.5,
        "lm_weight": 0,
        "timestamps": False,
        "resume": {"token": "abc", "seq": 7},
        "token": "secret",
    }
    assert parse(json.dumps({"type": "start", **fields})) == Start(
        encoding="mulaw",
        sample_rate=8_000,
        channels=2,
        channel=1,
        delay_ms=480,
        chunk_ms=320,
        phrases=(PhraseText(text="Kubernetes"), PhraseText(text="AC/DC", boost=2.0)),
        boost=1.5,
        lm_weight=0.0,
        timestamps=False,
        resume=Resume(token="abc", seq=7),
        token="secret",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"type":"end"}', End()),
        ('  { "type" :\n"end" }  ', End()),
        ('{"type": "keepalive"}', Keepalive()),
        ('{"type": "ack", "seq": 3}', Ack(seq=3)),
        ('{"type": "flush"}', Flush()),
        ('{"type": "flush", "id": null}', Flush()),
        ('{"type": "flush", "id": "a"}', Flush(id="a")),
        ('{"type": "update", "delay_ms": 80, "phrases": []}', Update(delay_ms=80, phrases=())),
        ('{"type": "update", "boost": 5}', Update(boost=5.0)),
    ],
)
def test_other_messages(text: str, message: object) -> None:
    assert parse(text) == message


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", "bad_json", "must be a JSON object"),
        ("[]", "bad_json", "it is []"),
        ("{'type': 'end'}", "bad_json", "JSON"),
        ('{"type": "end"', "bad_json", "JSON"),
        ('{"type": "flush", "id": NaN}', "bad_json", "NaN is no JSON"),
        ("[" * 100_000, "bad_json", "JSON"),
        ("{}", "bad_message", "type is null; one of start, update, flush, keepalive, ack, end"),
        ('{"type": ["end"]}', "bad_message", 'type is ["end"]'),
        ('{"type": "eof"}', "bad_message", 'type is "eof"'),
        (
            '{"type": "end", "now": true}',
            "bad_message",
            'end has the unknown field "now"; the fields it may have: none',
        ),
        ('{"type": "ack"}', "bad_message", "ack lacks seq"),
        ('{"type": "ack", "seq": true}', "bad_message", "seq is true; a whole number from 0"),
        ('{"type": "ack", "seq": -1}', "bad_message", "seq is -1"),
        ('{"type": "ack", "seq": 1e999}', "bad_message", "seq is Infinity"),
        ('{"type": "flush", "id": 1.5}', "bad_message", "id is 1.5"),
        ('{"type": "update", "boost": "2"}', "bad_message", 'boost is "2"; a number from 0 to 5'),
        ('{"type": "update", "phrases": "a"}', "bad_message", 'phrases is "a"; a list of at most 1000 phrases'),
        ('{"type": "update", "phrases": [1]}', "bad_message", "phrases[0] is 1; text of at most 200 characters"),
        ('{"type": "update", "phrases": [{"boost": 1}]}', "bad_message", "phrases[0] lacks text"),
        ('{"type": "update", "phrases": ["\\ud800"]}', "bad_message", "half of a surrogate pair"),
    ],
)
def test_what_is_no_message(text: str, code: str, says: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(text)
    assert caught.value.code == code
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"sample_rate": None}, "bad_message", "start lacks sample_rate; encoding and sample_rate must be there"),
        ({"sample_rate": 96_000}, "bad_message", "sample_rate is 96000; a whole number from 8000 to 48000"),
        ({"encoding": "opus"}, "bad_message", 'encoding is "opus"; one of pcm_s16le, pcm_f32le, mulaw, alaw, ogg-opus'),
        ({"encoding": ["mulaw"]}, "bad_message", 'encoding is ["mulaw"]'),
        ({"channels": 0}, "bad_message", "channels is 0"),
        ({"channel": 1}, "bad_message", "channel is 1; with 1 channels it must be below that, or 'mix'"),
        ({"channel": "left"}, "bad_message", 'channel is "left"'),
        ({"version": 2}, "bad_version", "version is 2; this server speaks version 1"),
        ({"timestamps": 1}, "bad_message", "timestamps is 1; true or false"),
        ({"resume": "abc"}, "bad_message", 'resume is "abc"; an object with token and seq'),
        ({"resume": {"seq": 1}}, "bad_message", "resume lacks token"),
        ({"encoding": "ogg-opus"}, "bad_message", "sample_rate is 16000; Opus has a clock of 48000"),
        ({"encoding": "ogg-opus", "sample_rate": 48_000, "channels": 6}, "bad_message", "ogg-opus has 1 or 2"),
        ({"language": "en"}, "bad_message", 'start has the unknown field "language"'),
    ],
)
def test_starts_that_cannot_be(fields: dict[str, object], code: str, says: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(json.dumps({**START, **fields}))
    assert caught.value.code == code
    assert says in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(
    "type encoding sample_rate channels channel delay_ms phrases boost resume token seq id timestamps version".split()
)
KINDS = st.sampled_from(["start", "update", "flush", "keepalive", "ack", "end"])


@settings(max_examples=300, deadline=None)
@given(text=st.text() | JSON.map(json.dumps))
def test_any_text_is_a_message_or_a_typed_error(text: str) -> None:
    check_answer(text)


@settings(max_examples=300, deadline=None)
@given(kind=KINDS, fields=st.dictionaries(NAMES, JSON), encoding=st.sampled_from(ENCODINGS))
def test_any_fields_are_a_message_or_a_typed_error(kind: str, fields: dict[str, object], encoding: str) -> None:
    check_answer(json.dumps({"encoding": encoding, "sample_rate": 16_000, **fields, "type": kind}))


def check_answer(text: str) -> None:
    """Whatever comes back can be sent."""
    code, shown = "none", ""
    try:
        shown = str(parse(text))
    except ProtocolError as error:
        code, shown = error.code, str(error)
    assert code in ("none", "bad_json", "bad_message", "bad_version")
    encode("echo", message=shown).encode("ascii")


def test_limits_are_those_of_the_parts() -> None:
    assert HIGHEST_BOOST == MAX_BOOST
    assert HIGHEST_LM_WEIGHT == MAX_LM_WEIGHT
    assert (LOWEST_RATE, HIGHEST_RATE) == (8_000, 48_000)


def test_words_on_the_wire() -> None:
    word = Word(text="café", start_ms=100, end_ms=300, emitted_ms=800, confidence=0.123456)
    event = Words(text=" café", words=(word,), first=4, amended=(3, word))
    assert words_fields(event, [612], timestamps=True) == {
        "text": " café",
        "first": 4,
        "words": [
            {
                "text": "café",
                "start_ms": 100,
                "end_ms": 300,
                "emitted_ms": 800,
                "delay_ms": {"audio": 500, "wall": 612},
                "confidence": 0.1235,
            }
        ],
        "amended": {"index": 3, "text": "café"},
    }
    bare = words_fields(Words(text=" a", words=(word,), first=0), [None], timestamps=False)
    assert bare == {"text": " a", "first": 0, "words": [{"text": "café"}]}


def test_a_frame_is_ascii_and_refuses_what_json_has_not() -> None:
    assert encode("tail", text="é\ud800") == '{"type":"tail","text":"\\u00e9\\ud800"}'
    with pytest.raises(ValueError, match="JSON"):
        encode("heartbeat", real_time_factor=float("nan"))


def test_summaries() -> None:
    assert summary_fields(None) is None
    found = summary_fields(DelaySummary(count=2, p50_ms=10, p90_ms=20, p95_ms=30, max_ms=31))
    assert found == {"words": 2, "p50": 10, "p90": 20, "p95": 30, "max": 31}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), "bad_setting"),
        (AudioFormatError("x"), "bad_audio"),
        (InvalidSamples("x"), "bad_audio"),
        (PhraseError("x"), "bad_phrases"),
        (Overloaded("x"), "overloaded"),
        (StreamClosed("x"), "closed"),
        (ProtocolError("idle", "x"), "idle"),
    ],
)
def test_errors_have_codes_and_their_texts(error: Exception, code: str) -> None:
    assert (error_code(error), error_text(error)) == (code, "x")


def test_the_text_of_an_accident_stays_in_the_log() -> None:
    error = RuntimeError("/home/someone/secret")
    assert error_code(error) == "internal"
    assert "secret" not in error_text(error)
