"""Long trials with a tiny model: what is fed, what is recorded, and the report's arithmetic."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.checkpoint import save
from asr.errors import ConfigError
from asr.model import Model
from asr.transcriber import transcribe
from asr.units import SAMPLE_RATE
from asr.words import DecodeStats, Transcript, Word
from recipes.align import AlignedClip, AlignedWord
from recipes.data import Clip
from recipes.mixing import Joined, Placed, cut_pieces, rms_db
from recipes.soak import (
    Run,
    both_ways,
    build_parser,
    cost_report,
    equal_report,
    heard_words,
    long_report,
    main,
    noise_entry,
    noise_report,
    noise_streams,
    read_partial,
    reference_words,
    resident_bytes,
    run_long,
    slope,
)
from tests.tiny_model import bursts, tiny_additive_model, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


def clip(name: str, text: str, path: Path | None = None) -> Clip:
    return Clip(
        audio=name,
        path=path or Path(name),
        duration_ms=3000,
        text=text,
        speaker=None,
        source="made",
        licence="CC0",
    )


def heard(text: str, *, first_ms: int = 1000, seconds: int = 60) -> Transcript:
    """A word a second."""
    words = tuple(
        Word(text=word, start_ms=first_ms + 1000 * i - 500, end_ms=first_ms + 1000 * i, emitted_ms=0, confidence=0.5)
        for i, word in enumerate(text.split())
    )
    return Transcript(words=words, audio_samples=seconds * SAMPLE_RATE, stats=DecodeStats(re_anchors=1))


# -- memory ----------------------------------------------------------------------------------------------------------


def test_the_slope_is_that_of_the_best_line() -> None:
    assert slope([5.0, 5.0, 5.0]) == 0.0
    assert slope([0.0, 1.0, 1.0, 2.0]) == pytest.approx(0.6)
    assert slope([]) is None


def test_the_process_has_some_memory() -> None:
    found = resident_bytes()
    assert found is None or found > 2**20


def test_a_long_run_writes_what_the_file_path_writes_and_its_state_stays(model: Model) -> None:
    samples = bursts(65).numpy()
    run = run_long(model, samples, delay_ms=160, chunk_ms=320, seed=1)
    whole = transcribe(model, samples, delay_ms=160, chunk_ms=320)
    assert run.transcript.words == whole.words
    assert len(run.state_bytes) == len(run.resident) == 2  # at 0 and at 1 minute
    assert len(set(run.state_bytes)) == 1
    assert len(run.re_anchors_ms) == whole.stats.re_anchors > 5
    assert list(run.re_anchors_ms) == sorted(run.re_anchors_ms)
    assert 0 < run.re_anchors_ms[0] < run.re_anchors_ms[-1] <= 65_000


def test_every_chunk_has_its_share_of_the_clock(model: Model) -> None:
    ticks = iter(range(100_000))
    samples = bursts(20).numpy()
    run = run_long(model, samples, delay_ms=160, chunk_ms=80, seed=1, clock=lambda: float(next(ticks)))
    # The clock moves on by 1 between two looks, so that each piece takes 1 s; pieces are up to six chunks long.
    assert len(run.chunk_seconds) == 20_000 // 80
    pieces = len(cut_pieces(samples, largest=8000, rng=random.Random(1)))
    assert sum(run.chunk_seconds) == pytest.approx(pieces)
    assert min(run.chunk_seconds) == pytest.approx(1 / 7, abs=0.03)


def minutes_of(*seconds: float) -> list[float]:
    """What chunks cost that are 30 s long, two a minute."""
    return [cost for cost in seconds for _ in range(2)]


def test_what_a_chunk_costs_in_the_last_minutes_beside_the_first() -> None:
    # Two slow minutes are the warm-up; then each minute costs 2 ms more a chunk.
    report = cost_report(minutes_of(0.9, 0.9, 0.1, 0.102, 0.104), chunk_ms=30_000)
    assert report is not None
    assert (report["chunks"], report["minutes_compared"]) == (10, 1)
    assert (report["first_median_ms"], report["last_median_ms"], report["ratio"]) == (100.0, 104.0, 1.04)
    assert (report["first_mean_ms"], report["last_mean_ms"], report["mean_ratio"]) == (100.0, 104.0, 1.04)
    assert report["median_rise_ms_per_hour"] == 120.0
    assert report["minute_medians_ms"] == [100.0, 102.0, 104.0]


def test_a_long_run_leaves_out_five_minutes_and_compares_ten() -> None:
    report = cost_report(minutes_of(*[9.0] * 5, *[0.1] * 10, *[5.0] * 80, *[0.2] * 10), chunk_ms=30_000)
    assert report is not None
    assert (report["minutes_compared"], report["ratio"]) == (10, 2.0)


def test_one_slow_chunk_moves_the_mean_alone() -> None:
    report = cost_report([0.1] * 12 + [0.1, 0.1, 0.4], chunk_ms=20_000)
    assert report is not None
    assert (report["ratio"], report["mean_ratio"]) == (1.0, 2.0)


def test_short_runs_have_no_minutes_to_compare() -> None:
    assert cost_report(minutes_of(0.1, 0.1, 0.1, 0.1), chunk_ms=30_000) is not None
    assert cost_report(minutes_of(0.1, 0.1), chunk_ms=30_000) is None
    assert cost_report([], chunk_ms=320) is None


# -- long: the report ------------------------------------------------------------------------------------------------


def test_reference_words_have_their_place_in_the_whole() -> None:
    placed = Placed(clip=clip("a", "one two three"), start=32_000, end=32_000 + 48_000)
    assert [(word.text, word.at_ms) for word in reference_words(placed, None)] == [
        ("one", 3000),
        ("two", 4000),
        ("three", 5000),
    ]
    aligned = AlignedClip(audio="a", text="one", words=(AlignedWord(text="one", start_ms=100, end_ms=700),))
    assert [(word.text, word.at_ms) for word in reference_words(placed, aligned)] == [("one", 2700)]
    assert [word.at_ms for word in heard_words(heard("a b"), offset_ms=500)] == [1500, 2500]


def test_the_long_report_keeps_apart_what_is_near_a_re_anchoring() -> None:
    # Two clips of 3 s at 0 and 10 s. In the long run "cat" is doubled by the re-anchoring at 2.5 s, and "ran" is lost
    # far from it; one by one, "ran" is wrong and "big" is too many.
    placed = (
        Placed(clip=clip("a", "red cat sat"), start=0, end=48_000),
        Placed(clip=clip("b", "old dog ran"), start=160_000, end=208_000),
    )
    joined = Joined(samples=np.zeros(60 * SAMPLE_RATE, dtype=np.float32), placed=placed)
    spoken = [("red", 1000), ("cat", 2000), ("cat", 2500), ("sat", 3000), ("old", 11_000), ("dog", 12_000)]
    words = tuple(
        Word(text=text, start_ms=end_ms - 400, end_ms=end_ms, emitted_ms=end_ms, confidence=1.0)
        for text, end_ms in spoken
    )
    transcript = Transcript(words=words, audio_samples=960_000, settings={"chunk_ms": 320})
    run = Run(
        transcript=transcript,
        re_anchors_ms=(2500,),
        state_bytes=(8, 8),
        resident=(2**20, 2 * 2**20, 5 * 2**20),
        chunk_seconds=(),
    )
    alone = {"a": heard("red cat sat", seconds=3), "b": heard("old dog big run", seconds=3)}
    report = long_report(joined, run, alone, {}, chunk_ms=320, near_ms=2000)
    assert report["passed"]
    assert (report["minutes"], report["clips"], report["state_bytes"]) == (1.0, 2, [8])
    assert (report["resident_mb"], report["resident_mb_per_minute"]) == ([1.0, 2.0, 5.0], 3.0)
    assert report["long"] == {"wer": 33.33, "words": 6, "substitutions": 0, "deletions": 1, "insertions": 1}
    assert report["one_by_one"]["wer"] == 33.33
    near, elsewhere = report["places"]["long"]["near"], report["places"]["long"]["elsewhere"]
    assert (near["words"], near["insertions"], near["doubled"], near["deletions"]) == (3, 1, 1, 0)
    assert (elsewhere["words"], elsewhere["deletions"], elsewhere["doubled"]) == (3, 1, 0)
    assert report["places"]["one_by_one"]["near"]["wer"] == 0.0
    alone_elsewhere = report["places"]["one_by_one"]["elsewhere"]
    assert (alone_elsewhere["substitutions"], alone_elsewhere["insertions"]) == (1, 1)
    assert [(error["kind"], error["text"]) for error in report["near_errors"]] == [("insertion", "cat")]
    json.dumps(report)


def test_a_state_that_grows_does_not_pass() -> None:
    placed = (Placed(clip=clip("a", "one"), start=0, end=16_000),)
    joined = Joined(samples=np.zeros(SAMPLE_RATE, dtype=np.float32), placed=placed)
    run = Run(transcript=heard("one"), re_anchors_ms=(), state_bytes=(8, 9), resident=(1,), chunk_seconds=())
    report = long_report(joined, run, {"a": heard("one")}, {}, chunk_ms=320, near_ms=2000)
    assert not report["passed"]
    assert report["state_bytes"] == [8, 9]
    assert report["resident_mb_per_minute"] is None


# -- noise -----------------------------------------------------------------------------------------------------------


def test_every_noise_comes_at_every_level(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "hum.wav", np.sin(np.arange(800) / 9) / 2, SAMPLE_RATE, subtype="FLOAT")
    found = dict(noise_streams([clip("hum", "", tmp_path / "hum.wav")], count=4000, levels_db=(-50, -20), seed=1))
    assert list(found) == [
        "silence",
        "white -50 dBFS",
        "white -20 dBFS",
        "pink -50 dBFS",
        "pink -20 dBFS",
        "hum -50 dBFS",
        "hum -20 dBFS",
    ]
    assert all(len(samples) == 4000 for samples in found.values())
    assert not found["silence"].any()
    assert np.allclose(found["white -20 dBFS"], found["white -50 dBFS"] * 10**1.5, atol=1e-5)
    assert np.array_equal(found["hum -50 dBFS"][:800], found["hum -50 dBFS"][800:1600])


def test_noise_is_at_its_level_and_reproducible(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "hum.wav", np.sin(np.arange(8000) / 9) / 2, SAMPLE_RATE)
    hum = clip("hum", "", tmp_path / "hum.wav")
    first = dict(noise_streams([hum], count=16_000, levels_db=(-40,), seed=1))
    again = dict(noise_streams([hum], count=16_000, levels_db=(-40,), seed=1))
    other = dict(noise_streams([hum], count=16_000, levels_db=(-40,), seed=2))
    for name in ("white -40 dBFS", "pink -40 dBFS", "hum -40 dBFS"):
        assert rms_db(first[name]) == pytest.approx(-40, abs=0.01)
        assert np.array_equal(first[name], again[name])
    assert not np.array_equal(first["white -40 dBFS"], other["white -40 dBFS"])
    assert not np.allclose(first["white -40 dBFS"], first["pink -40 dBFS"])


def test_conditions_with_words_are_listed_by_name() -> None:
    report = noise_report(
        [noise_entry("wind", heard("a")), noise_entry("rain", heard("b")), noise_entry("calm", heard(""))]
    )
    assert [entry["condition"] for entry in report["written"]] == ["rain", "wind"]
    assert noise_report([])["seconds_each"] == 0


def test_the_noise_report_lists_what_was_written() -> None:
    report = noise_report([noise_entry("white", heard("")), noise_entry("wind", heard("thank you"))])
    assert (report["conditions"], report["seconds_each"], report["words"], report["passed"]) == (2, 60.0, 2, False)
    assert report["written"] == [
        {
            "condition": "wind",
            "words": [
                {"text": "thank", "start_ms": 500, "confidence": 0.5},
                {"text": "you", "start_ms": 1500, "confidence": 0.5},
            ],
        }
    ]
    assert noise_report([noise_entry("white", heard(""))])["passed"]


# -- equal -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_file_and_session_write_the_same(model: Model, seed: int) -> None:
    whole, pieces = both_ways(model, bursts(5, seed).numpy(), delay_ms=160, chunk_ms=160, rng=random.Random(seed))
    assert whole == pieces != ""


def test_silence_is_equal_both_ways(model: Model, tmp_path: Path) -> None:
    silent = tiny_additive_model(tmp_path)
    silent.recogniser.requires_grad_(False)
    silent.recogniser.banned.fill_(True)  # it can only wait
    found = both_ways(silent, np.zeros(9000, dtype=np.float32), delay_ms=160, chunk_ms=160, rng=random.Random(1))
    assert found == ("", "")


def test_the_equal_report_lists_what_differs() -> None:
    report = equal_report({"a": ("one two", "one two"), "b": ("one", "One"), "c": ("", "")})
    assert (report["clips"], report["with_text"], report["passed"]) == (3, 2, False)
    assert report["unequal"] == [{"audio": "b", "file": "one", "session": "One"}]
    assert equal_report({"a": ("x", "x")})["passed"]


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    """Arguments: a model and a manifest of three clips."""
    save(tiny_additive_model(tmp_path), tmp_path / "model", "a card")
    lines = []
    for number, text in enumerate(("the on", "don", "")):
        soundfile.write(tmp_path / f"{number}.wav", bursts(1.5, number).numpy(), SAMPLE_RATE)
        entry = {"audio": f"{number}.wav", "duration": 1.5, "text": text, "source": "made", "licence": "CC0"}
        lines.append(json.dumps(entry | {"subset_tag": "odd" if number % 2 else "even"}))
    (tmp_path / "clips.jsonl").write_text("\n".join(lines))
    return ["--model", str(tmp_path / "model"), "--manifest", str(tmp_path / "clips.jsonl"), "--delay-ms", "160"]


def run(check: str, data: list[str], *more: str) -> tuple[int, dict[str, object]]:
    out = Path(data[1]).parent / "reports" / "report.json"
    code = main([check, *data, "--chunk-ms", "160", "--out", str(out), *more])
    return code, json.loads(out.read_text())


def test_the_long_command_reports(data: list[str]) -> None:
    code, report = run("long", data, "--minutes", "0.1")
    assert (code, report["check"], report["passed"]) == (0, "long", True)
    assert report["settings"] == {
        "model": "tiny additive",
        "delay_ms": 160,
        "chunk_ms": 160,
        "right_context_ms": 0,
        "silence_ms": 0,
        "draft": "auto",
        "draft_mode": "exact",
    }
    marks, stats = report["re_anchors_ms"], report["stats"]
    assert isinstance(marks, list)
    assert isinstance(stats, dict)
    assert len(marks) == stats["re_anchors"]


def test_the_noise_command_reports(data: list[str]) -> None:
    code, report = run("noise", data, "--seconds", "0.5", "--level-db", "-30", "--subset", "odd", "--batch-size", "2")
    assert (report["check"], report["conditions"]) == ("noise", 4)
    assert code == (1 if report["words"] else 0)


def test_an_interrupted_noise_run_goes_on(data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--seconds", "0.5", "--level-db", "-30", "--subset", "odd", "--batch-size", "1")
    _, whole = run("noise", data, *arguments)
    partial = Path(data[1]).parent / "reports" / "report.json.partial"
    assert not partial.exists()
    settings = {
        "model": data[1],
        "seconds": 0.5,
        "level_db": [-30.0],
        "seed": 1,
        "delay_ms": 160,
        "chunk_ms": 160,
        "manifest": data[3],
    }
    made = noise_entry("silence", heard("made up", seconds=1))
    partial.write_text("".join(json.dumps(line) + "\n" for line in (settings, made)) + '{"cond')
    capsys.readouterr()
    code, rest = run("noise", data, *arguments)
    assert "silence" not in capsys.readouterr().err  # it was not decoded again
    assert rest["conditions"] == whole["conditions"]
    written = rest["written"]
    assert isinstance(written, list)
    assert {"condition": "silence", "words": made["words"]} in written
    assert code == 1
    assert not partial.exists()


def test_the_partial_file_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json.partial"
    assert read_partial(path, {"seed": 1}) == []
    with path.open("a") as out:
        out.write('{"condition": "silence", "seconds": 1, "words": []}\n{"condi')
    assert [entry["condition"] for entry in read_partial(path, {"seed": 1})] == ["silence"]
    assert len(path.read_text().splitlines()) == 2
    with pytest.raises(ConfigError, match="another run"):
        read_partial(path, {"seed": 2})


def test_the_long_command_uses_word_times(data: list[str]) -> None:
    words = (AlignedWord(text="the", start_ms=0, end_ms=100), AlignedWord(text="on", start_ms=100, end_ms=200))
    aligned = Path(data[1]).parent / "aligned.jsonl"
    aligned.write_text(AlignedClip(audio="0.wav", text="the on", words=words).to_json() + "\n")
    _, report = run("long", data, "--minutes", "0.02", "--subset", "even", "--alignments", str(aligned))
    assert report["clips"] == 1
    _, spread = run("long", data, "--minutes", "0.02", "--subset", "even")
    assert report["long"] == spread["long"]
    assert report["one_by_one"] == spread["one_by_one"]


def test_the_equal_command_reports(data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run("equal", data, "--clips", "9", "--skip-subset", "odd")
    assert (code, report["clips"], report["unequal"]) == (0, 2, [])
    assert json.loads(capsys.readouterr().out) == report


def test_the_command_names_what_is_wrong(data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["equal", *data, "--subset", "none"]) == 2
    assert "no clip of the subsets" in capsys.readouterr().err
    assert main(["equal", *data, "--chunk-ms", "800"]) == 2
    assert "chunk_ms" in capsys.readouterr().err
    assert main(["equal", *data[:2], "--manifest", "none.jsonl"]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_the_command_has_these_flags() -> None:
    shared = {"model", "manifest", "subset", "skip_subset", "delay_ms", "chunk_ms", "batch_size", "threads", "seed"}
    own = {"long": {"minutes", "alignments"}, "noise": {"seconds", "level_db"}, "equal": {"clips"}}
    for check, flags in own.items():
        args = vars(build_parser().parse_args([check, "--manifest", "m.jsonl"]))
        assert set(args) == shared | flags | {"out", "check", "run"}
    args = vars(build_parser().parse_args(["noise", "--manifest", "m.jsonl"]))
    assert (args["seconds"], args["level_db"]) == (300.0, [-60, -50, -40, -30, -20])


def test_words_in_noise_do_not_pass(data: list[str], model: Model) -> None:
    save(model, data[1], "a card")  # writes words whatever it hears
    code, report = run("noise", data, "--seconds", "4", "--level-db", "-20", "--subset", "odd")
    assert report["passed"] == (not report["words"])
    assert code == (0 if report["passed"] else 1)
