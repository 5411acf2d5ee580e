import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.recogniser import WAIT
from asr.text import LONGEST_WORD, AssemblerState, StepText, TextDelta, WordAssembler, WordLog, word_span_ms
from asr.vocabulary import Vocabulary
from tests.tiny_model import write_tokenizer


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(write_tokenizer(tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"))


@pytest.fixture(scope="module")
def assembler(vocabulary: Vocabulary) -> WordAssembler:
    return WordAssembler(vocabulary, vocabulary.size)


class Reader:
    """Feeds steps, keeps all deltas."""

    def __init__(self, vocabulary: Vocabulary, assembler: WordAssembler) -> None:
        self.vocabulary, self.assembler = vocabulary, assembler
        self.state, self.log, self.text = AssemblerState(), WordLog(), ""
        self.heard_ms = 1000
        self.deltas: list[TextDelta] = []

    def step(self, *steps: StepText, last: bool = False) -> TextDelta:
        delta, self.state = self.assembler.step(steps, self.state, heard_ms=self.heard_ms, last=last)
        self.log.add(delta)
        self.text += delta.text
        self.deltas.append(delta)
        self.heard_ms += 80
        return delta

    def pieces(self, text: str, **values: float) -> list[StepText]:
        return [StepText(token=token, attended_ms=400, **values) for token in self.vocabulary.encode(text)]

    def write(self, text: str) -> TextDelta:
        return self.step(*self.pieces(text))

    def byte(self, byte: int) -> TextDelta:
        return self.step(StepText(token=self.vocabulary.pieces.index(bytes([byte])), attended_ms=400))

    def wait(self, closes: bool = True) -> TextDelta:
        return self.step(StepText(token=WAIT, closes=closes))

    def end(self) -> TextDelta:
        return self.step(last=True)

    @property
    def words(self) -> list[str]:
        return [word.text for word in self.log.words]


@pytest.fixture
def reader(vocabulary: Vocabulary, assembler: WordAssembler) -> Reader:
    return Reader(vocabulary, assembler)


@pytest.mark.parametrize(
    "text", ["the $5 don't", "well-known U.S. 3.14", "naïve café 日本 ✓", '"Yes," he said.', "a" * 300]
)
def test_a_text_written_piece_by_piece_survives(reader: Reader, text: str) -> None:
    for step in reader.pieces(" " + text):
        reader.step(step)
        reader.wait(closes=False)
    reader.end()
    if len(text) < LONGEST_WORD:
        assert reader.words == text.split()
        assert reader.text == text
    else:
        assert reader.text.replace(" ", "") == text


@pytest.mark.parametrize("text", ["the $5 don't", "well-known U.S. 3.14", "naïve café 日本 ✓"])
def test_it_survives_when_every_piece_is_followed_by_a_closing_wait(reader: Reader, text: str) -> None:
    for step in reader.pieces(" " + text):
        reader.step(step)
        reader.wait()
    reader.end()
    assert reader.words == text.split()
    assert reader.text == text


def test_a_word_is_closed_by_the_next_one_by_a_wait_or_by_a_flush(reader: Reader) -> None:
    assert reader.write(" the").text == ""
    assert reader.state.open
    assert reader.write(" don").text == "the"
    assert reader.wait(closes=False).text == ""
    assert reader.wait().text == " don"
    assert not reader.state.open
    assert reader.wait().text == ""
    assert reader.write(" a").text == ""
    assert reader.end().text == " a"
    assert reader.end() == TextDelta()


def test_late_punctuation_joins_the_word_before(reader: Reader) -> None:
    reader.write(" the")
    closed = reader.wait()
    assert (closed.text, closed.amended, len(closed.words)) == ("the", None, 1)
    late = reader.write(".")
    assert late.text == "."
    assert late.words == ()
    assert late.amended is not None
    assert late.amended[0] == 0
    assert late.amended[1].text == "the."
    assert late.amended[1].emitted_ms == closed.words[0].emitted_ms
    assert late.amended[1].start_ms == closed.words[0].start_ms


def test_late_punctuation_also_joins_after_a_flush(reader: Reader) -> None:
    reader.write(" the")
    reader.end()
    assert reader.write("?").amended is not None
    reader.write(" a")
    reader.end()
    assert reader.words == ["the?", "a"]
    assert reader.text == "the? a"


def test_one_call_can_amend_and_add(reader: Reader) -> None:
    reader.write(" the")
    reader.wait()
    delta = reader.step(*reader.pieces(", don't"), StepText(token=WAIT, closes=True), *reader.pieces("!"))
    assert delta.text == ", don't!"
    assert delta.amended is not None
    assert delta.amended[1].text == "the,"
    assert [word.text for word in delta.words] == ["don't!"]


def test_the_emission_is_that_of_the_last_piece_with_a_letter_or_digit(reader: Reader) -> None:
    for text, heard in ((" U", 1000), (".", 1100), ("S", 1200), (".", 1300)):
        reader.heard_ms = heard
        reader.write(text)
        reader.wait()
    assert reader.words == ["U.S."]
    assert reader.log.words[0].emitted_ms == 1200


def test_a_sign_alone_is_a_word_with_times(reader: Reader) -> None:
    reader.heard_ms = 1500
    reader.write(" -")
    reader.end()
    assert reader.words == ["-"]
    assert reader.log.words[0].emitted_ms == 1500


def test_confidence_is_the_geometric_mean(reader: Reader) -> None:
    first, second = reader.pieces(" don't")
    reader.step(StepText(token=first.token, probability=0.9), StepText(token=second.token, probability=0.4))
    reader.end()
    assert reader.log.words[0].confidence == pytest.approx(math.sqrt(0.36))


def test_a_piece_of_no_probability_is_no_error(reader: Reader) -> None:
    reader.step(*reader.pieces(" the", probability=0.0))
    reader.end()
    assert 0 <= reader.log.words[0].confidence < 1e-6


def test_half_a_character_is_held_until_it_is_whole(reader: Reader) -> None:
    reader.write(" a")
    for byte in "é".encode()[:1]:
        reader.byte(byte)
    assert reader.wait().text == "a"
    assert reader.byte("é".encode()[1]).text == "é"
    reader.end()
    assert reader.text == "aé"


def test_half_a_character_is_unreadable_when_the_word_is_over(reader: Reader) -> None:
    reader.write(" a")
    reader.byte(0xC3)
    assert reader.write(" the").text == "a\ufffd"
    reader.byte(0xE2)
    reader.byte(0x82)
    assert reader.end().text == " the\ufffd"
    assert reader.byte(0xAC).text == "\ufffd"
    assert reader.words == ["a\ufffd", "the\ufffd\ufffd"]


def test_white_space_alone_is_no_word(reader: Reader) -> None:
    for text in (" ", "\n", " ", "the", "\n", "a", " "):
        reader.write(text)
    assert reader.end().words == ()
    assert reader.words == ["the", "a"]
    assert reader.text == "the a"


def test_text_without_a_space_is_broken_and_the_state_stays_small(reader: Reader) -> None:
    for _ in range(3 * LONGEST_WORD):
        reader.write("a")
    reader.end()
    assert max(map(len, reader.words)) == LONGEST_WORD
    assert len(reader.words) == 3


def test_a_text_may_begin_with_a_sign(reader: Reader) -> None:
    reader.write('"')
    reader.write("the")
    reader.end()
    assert reader.words == ['"the']


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just(WAIT), st.booleans(), st.just(0)),
        st.tuples(st.integers(0, 280), st.just(False), st.integers(0, 3000)),
        st.tuples(st.sampled_from([0, 13, 257, 268, 275]), st.just(False), st.integers(0, 3000)),
    ),
    max_size=60,
)


