import asyncio
import json
from pathlib import Path

import pytest
import soundfile

from asr.errors import ConfigError
from asr.model import Model
from server.load import main, measure, parser, report, step_counts, step_quantile, table, too_slow
from server.load_clips import ArrivedWord, Heard, LoadClip, SpokenWord, read_clips
from tests.scripted import codes, say, scripted_model
from tests.server.live_thread import served


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


@pytest.fixture
def manifest(tmp_path: Path, model: Model) -> Path:
    lines = []
    for name, text in (("a", "the don't"), ("b", "a the")):
        soundfile.write(tmp_path / f"{name}.wav", [*say(model, text), *codes(0, 0)], 16_000, subtype="FLOAT")
        lines.append(json.dumps({"audio": f"{name}.wav", "text": text}))
    path = tmp_path / "clips.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_clients_speak_in_real_time_and_wait_for_their_words(manifest: Path, model: Model, tmp_path: Path) -> None:
    with served(model, max_sessions=2, delay_ms=80, chunk_ms=80) as server:
        url = f"ws://127.0.0.1:{server.port}/v1/stream"
        flags = ["--url", url, "--clips", str(manifest), "--sessions", "1", "2", "--out", str(tmp_path / "r.json")]
        assert main(flags) == 0
    first, second = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert (first["sessions"], first["streams"], first["words"]) == (1, 2, 4)
    assert (second["sessions"], second["streams"], second["words"]) == (2, 4, 8)
    for run in (first, second):
        assert (run["wer"], run["lost_words"], run["texts_that_differ"], run["refused"]) == (0.0, 0, [], [])
        assert run["delay_p50_ms"] > 0
        assert run["step_p95_s_at_most"] > 0


def test_refusals_are_counted_and_end_with_1(manifest: Path, model: Model, tmp_path: Path) -> None:
    with served(model, max_sessions=1, delay_ms=80, chunk_ms=80) as server:
        url = f"ws://127.0.0.1:{server.port}/v1/stream"
        flags = ["--url", url, "--clips", str(manifest), "--most-clips", "1", "--sessions", "2"]
        assert main([*flags, "--out", str(tmp_path / "r.json")]) == 1
    (run,) = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert run["refused"] == ["overloaded"]
    assert (run["words"], run["lost_words"], run["texts_that_differ"], run["wer"]) == (2, 0, [], 0.0)


def test_lost_words_and_other_texts_are_those_against_one_client_alone() -> None:
    clip = LoadClip(path=Path("a"), text="cats and dogs")
    heard = [
        Heard(clip, text=" cats and dogs", words=[arrived("x", delay_ms) for delay_ms in (10, 20, 30)]),
        Heard(clip, text=" cats dogs", words=[arrived("x", 500)]),
    ]
    found = report(heard, {clip.path: " cats and dogs"})
    assert (found["lost_words"], found["texts_that_differ"], found["wer"]) == (1, ["a"], pytest.approx(1 / 6))
    assert (found["delay_p50_ms"], found["delay_p90_ms"], found["delay_max_ms"]) == (20, 500, 500)
    assert found["deletion_rate"] == pytest.approx(1 / 6)


def arrived(text: str, emitted_ms: int, end_ms: int | None = 0) -> ArrivedWord:
    return ArrivedWord(text=text, emitted_ms=emitted_ms, end_ms=end_ms)


def test_delays_are_those_of_recognised_words_where_the_ends_are_known() -> None:
    spoken = (
        SpokenWord(text="CATS", end_ms=400),
        SpokenWord(text="AND", end_ms=600),
        SpokenWord(text="DOGS", end_ms=900),
    )
    words = [arrived("Cats", 1000, 500), arrived("or", 1000, 600), arrived("dogs.", 1500, 800)]
    known = Heard(LoadClip(path=Path("a"), text="CATS AND DOGS", words=spoken), words=words)
    assert known.delays_ms == [600, 600]
    assert Heard(LoadClip(path=Path("a"), text="CATS AND DOGS"), words=words).delays_ms == [500, 400, 700]


@pytest.mark.parametrize(
    ("lags_ms", "growth_ms"), [([100, 120, 130, 150], 30), ([0, 0, 500, 900, 1900], 1100), ([100, 900, 900], None)]
)
def test_lag_grows_from_one_half_of_a_session_to_the_other(lags_ms: list[int], growth_ms: float | None) -> None:
    assert Heard(LoadClip(path=Path("a"), text="a"), lags_ms=lags_ms).lag_growth_ms == growth_ms


