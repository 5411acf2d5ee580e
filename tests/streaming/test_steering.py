"""Sessions with their own phrases: as alone, in any company; changed while they run; every phrase answered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import asr
from asr.errors import ConfigError, LanguageModelError, PhraseError, StreamClosed
from asr.jobs import transcribe_streams
from asr.model import Model
from asr.slots import StreamEngine
from lm_fusion.fusion import Fusion
from lm_fusion.phrases import MAX_BOOST, Phrase
from streaming.events import Tail
from streaming.session import Session
from tests.tiny_model import bursts, tiny_ctc_model

LISTS: tuple[Sequence[str], ...] = (["ta sa", "the don"], ["e'e'e", "mmm"], list("abcdefghijkl"))
STEP = 1280


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_ctc_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def audio() -> np.ndarray:
    return bursts(2.5, seed=3).numpy()


def steered(model: Model, phrases: Sequence[str | Phrase], audio: np.ndarray, boost: float = MAX_BOOST) -> str:
    scorer = Fusion.of(model, slots=1, phrases=phrases, boost=boost)
    return asr.transcribe(model, audio, delay_ms=80, chunk_ms=160, scorer=scorer).text


def session(model: Model, **more: object) -> Session:
    return Session(model, delay_ms=80, chunk_ms=160, **more)  # type: ignore[arg-type]


def run(one: Session, audio: np.ndarray) -> str:
    one.feed_audio(audio)
    one.close()
    return one.transcript().text


def test_phrases_change_the_text_and_a_session_writes_what_a_file_does(model: Model, audio: np.ndarray) -> None:
    plain = asr.transcribe(model, audio, delay_ms=80, chunk_ms=160).text
    texts = [steered(model, phrases, audio) for phrases in LISTS]
    assert plain
    assert len({plain, *texts}) > 2
    for phrases, text in zip(LISTS, texts, strict=True):
        assert run(session(model, phrases=phrases, boost=MAX_BOOST), audio) == text
    assert run(session(model), audio) == plain


def test_without_weight_text_and_times_are_those_of_no_phrases(model: Model, audio: np.ndarray) -> None:
    plain = asr.transcribe(model, audio, delay_ms=80, chunk_ms=160)
    scorer = Fusion.of(model, slots=1, phrases=LISTS[2], boost=0.0)
    assert asr.transcribe(model, audio, delay_ms=80, chunk_ms=160, scorer=scorer) == plain
    assert run(session(model, phrases=LISTS[2], boost=0.0), audio) == plain.text


def test_sessions_with_other_lists_in_one_batch_are_as_alone(model: Model, audio: np.ndarray) -> None:
    engine = StreamEngine(model, slots=4, scorer=Fusion.of(model, slots=4))
    many = [session(model, engine=engine, phrases=phrases, boost=MAX_BOOST) for phrases in LISTS]
    many.append(session(model, engine=engine))
    for start in range(0, len(audio), 5 * STEP):
        for one in many:
            one.feed_audio(audio[start : start + 5 * STEP])
    for one in many:
        one.close()
    alone = [*(steered(model, phrases, audio) for phrases in LISTS), steered(model, [], audio)]
    assert [one.transcript().text for one in many] == alone
    # A slot that is used again knows nothing of the list before.
    assert run(session(model, engine=engine), audio) == alone[-1]


def test_files_in_a_batch_share_a_list(model: Model, audio: np.ndarray) -> None:
    scorer = Fusion.of(model, slots=2, phrases=LISTS[2], boost=MAX_BOOST)
    jobs = [(str(size), [audio[:size]]) for size in (16_000, 40_000, 24_000)]
    found = dict(transcribe_streams(model, jobs, delay_ms=80, chunk_ms=160, batch_size=2, scorer=scorer))
    for key, (samples,) in jobs:
        result = found[key]
        assert not isinstance(result, Exception)
        assert result.text == steered(model, LISTS[2], samples)


def test_a_list_may_change_while_the_session_runs(model: Model, audio: np.ndarray) -> None:
    half = 12 * STEP
    scorer = Fusion.of(model, slots=2)
    engine = StreamEngine(model, slots=2, scorer=scorer)
    one, other = session(model, engine=engine), session(model, engine=engine)
    for stream in (one, other):
        stream.feed_audio(audio[:half])
    before = one.transcript().text
    answers = one.update(phrases=LISTS[2], boost=MAX_BOOST)
    assert [answer.text for answer in answers] == LISTS[2]
    assert one.phrase_answers == answers
    for stream in (one, other):
        stream.feed_audio(audio[half:])
        stream.close()
    plain = steered(model, [], audio)
    assert other.transcript().text == plain
    assert one.transcript().text.startswith(before)
    assert one.transcript().text != plain


def test_an_update_keeps_what_it_does_not_name(model: Model, audio: np.ndarray) -> None:
    one = session(model, phrases=LISTS[2], boost=0.0)
    one.update(boost=MAX_BOOST)
    assert run(one, audio) == steered(model, LISTS[2], audio)
    other = session(model, phrases=LISTS[2], boost=MAX_BOOST)
    other.update(phrases=[])
    assert run(other, audio) == steered(model, [], audio)
    assert other.phrase_answers == ()


def test_what_cannot_be_used_changes_nothing(model: Model, audio: np.ndarray, tmp_path: Path) -> None:
    one = session(model, phrases=LISTS[2], boost=MAX_BOOST)
    with pytest.raises(PhraseError, match="boost is 99"):
        one.update(phrases=["other"], boost=99.0)
    with pytest.raises(ConfigError, match="there is no n-gram model"):
        one.update(phrases=["other"], lm_weight=0.3)
    assert len(one.phrase_answers) == len(LISTS[2])
    assert run(one, audio) == steered(model, LISTS[2], audio)
    with pytest.raises(StreamClosed):
        one.update(phrases=["other"])
    path = tmp_path / "broken.lm"
    path.write_text("nothing of the kind")
    with pytest.raises(LanguageModelError):
        session(model, lm=path)


def test_an_engine_without_a_scorer_takes_no_phrases(model: Model) -> None:
    engine = StreamEngine(model, slots=1)
    with pytest.raises(ConfigError, match="the engine cannot be steered"):
        session(model, engine=engine, phrases=["a"])
    with pytest.raises(ConfigError, match="one n-gram model for all its sessions"):
        session(model, engine=engine, lm="some.lm")
    plain = session(model, engine=engine)  # the slot was not taken
    with pytest.raises(ConfigError, match="the engine cannot be steered"):
        plain.update(phrases=["a"])
    with pytest.raises(ConfigError, match="cannot be steered"):
        engine.steer(0, object())


def test_the_tail_shows_phrases_too(model: Model, audio: np.ndarray) -> None:
    tails = []
    for phrases in ([], ["the cat", "a dog", "sat on"]):
        one = session(model, phrases=phrases, boost=MAX_BOOST)
        found = []
        for start in range(0, len(audio), 2 * STEP):
            one.feed_audio(audio[start : start + 2 * STEP])
            found += [event.text for event in one.events() if isinstance(event, Tail)]
        one.close(decode_rest=False)
        tails.append(found)
    assert tails[0] != tails[1]


def test_equal_lists_of_many_sessions_are_built_once(model: Model) -> None:
    scorer = Fusion.of(model, slots=3)
    builds = scorer.builder.builds
    engine = StreamEngine(model, slots=3, scorer=scorer)
    for _ in range(3):
        session(model, engine=engine, phrases=["Kubernetes", Phrase(text="etcd", boost=2.0)])
    assert scorer.builder.builds == builds + 1
    rows = torch.arange(3)
    scores = scorer.scores(scorer.init_states(3), rows)
    assert torch.equal(scores[0], scores[2])
    assert scores.any()