@given(blocks=st.lists(st.tuples(STEPS, st.booleans(), st.integers(0, 700)), max_size=8))
def test_laws_on_any_output(
    vocabulary: Vocabulary, assembler: WordAssembler, blocks: list[tuple[list[tuple[int, bool, int]], bool, int]]
) -> None:
    state, log, text, heard_ms = AssemblerState(), WordLog(), "", 10
    given_out = 0
    for steps, last, more_ms in blocks:
        heard_ms += more_ms
        outputs = [StepText(token=token, closes=closes, attended_ms=at) for token, closes, at in steps]
        before = list(log.words)
        delta, state = assembler.step(outputs, state, heard_ms=heard_ms, last=last)
        log.add(delta)
        text += delta.text
        assert text == " ".join(word.text for word in log.words)  # append-only: all deltas are the transcript
        assert log.words[: max(0, given_out - 1)] == before[: max(0, given_out - 1)]  # only the newest is amended
        given_out = len(log.words)
        assert bool(delta.text) == bool(delta.words or delta.amended)
        for word in log.words:
            assert 0 <= word.start_ms < word.end_ms <= heard_ms
            assert word.text
            assert not any(character.isspace() for character in word.text)
            assert 0 <= word.confidence <= 1
            assert word.emitted_ms <= heard_ms
    _, after = assembler.step([], state, heard_ms=heard_ms, last=True)
    assert not after.open


@given(steps=STEPS, cuts=st.lists(st.integers(0, 60), max_size=5))
def test_text_does_not_depend_on_how_steps_are_grouped(
    vocabulary: Vocabulary, assembler: WordAssembler, steps: list[tuple[int, bool, int]], cuts: list[int]
) -> None:
    outputs = [StepText(token=token, closes=closes, attended_ms=at) for token, closes, at in steps]
    whole, _ = assembler.step(outputs, AssemblerState(), heard_ms=5000, last=True)
    state, log, text = AssemblerState(), WordLog(), ""
    edges = [0, *sorted(cuts), len(outputs)]
    for start, end in pairwise(edges):
        delta, state = assembler.step(outputs[start:end], state, heard_ms=5000, last=False)
        log.add(delta)
        text += delta.text
    delta, state = assembler.step([], state, heard_ms=5000, last=True)
    log.add(delta)
    assert text + delta.text == whole.text
    assert tuple(log.words) == whole.words


@given(
    first=st.integers(-100, 5000),
    length=st.integers(-500, 2000),
    gap=st.integers(-200, 3000),
    heard=st.integers(1, 5000),
)
def test_a_span_is_always_within_the_audio(first: int, length: int, gap: int, heard: int) -> None:
    previous = max(0, min(first + gap, heard))
    start, end = word_span_ms(first, first + length, letters=length % 17, previous_end_ms=previous, heard_ms=heard)
    assert 0 <= start < end <= heard
    if previous + 20 <= end:
        assert start >= min(previous, end - 20)