@pytest.mark.parametrize(
    ("step_s", "growth_ms", "slow"),
    [(0.08, 500, False), (0.1, 0, True), (0.02, 501, True), (None, None, False), (None, 900, True)],
)
def test_what_is_too_slow(step_s: float | None, growth_ms: int | None, slow: bool) -> None:
    assert too_slow({"step_p95_s_at_most": step_s, "lag_growth_ms": growth_ms}) == slow


def test_longer_chunks_may_take_longer() -> None:
    step = {"step_p95_s_at_most": 0.16, "lag_growth_ms": 0}
    assert too_slow(step)
    assert too_slow(step, 159)
    assert not too_slow(step, 160)


def test_more_clients_come_until_it_is_too_slow(capsys: pytest.CaptureFixture[str]) -> None:
    running, most = 0, list[int]()

    async def speak(clip: LoadClip) -> Heard:
        nonlocal running
        running += 1
        most.append(running)
        await asyncio.sleep(1)
        running -= 1
        late_ms = 900 if max(most) > 1 else 0
        return Heard(clip, text="a", words=[arrived("a", 700)], lags_ms=[0, 0, late_ms, late_ms])

    clips = [LoadClip(path=Path("a"), text="a"), LoadClip(path=Path("b"), text="a")]
    found = measure(speak, lambda: "", clips, [1, 2, 4])
    assert [one["sessions"] for one in found] == [1, 2]  # four are not tried
    assert max(most) == 2
    assert [one["lag_growth_ms"] for one in found] == [0, 900]
    head, first, second = table(found).splitlines()
    assert dict(zip(head.split(), first.split(), strict=True))["step95"] == "-"
    assert second.split()[:5] == ["2", "4", "700", "700", "700"]
    assert capsys.readouterr().err.count('"sessions"') == 2


def test_clips_with_the_ends_of_their_words(tmp_path: Path) -> None:
    clips = [{"audio": "a.wav", "text": "the cat"}, {"audio": "b.wav", "text": "hm"}]
    (tmp_path / "clips.jsonl").write_text("\n".join(map(json.dumps, clips)))
    words = [{"text": "the", "start_ms": 0, "end_ms": 200}, {"text": "cat", "start_ms": 200, "end_ms": 500}]
    (tmp_path / "aligned.jsonl").write_text(json.dumps({"audio": "a.wav", "text": "the cat", "words": words}) + "\n")
    (found,) = read_clips(tmp_path / "clips.jsonl", tmp_path / "aligned.jsonl")  # of b's words nothing is known
    assert found == LoadClip(
        path=tmp_path / "a.wav",
        text="the cat",
        words=(SpokenWord(text="the", end_ms=200), SpokenWord(text="cat", end_ms=500)),
    )
    assert len(read_clips(tmp_path / "clips.jsonl")) == 2
    with pytest.raises(ConfigError, match="no list of clips"):
        read_clips(tmp_path / "clips.jsonl", tmp_path / "clips.jsonl")


def test_quantiles_of_steps_come_from_what_was_counted_in_between() -> None:
    def metrics(*counts: int) -> dict[float, float]:
        pairs = zip(("0.1", "0.2", "+Inf"), counts, strict=True)
        lines = [f'earlybird_step_seconds_bucket{{le="{bound}"}} {count}.0' for bound, count in pairs]
        return step_counts("\n".join(lines))

    before, after = metrics(100, 100, 100), metrics(150, 195, 200)
    assert step_quantile(before, after, 0.5) == 0.1
    assert step_quantile(before, after, 0.95) == 0.2
    assert step_quantile(before, after, 0.99) == float("inf")
    assert step_quantile(after, after, 0.5) is step_quantile({}, {}, 0.5) is None


@pytest.mark.parametrize("text", ["", "no json", '{"audio": "a.wav"}', "[1]"])
def test_lists_that_cannot_be_used(tmp_path: Path, text: str) -> None:
    (tmp_path / "clips.jsonl").write_text(text)
    with pytest.raises(ConfigError, match="clip"):
        read_clips(tmp_path / "clips.jsonl")


def test_wrong_settings_end_with_2(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--clips", str(manifest), "--sessions", "1", "0"]) == 2
    assert "--sessions is [1, 0]" in capsys.readouterr().err
    assert main(["--clips", "/no/such/file"]) == 2
    assert main(["--clips", str(manifest), "--peer", "whisperlive"]) == 2
    assert "--peer needs --alignments" in capsys.readouterr().err


def test_the_flags() -> None:
    flags = {flag for action in parser()._actions for flag in action.option_strings if flag.startswith("--")}
    assert flags == {
        "--help", "--url", "--peer", "--token", "--clips", "--alignments", "--most-clips", "--sessions", "--delay-ms",
        "--chunk-ms", "--longest-step-ms", "--out",
    }  # fmt: skip
