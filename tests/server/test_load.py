import json
from pathlib import Path

import pytest
import soundfile

from asr.errors import ConfigError
from asr.model import Model
from server.load import Heard, LoadClip, main, parser, read_clips, report, step_counts, step_quantile
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
        flags = ["--url", url, "--clips", str(manifest), "--sessions", "1,2", "--out", str(tmp_path / "r.json")]
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
        Heard(clip, text=" cats and dogs", delays_ms=[10, 20, 30]),
        Heard(clip, text=" cats dogs", delays_ms=[500]),
    ]
    found = report(heard, {clip.path: " cats and dogs"})
    assert (found["lost_words"], found["texts_that_differ"], found["wer"]) == (1, ["a"], pytest.approx(1 / 6))
    assert (found["delay_p50_ms"], found["delay_max_ms"]) == (20, 500)


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
    assert main(["--clips", str(manifest), "--sessions", "1,x"]) == 2
    assert "--sessions is '1,x'" in capsys.readouterr().err
    assert main(["--clips", "/no/such/file"]) == 2


def test_the_flags() -> None:
    flags = {flag for action in parser()._actions for flag in action.option_strings if flag.startswith("--")}
    assert flags == {
        "--help", "--url", "--token", "--clips", "--most-clips", "--sessions", "--delay-ms", "--chunk-ms", "--out",
    }  # fmt: skip
