"""Joint tuning: rows and labels of a batch by hand, what the losses are 0 for, what moves, and a run that goes on."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import fields, replace
from pathlib import Path

import pytest
import soundfile
import torch

import asr
from asr.checkpoint import save
from asr.config import ChunkSetting
from asr.cross_recogniser import CrossRecogniser
from asr.errors import CheckpointError, ConfigError
from asr.model import Model
from asr.units import STEP_SAMPLES
from recipes import tune
from recipes.data import Clip, read_manifest
from recipes.runs import METRICS, SAVED, train
from recipes.sessions import Session, SessionMaker
from recipes.settings import read_settings
from recipes.teacher import TaughtWord
from recipes.tune import TuneConfig, Tuner, alarms, main, make_batch, objective
from tests.tiny_model import bursts, tiny_additive_model, tiny_ctc_model, tiny_model

CONFIG = TuneConfig(
    steps=6, batch_seconds=3.0, longest_ms=1900, delay_min=2, delay_max=2, warmup_steps=2, log_every=1, save_every=2
)
WORDS = (
    TaughtWord(text="the", pieces=(40, 41), start_ms=100, end_ms=320),
    TaughtWord(text="dog,", pieces=(42,), start_ms=500, end_ms=800),
)
FEW = (((0.5, 2, 4, 3), (0.5, 4, 0, 0)),)


def chunk(steps: int, right: int = 0, silence: int = 0) -> ChunkSetting:
    return ChunkSetting(chunk_steps=steps, right_frames=right, silence_frames=silence)


def session(steps: int, words: tuple[TaughtWord, ...] = WORDS, seed: int = 0) -> Session:
    sound = bursts(steps * 0.08, seed)
    return Session(clean=sound, heard=sound, words=words)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return tiny_ctc_model(tmp_path)


def cross(model: Model) -> CrossRecogniser:
    assert isinstance(model.recogniser, CrossRecogniser)
    return model.recogniser


# -- a batch ---------------------------------------------------------------------------------------------------------


def test_rows_labels_and_blocks_of_a_batch(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "LATE_SHARE", 0.0)
    batch = make_batch(model, [session(12), session(5, ())], chunk(2), CONFIG, seed=1)
    start, no_times = cross(model).prompt
    end = cross(model).end_id
    # "the" ends in step 3, so its pieces are due at steps 5 and 6, "dog," at 9 + 2: blocks of two steps.
    assert batch.tokens.tolist() == [[start, no_times, 40, 41, 42], [start, no_times, end, end, end]]
    assert batch.labels.tolist() == [[-1, 40, 41, 42, end], [-1, end, -1, -1, -1]]
    # The end is due behind the tail: of 12 steps in (12 + 9) / 2, of 5 in (5 + 9) / 2.
    assert batch.block.tolist() == [[2, 2, 3, 5, 10], [7, 7, 0, 0, 0]]
    assert batch.clean.shape == (2, (12 + tune.TRAILING_STEPS) * STEP_SAMPLES)
    assert batch.lens.tolist() == [22 * STEP_SAMPLES, 15 * STEP_SAMPLES]
    assert batch.layout.blocks == 11
    assert model.ctc_tokenizer is not None
    assert batch.ctc.tolist() == [piece for word in model.ctc_tokenizer.encode(["the", "dog"]) for piece in word]
    assert batch.ctc_lens.tolist() == [len(batch.ctc), 0]


def test_what_is_due_behind_the_end_is_written_in_the_last_block(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "LATE_SHARE", 0.0)
    late = replace(CONFIG, delay_min=12, delay_max=12)
    batch = make_batch(model, [session(10)], chunk(4), late, seed=1)
    assert batch.layout.blocks == 5
    assert batch.block.tolist() == [[3, 3, 4, 4, 4]]  # steps 15, 16 and 21 of 20


@pytest.mark.parametrize("seed", range(4))
def test_late_words_are_late_by_up_to_five_steps(model: Model, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(tune, "LATE_SHARE", 1.0)
    block = make_batch(model, [session(12)], chunk(1), CONFIG, seed=seed).block[0].tolist()
    assert 5 + 1 <= block[1] <= 5 + 5
    assert block[2] == block[1] + 1
    assert max(11 + 1, block[2] + 1) <= block[3] <= 11 + 5


def test_delays_are_drawn_from_both_ends_included(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "LATE_SHARE", 0.0)
    wide = replace(CONFIG, delay_min=1, delay_max=4)
    first = {int(make_batch(model, [session(12)], chunk(1), wide, seed=seed).block[0, 1]) for seed in range(60)}
    assert first == {4, 5, 6, 7}


# -- the objective ---------------------------------------------------------------------------------------------------


def test_the_untouched_model_that_hears_all_at_once_is_its_teacher(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "TRUSTED", 0.0)
    student, teacher = cross(model), copy.deepcopy(cross(model))
    whole = chunk(12 + tune.TRAILING_STEPS)
    batch = make_batch(model, [session(12), session(12, WORDS[:1], 3)], whole, CONFIG, seed=1)
    with torch.no_grad():
        _, same = objective(student, teacher, batch, CONFIG)
        assert abs(same["divergence"]) < 1e-5
        assert same["features"] < 1e-8
        assert same["right"] == same["teacher_right"]
        assert same["trusted"] == 1.0
        in_parts = make_batch(model, [session(12)], chunk(2), CONFIG, seed=1)
        _, streamed = objective(student, teacher, in_parts, CONFIG)
        assert streamed["features"] > 1e-4
        assert streamed["divergence"] > 1e-5
        student.decoder.layers[0].feed_forward.down.bias[3] += 1.0  # the norm takes off what all have in common
        _, moved = objective(student, teacher, batch, CONFIG)
        assert moved["divergence"] > 1e-4
        assert moved["features"] < 1e-8


def test_the_loss_is_the_weighted_sum_of_its_parts(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "TRUSTED", 0.0)
    config = replace(CONFIG, teacher_weight=0.7, feature_weight=0.3, ctc_weight=0.1)
    batch = make_batch(model, [session(12)], chunk(2), config, seed=1)
    with torch.no_grad():
        loss, parts = objective(cross(model), copy.deepcopy(cross(model)), batch, config)
    expected = parts["cross_entropy"] + 0.7 * parts["divergence"] + 0.3 * parts["features"] + 0.1 * parts["ctc"]
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert float(loss) == parts["loss"]


def test_a_teacher_that_does_not_find_the_piece_is_not_believed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "TRUSTED", 1.0)
    batch = make_batch(model, [session(12)], chunk(2), CONFIG, seed=1)
    with torch.no_grad():
        _, parts = objective(cross(model), copy.deepcopy(cross(model)), batch, CONFIG)
    assert parts["divergence"] == parts["trusted"] == 0.0


def test_padding_teaches_nothing(model: Model) -> None:
    """A short session beside a long one counts as it does alone."""
    short, long = session(6, WORDS[:1], 1), session(12, (), 2)
    weights = replace(CONFIG, ctc_weight=0.0, feature_weight=0.0)
    with torch.no_grad():
        alone = [
            objective(
                cross(model), copy.deepcopy(cross(model)), make_batch(model, [one], chunk(2), weights, 1), weights
            )
            for one in (short, long)
        ]
        _, both = objective(
            cross(model), copy.deepcopy(cross(model)), make_batch(model, [short, long], chunk(2), weights, 1), weights
        )
    rows = (3, 1)  # labels of each: two pieces and the end, the end
    expected = sum(n * parts["cross_entropy"] for n, (_, parts) in zip(rows, alone, strict=True)) / sum(rows)
    assert both["cross_entropy"] == pytest.approx(expected, rel=1e-4)


# -- a run -----------------------------------------------------------------------------------------------------------


def recorded(folder: Path, count: int = 5) -> tuple[tuple[Clip, ...], SessionMaker]:
    lines = []
    for i in range(count):
        sound = bursts(0.6 + 0.05 * i, i)
        soundfile.write(folder / f"{i}.wav", sound.numpy(), 16_000)
        lines.append({"audio": f"{i}.wav", "duration": len(sound) / 16_000, "source": "toy", "licence": "CC0"})
    (folder / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    clips = read_manifest(folder / "clips.jsonl")
    hiss = torch.randn(20_000, generator=torch.Generator().manual_seed(1))
    return clips, SessionMaker({one.audio: WORDS[:1] for one in clips}, [hiss])


def tuner(folder: Path, config: TuneConfig = CONFIG) -> Tuner:
    (folder / "model").mkdir(parents=True, exist_ok=True)
    model = tiny_ctc_model(folder / "model")
    clips, maker = recorded(folder)
    return Tuner(model, copy.deepcopy(model), clips, maker, config)


@pytest.fixture
def few_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "MIXES", FEW)


def lines(folder: Path) -> list[dict[str, float]]:
    read = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read]


@pytest.mark.usefixtures("few_chunks")
def test_a_run_that_was_killed_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    whole = tuner(tmp_path / "a")
    list(train(whole, tmp_path / "whole", alarms=alarms(whole)))
    killed = tuner(tmp_path / "b")
    running = train(killed, tmp_path / "killed", alarms=alarms(killed))
    for _ in range(CONFIG.save_every + 1):  # it stops behind a save, before the next one
        next(running)
    running.close()
    random.seed(99)
    torch.manual_seed(99)
    again = tuner(tmp_path / "c")
    assert [line["step"] for line in train(again, tmp_path / "killed", alarms=alarms(again))] == [3, 4, 5, 6]
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    for name, weight in cross(whole.model).state_dict().items():
        assert torch.equal(weight, cross(again.model).state_dict()[name]), name


@pytest.mark.usefixtures("few_chunks")
def test_a_step_of_two_batches_has_the_mean_of_their_gradients(tmp_path: Path) -> None:
    """Without rates that move anything, two steps of one batch hear what one step of two does."""
    still = replace(CONFIG, encoder_rate=1e-30, decoder_rate=1e-30, ctc_rate=1e-30, clip_norm=1e9, weight_decay=0.0)
    single, double = tuner(tmp_path / "a", still), tuner(tmp_path / "b", replace(still, accumulation=2))
    weight, theirs = (cross(one.model).decoder.norm.weight for one in (single, double))
    metrics, gradients = [], []
    for _ in range(2):
        metrics.append(single.step())
        assert weight.grad is not None
        gradients.append(weight.grad.clone())
    found = double.step()
    for name in ("loss", "ctc", "features", "chunk_steps", "blank_rate"):
        assert found[name] == pytest.approx(sum(one[name] for one in metrics) / 2, rel=1e-5), name
    assert found["audio_seconds"] == pytest.approx(sum(one["audio_seconds"] for one in metrics))
    assert theirs.grad is not None
    torch.testing.assert_close(theirs.grad, (gradients[0] + gradients[1]) / 2)


@pytest.mark.usefixtures("few_chunks")
def test_bfloat16_is_near_and_the_weights_stay_in_float32(tmp_path: Path) -> None:
    losses = [tuner(tmp_path / str(bf16), replace(CONFIG, bf16=bf16)).step()["loss"] for bf16 in (False, True)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[1] != losses[0]


@pytest.mark.usefixtures("few_chunks")
def test_the_checkpoint_has_the_average_where_one_is_kept(tmp_path: Path) -> None:
    one = tuner(tmp_path, replace(CONFIG, average_decay=0.5))
    weight = cross(one.model).decoder.norm.weight
    start = weight.detach().clone()
    one.step()
    moved = weight.detach().clone()
    trained = cross(one.trained_model())
    torch.testing.assert_close(trained.decoder.norm.weight, (start + moved) / 2)
    assert torch.equal(weight, moved)
    assert not trained.decoder.norm.weight.requires_grad
    assert torch.equal(cross(tuner(tmp_path / "plain").trained_model()).decoder.norm.weight, start)


@pytest.mark.usefixtures("few_chunks")
def test_alarms_of_a_silent_ctc_head_and_of_pieces_said_twice(tmp_path: Path) -> None:
    one = tuner(tmp_path, replace(CONFIG, blank_rate_bound=0.5, repeats_bound=0.1))
    head, decoder = cross(one.model).ctc, cross(one.model).decoder
    assert head is not None
    head.out.bias.data[head.blank] += 1e3  # says nothing
    embedding = decoder.embedding.weight
    embedding.data[40] = 0.0
    batch = make_batch(one.model, [session(12)], chunk(2), CONFIG, seed=1)
    with torch.no_grad():
        _, metrics = objective(cross(one.model), copy.deepcopy(cross(one.model)), batch, CONFIG)
    assert metrics["blank_rate"] == 1.0
    silent, twice = alarms(one)
    raised = silent(metrics)
    assert raised is not None
    assert raised["alarm"] == "1.000 of the CTC head's steps are blank; the bound is 0.5"
    assert twice({"repeats": 0.1}) is None
    assert twice({"repeats": 0.2}) is not None


def test_a_piece_said_again_is_a_repeat_unless_it_is_due(model: Model) -> None:
    """A decoder that says what it has read repeats, but where the text has the piece twice."""
    twice = (WORDS[0], replace(WORDS[1], pieces=(41,)))
    decoder = cross(model).decoder
    for name, weight in decoder.named_parameters():
        if "embedding" not in name and "norm" not in name:
            weight.data.zero_()
    embedding = decoder.embedding.weight
    embedding.data = torch.nn.functional.normalize(embedding.data - embedding.data.mean(1, keepdim=True), dim=1)
    batch = make_batch(model, [session(12, twice)], chunk(2), CONFIG, seed=1)
    with torch.no_grad():
        _, metrics = objective(cross(model), copy.deepcopy(cross(model)), batch, CONFIG)
    assert metrics["right"] == 0.25
    assert metrics["repeats"] == 0.75


def test_only_a_model_with_a_ctc_head_can_fall_silent_in_it(tmp_path: Path) -> None:
    plain = tiny_model(tmp_path)
    clips, maker = recorded(tmp_path)
    assert len(alarms(Tuner(plain, copy.deepcopy(plain), clips, maker, CONFIG))) == 1


@pytest.mark.usefixtures("few_chunks")
def test_encoder_decoder_and_ctc_head_move_and_nothing_else(tmp_path: Path) -> None:
    one = tuner(tmp_path, replace(CONFIG, encoder_rate=1e-3, decoder_rate=1e-3))
    before = copy.deepcopy(cross(one.model).state_dict())
    teacher = copy.deepcopy(one._teacher.state_dict())
    one.step()
    moved = {name for name, value in cross(one.model).state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[0] for name in moved} == {"encoder", "decoder", "ctc"}
    assert not moved & {"decoder.embedding.weight", "decoder.positions"}
    assert all(torch.equal(value, teacher[name]) for name, value in one._teacher.state_dict().items())


@pytest.mark.usefixtures("few_chunks")
def test_a_part_without_a_rate_stays(tmp_path: Path) -> None:
    one = tuner(tmp_path, replace(CONFIG, encoder_rate=0.0, ctc_rate=0.0))
    before = copy.deepcopy(cross(one.model).state_dict())
    one.step()
    moved = {name for name, value in cross(one.model).state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[0] for name in moved} == {"decoder"}


@pytest.mark.usefixtures("few_chunks")
def test_a_loss_that_is_no_number_stops_before_the_weights_move(tmp_path: Path) -> None:
    one = tuner(tmp_path, replace(CONFIG, ctc_weight=float("nan")))
    before = copy.deepcopy(cross(one.model).state_dict())
    with pytest.raises(ConfigError, match="the loss of step 1 is nan"):
        one.step()
    assert all(torch.equal(value, before[name]) for name, value in cross(one.model).state_dict().items())
    assert one.done == 0


@pytest.mark.usefixtures("few_chunks")
def test_a_saved_run_with_other_settings_is_refused(tmp_path: Path) -> None:
    state = tuner(tmp_path / "a").state_dict()
    with pytest.raises(CheckpointError, match="the saved run has config="):
        tuner(tmp_path / "b", replace(CONFIG, seed=2)).load_state_dict(state)
    with pytest.raises(CheckpointError, match="has clips=4"):
        tuner(tmp_path / "b").load_state_dict(state | {"clips": 4})


def test_there_must_be_clips_and_a_full_context_teacher(tmp_path: Path) -> None:
    model = tiny_ctc_model(tmp_path)
    with pytest.raises(ConfigError, match="no clip to tune on"):
        Tuner(model, model, [], SessionMaker({}, []), CONFIG)
    other = tiny_additive_model(tmp_path)
    with pytest.raises(ConfigError, match="tiny additive is no cross-family model"):
        Tuner(other, other, recorded(tmp_path)[0], SessionMaker({}, []), CONFIG)


@pytest.mark.parametrize(("field", "value"), [("steps", 0), ("delay_min", 0), ("save_every", 0), ("delay_max", 1)])
def test_settings_that_cannot_work_are_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=r"delay|at least 1"):
        replace(CONFIG, **{field: value})


@pytest.mark.usefixtures("few_chunks")
def test_the_command_tunes_what_has_words_and_saves_a_model(tmp_path: Path) -> None:
    save(tiny_ctc_model(tmp_path), tmp_path / "model", "card")
    clips, _ = recorded(tmp_path)
    word = {"text": "the", "pieces": [40], "start_ms": 100, "end_ms": 300}
    taught = [{"audio": one.audio, "words": [word]} for one in clips[1:]]
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "teacher.jsonl").write_text("".join(json.dumps(line) + "\n" for line in taught))
    (tmp_path / "tune.yaml").write_text("steps: 2\nsave_every: 1\nlog_every: 1\nlongest_ms: 1900\nbatch_seconds: 2\n")
    data = ["--data", str(tmp_path / "clips.jsonl"), str(tmp_path / "words"), "--noise", str(tmp_path / "clips.jsonl")]
    data += ["--show", str(tmp_path / "clips.jsonl"), "--plot"]
    out = tmp_path / "out"
    command = ["--config", str(tmp_path / "tune.yaml"), "--model", str(tmp_path / "model"), *data, "--out", str(out)]
    assert main(command) == 0
    assert torch.load(out / SAVED, weights_only=True)["clips"] == 4
    tuned = asr.load(str(out / "checkpoint"))
    untuned = asr.load(str(tmp_path / "model"))
    assert not torch.equal(
        cross(tuned).encoder.layers[0].attention.query.weight, cross(untuned).encoder.layers[0].attention.query.weight
    )
    assert [line["step"] for line in lines(out)] == [1, 2]
    assert (out / "metrics.png").is_file()
    assert len((out / "samples.jsonl").read_text().splitlines()) == 10


def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tmp_path / "none.jsonl"), str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["--model", str(tmp_path), *data]) == 2
    assert "error: " in capsys.readouterr().err


def test_the_file_in_the_project_names_every_setting() -> None:
    path = Path(asr.__file__).parent.parent / "recipes/configs/tune.yaml"
    named = {line.split(":")[0] for line in path.read_text().splitlines() if not line.startswith("#")}
    assert named == {field.name for field in fields(TuneConfig)}
    assert read_settings(TuneConfig, path) == replace(TuneConfig(), steps=450, save_every=25)


def test_a_mix_of_chunks_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="chunk_mix is 3; there are 1 to 2"):
        TuneConfig(chunk_mix=3)


def test_the_shares_of_every_mix_are_a_whole() -> None:
    for mix in tune.MIXES:
        assert sum(share for share, *_ in mix) == pytest.approx(1.0)
