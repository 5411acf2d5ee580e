"""The flags --lm, --lm-weight, --phrases and --boost: what they load, what is said of each phrase."""

from __future__ import annotations

from pathlib import Path

import pytest

from asr.errors import ConfigError, LanguageModelError, PhraseError
from asr.model import Model
from lm_fusion.fusion import DEFAULT_LM_WEIGHT, Fusion
from lm_fusion.phrases import read_phrases
from server.engine import Scorer, load_scorer
from tests.lm_fusion.test_fusion import ARPA
from tests.tiny_model import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


def load(model: Model, lines: list[str], **flags: object) -> Scorer:
    given = {"lm": None, "lm_weight": None, "phrases": None, "boost": None, **flags}
    return load_scorer(model, slots=2, log=lines.append, **given)  # type: ignore[arg-type]


def test_nothing_to_count_is_no_scorer(model: Model) -> None:
    lines: list[str] = []
    assert load(model, lines) is None
    assert lines == []


def test_every_phrase_that_is_not_taken_as_it_stands_is_told(model: Model, tmp_path: Path) -> None:
    path, lines = tmp_path / "phrases.txt", list[str]()
    path.write_text("new york\n...\ndog|house\t2\ncat\t99\n")
    scorer = load(model, lines, phrases=path, boost=1.0)
    assert isinstance(scorer, Fusion)
    assert lines == [
        "warning: phrase '...' is left out: it has no letter and no digit",
        "warning: phrase 'dog|house': boosted as 'dog house': the model never writes |",
        "warning: phrase 'cat' is left out: its boost is 99.0; it must be a number from 0 to 5.0",
    ]
    assert scorer.default.phrases is scorer.builder.build(read_phrases(path), boost=1.0)


def test_an_ngram_has_a_weight_of_its_own_unless_told(model: Model, tmp_path: Path) -> None:
    path, lines = tmp_path / "tiny.arpa", list[str]()
    path.write_text(ARPA)
    assert load(model, lines, lm=path).default.lm_weight == DEFAULT_LM_WEIGHT
    assert load(model, lines, lm=path, lm_weight=0.5).default.lm_weight == 0.5


def test_what_has_nothing_to_weigh_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--lm-weight needs an n-gram model"):
        load(model, [], lm_weight=0.5)
    with pytest.raises(ConfigError, match="--boost needs phrases"):
        load(model, [], boost=1.0)
    with pytest.raises(PhraseError, match="No such file"):
        load(model, [], phrases=tmp_path / "none.txt")
    path = tmp_path / "words.txt"
    path.write_text("no model")
    with pytest.raises(LanguageModelError):
        load(model, [], lm=path)
    path.write_text("dog\n")
    with pytest.raises(PhraseError, match="boost is 7"):
        load(model, [], phrases=path, boost=7.0)
