"""Supervised training: targets in a batch, the objective's known answers, and a tiny model that learns two tones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import soundfile
import torch

import asr
from asr.additive_config import AdditiveConfig
from asr.additive_recogniser import AdditiveRecogniser, build_additive
from asr.checkpoint import save
from asr.config import ChunkSetting, SessionLimits
from asr.decode import decode_block
from asr.delay_targets import TimedPieces
from asr.errors import CheckpointError, ConfigError
from asr.recogniser import WAIT
from asr.units import SAMPLE_RATE, STEP_SAMPLES
from asr.vocabulary import Vocabulary
from recipes.align import AlignedClip, AlignedWord
from recipes.distributed import Processes
from recipes.examples import Batch, Example, make_batch
from recipes.sft import SftConfig, Trainer, build_parser, learning_rate, main, objective, train
from tests.tiny import rows_of, settings
from tests.tiny_model import tiny_additive_model, tiny_model, write_tokenizer

TONES = {5: 400.0, 9: 1700.0}
"""Piece to the pitch that stands for it."""
CONFIG = SftConfig(
    steps=6,
    batch_size=2,
    delay_max=3,
    trailing_waits=2,
    warmup_steps=2,
    learning_rate=3e-3,
    wait_rate_bound=1.0,
    repeats_bound=9.0,
    log_every=1,
    save_every=2,
)


def spoken(*words: tuple[int, int], steps: int = 16) -> Example:
    """Tones of 160 ms; words are (piece, the end in milliseconds)."""
    generator = torch.Generator().manual_seed(words[0][1])
    samples = torch.randn(steps * STEP_SAMPLES, generator=generator) * 1e-4
    for piece, end_ms in words:
        end = end_ms * SAMPLE_RATE // 1000
        time = torch.arange(160 * SAMPLE_RATE // 1000) / SAMPLE_RATE
        samples[end - len(time) : end] += 0.3 * torch.sin(2 * math.pi * TONES[piece] * time)
    return Example(samples=samples, words=tuple(TimedPieces(pieces=(piece,), end_ms=end_ms) for piece, end_ms in words))


EXAMPLES = (
    spoken((5, 320), (9, 800)),
    spoken((9, 400), (5, 960)),
    spoken((5, 480), (5, 880)),
    spoken((9, 240), (9, 720)),
)


def tiny(folder: Path, *, dim: int = 16) -> AdditiveRecogniser:
    vocabulary = Vocabulary(write_tokenizer(folder / "tokenizer.json"))
    config = AdditiveConfig(
        mel_bins=16,
        encoder_dim=dim,
        encoder_layers=1,
        encoder_heads=2,
        encoder_head_dim=8,
        encoder_hidden=2 * dim,
        encoder_window_frames=12,
        dim=dim,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=16,
        hidden=2 * dim,
        window_steps=8,
        vocabulary=vocabulary.size,
        limits=SessionLimits(chunks=(ChunkSetting(chunk_steps=2, right_frames=0, silence_frames=0),), delays=(1, 3)),
        encoder_theta=1e4,
        theta=1e4,
        condition_dim=8,
    )
    torch.manual_seed(7)
    return build_additive(config, vocabulary)


def streamed(recogniser: AdditiveRecogniser, samples: torch.Tensor, delay: int) -> list[int]:
    """The greedy output of each step of [N] samples, two steps a block."""
    state = recogniser.init_state(1, max_chunk_steps=2, max_right=0, max_silence=0)
    rows, said = rows_of(settings(delay, 2)), []
    with torch.inference_mode():
        for start in range(0, samples.shape[0], 2 * STEP_SAMPLES):
            block = samples[None, start : start + 2 * STEP_SAMPLES]
            outputs, state, _ = decode_block(recogniser, block, torch.tensor([block.shape[1]]), rows, state)
            said += [int(output.tokens[0]) for output in outputs]
    return said


# -- the objective ---------------------------------------------------------------------------------------------------


def batch_of(outputs: list[int], valid: list[bool]) -> Batch:
    return Batch(torch.zeros(1, 1), torch.tensor([outputs]), torch.tensor([valid]), torch.tensor([1]))


def test_the_loss_of_even_logits_is_the_logarithm_of_their_number() -> None:
    # 4 equal logits of 0: every step costs log 4 whatever it counts, and the log-normaliser is log 4.
    batch = batch_of([0, 3, 3], [True, True, True])
    loss, metrics = objective(torch.zeros(1, 3, 4), batch, wait=3, wait_weight=0.5, z_loss=0.1)
    assert float(loss) == pytest.approx(math.log(4) + 0.1 * math.log(4) ** 2)
    assert metrics["target_wait_rate"] == pytest.approx(2 / 3)


def test_a_wait_counts_less_than_text_and_padding_not_at_all() -> None:
    # Text costs log 2 (logits 0, 0), the wait log 4 (0 against log 3): (1 log 2 + ¼ log 4) / (1 + ¼).
    logits = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0], [50.0, -50.0]]])
    batch = batch_of([0, 1, 1], [True, True, False])
    loss, metrics = objective(logits, batch, wait=1, wait_weight=0.25, z_loss=0.0)
    assert float(loss) == pytest.approx((math.log(2) + 0.25 * math.log(4)) / 1.25)
    assert metrics["squared_normaliser"] == pytest.approx((math.log(2) ** 2 + math.log(4) ** 2) / 2)
    assert (metrics["wait_rate"], metrics["text_right"]) == (0.0, 1.0)


def test_a_piece_said_again_is_a_repeat_unless_it_is_due() -> None:
    def said(outputs: list[int], answers: list[int], valid: list[bool]) -> float:
        logits = 9.0 * torch.nn.functional.one_hot(torch.tensor([answers]), 4)
        return objective(logits, batch_of(outputs, valid), wait=3, wait_weight=0.5, z_loss=0.0)[1]["repeats"]

    four = [True] * 4
    assert said([0, 1, 3, 3], [0, 0, 3, 3], four) == 0.5  # of two pieces one, said for the next
    assert said([0, 3, 1, 3], [0, 0, 1, 1], four) == 1.0  # said for waits
    assert said([0, 0, 3, 3], [0, 0, 3, 3], four) == 0.0
    assert said([0, 3, 3, 3], [3, 3, 3, 3], four) == 0.0
    assert said([0, 1, 3, 3], [0, 0, 3, 3], [True, False, False, False]) == 0.0


def test_the_learning_rate_rises_and_falls() -> None:
    config = replace(CONFIG, warmup_steps=4, steps=12, learning_rate=1.0)
    rates = [learning_rate(step, config) for step in range(13)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.55)
    assert rates[12] == pytest.approx(0.1)


# -- settings --------------------------------------------------------------------------------------------------------


def test_the_file_in_the_project_is_the_defaults() -> None:
    assert SftConfig.read(Path(asr.__file__).parent.parent / "recipes/configs/sft.yaml") == SftConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepps: 3", "must hold settings among"),
        ("- 3", "must hold settings among"),
        ("steps: many", "steps is 'many'; int is needed"),
        ("steps: true", "steps is True"),
        ("steps: 2.5", "steps is 2.5; int is needed"),
        ("steps: 0", "at least 1"),
        ("learning_rate: 0", "above 0"),
        ("delay_min: 9\ndelay_max: 3", "must not exceed"),
        ("wait_rate_bound: 1.5", "wait_rate_bound <= 1"),
        ("batch_seconds: 2", "cannot hold clips of longest_ms=16000"),
        ("steps: [", "cannot be read"),
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        SftConfig.read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read"):
        SftConfig.read(tmp_path / "none.yaml")


# -- training --------------------------------------------------------------------------------------------------------


def test_a_tiny_model_learns_two_tones_and_says_them_at_their_due_steps(tmp_path: Path) -> None:
    recogniser = tiny(tmp_path, dim=32)
    config = replace(CONFIG, steps=160, batch_size=4, learning_rate=6e-3, warmup_steps=20, log_every=20)
    config = replace(config, save_every=160)
    lines = list(train(Trainer(recogniser, EXAMPLES, config), tmp_path / "run"))
    losses = [line["loss"] for line in lines if "loss" in line]
    assert isinstance(losses[0], float)
    assert isinstance(losses[-1], float)
    assert losses[-1] < 0.2 * losses[0]
    recogniser.eval()
    for delay in (1, 3):
        for example in EXAMPLES:
            batch = make_batch([example], [delay], wait=WAIT, trailing_waits=0)
            assert streamed(recogniser, batch.samples[0], delay) == batch.outputs[0].tolist()


def timeless(lines: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def test_a_run_that_was_killed_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    whole = list(train(Trainer(tiny(tmp_path), EXAMPLES[:3], CONFIG), tmp_path / "whole"))
    killed = train(Trainer(tiny(tmp_path), EXAMPLES[:3], CONFIG), tmp_path / "killed")
    first = [next(killed) for _ in range(3)]  # the third step is logged and not saved
    killed.close()
    torch.manual_seed(99)
    rest = list(train(Trainer(tiny(tmp_path), EXAMPLES[:3], CONFIG), tmp_path / "killed"))
    assert [line["step"] for line in rest] == [3, 4, 5, 6]
    assert timeless(first[:2] + rest) == timeless(whole)
    logs = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "killed")]
    assert timeless(map(json.loads, logs[0])) == timeless(map(json.loads, logs[1]))
    assert list(train(Trainer(tiny(tmp_path), EXAMPLES[:3], CONFIG), tmp_path / "killed")) == []


def test_half_a_line_of_metrics_is_taken_off(tmp_path: Path) -> None:
    run = train(Trainer(tiny(tmp_path), EXAMPLES, CONFIG), tmp_path / "run")
    for _ in range(2):
        next(run)
    run.close()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as out:
        out.write('{"step": 3, "lo')
    list(train(Trainer(tiny(tmp_path), EXAMPLES, CONFIG), tmp_path / "run"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    list(train(Trainer(tiny(tmp_path), EXAMPLES, CONFIG), tmp_path / "run"))
    with pytest.raises(CheckpointError, match="config="):
        next(train(Trainer(tiny(tmp_path), EXAMPLES, replace(CONFIG, seed=2)), tmp_path / "run"))
    with pytest.raises(CheckpointError, match="examples=4; this one has 3"):
        next(train(Trainer(tiny(tmp_path), EXAMPLES[:3], CONFIG), tmp_path / "run"))


def test_every_example_comes_once_before_one_comes_again(tmp_path: Path) -> None:
    trainer = Trainer(tiny(tmp_path), EXAMPLES, CONFIG)
    firsts = [batch.samples[row, 0].item() for batch in (trainer.next_batch(), trainer.next_batch()) for row in (0, 1)]
    assert sorted(firsts) == sorted(example.samples[0].item() for example in EXAMPLES)


def test_the_seed_sets_the_batches(tmp_path: Path) -> None:
    drawn = []
    for seed in (1, 1, 2):
        trainer = Trainer(tiny(tmp_path), EXAMPLES, replace(CONFIG, seed=seed))
        drawn.append([(b.samples[:, 0].tolist(), b.delay.tolist()) for b in (trainer.next_batch() for _ in range(4))])
    assert drawn[0] == drawn[1] != drawn[2]


def test_one_step_moves_every_weight(tmp_path: Path) -> None:
    recogniser = tiny(tmp_path)
    before = {name: value.detach().clone() for name, value in recogniser.named_parameters()}
    Trainer(recogniser, EXAMPLES, replace(CONFIG, weight_decay=0.0)).step()
    same = [name for name, value in recogniser.named_parameters() if torch.equal(value, before[name])]
    assert same == []


def test_gradients_are_clipped_to_their_norm(tmp_path: Path) -> None:
    recogniser = tiny(tmp_path)
    metrics = Trainer(recogniser, EXAMPLES, replace(CONFIG, clip_norm=0.01)).step()
    gradients = [value.grad for value in recogniser.parameters() if value.grad is not None]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    assert metrics["gradient_norm"] > 0.1
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


def test_the_rate_of_each_step_is_the_schedule_s(tmp_path: Path) -> None:
    lines = list(train(Trainer(tiny(tmp_path), EXAMPLES, CONFIG), tmp_path / "run"))
    assert [line["learning_rate"] for line in lines] == [learning_rate(step, CONFIG) for step in range(6)]


def test_padding_changes_no_logit_that_counts(tmp_path: Path) -> None:
    recogniser = tiny(tmp_path).eval()
    short, long = spoken((5, 320), steps=8), EXAMPLES[1]
    alone = make_batch([short], [1], wait=recogniser.wait, trailing_waits=2)
    both = make_batch([short, long], [1, 3], wait=recogniser.wait, trailing_waits=2)
    with torch.inference_mode():
        one = recogniser(alone.samples, alone.outputs, alone.delay)
        two = recogniser(both.samples, both.outputs, both.delay)
    assert both.outputs.shape[1] > alone.outputs.shape[1]
    torch.testing.assert_close(two[:1, : one.shape[1]], one)


def test_the_z_loss_holds_the_normaliser_down(tmp_path: Path) -> None:
    ends = []
    for z_loss in (0.0, 1.0):
        trainer = Trainer(tiny(tmp_path), EXAMPLES, replace(CONFIG, steps=60, learning_rate=2e-2, z_loss=z_loss))
        ends.append([trainer.step()["squared_normaliser"] for _ in range(25)][-1])
    assert ends[1] < 0.5 * ends[0]


def test_waits_at_full_weight_are_said_more(tmp_path: Path) -> None:
    rates = []
    for weight in (0.05, 1.0):
        trainer = Trainer(tiny(tmp_path), EXAMPLES, replace(CONFIG, steps=60, batch_size=4, wait_weight=weight))
        rates.append(sum(trainer.step()["wait_rate"] for _ in range(30)))
    assert rates[1] > rates[0]


def test_steps_are_logged_and_saved_when_they_should(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=7, log_every=3, save_every=5)
    run = train(Trainer(tiny(tmp_path), EXAMPLES, config), tmp_path / "run")
    assert [line["step"] for line in run] == [3, 5, 6, 7]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["metrics.jsonl", "train.pt"]
    saved = torch.load(tmp_path / "run" / "train.pt", weights_only=True)
    assert (saved["done"], saved["examples"], saved["config"]) == (7, 4, asdict(config))


def test_delays_cover_their_range(tmp_path: Path) -> None:
    trainer = Trainer(tiny(tmp_path), EXAMPLES, CONFIG)
    drawn = {int(delay) for _ in range(40) for delay in trainer.next_batch().delay}
    assert drawn == {1, 2, 3}


def too_many(line: dict[str, object]) -> bool:
    rate = line["wait_rate"]
    assert isinstance(rate, float)
    return rate > 0.8


def test_the_alarm_sounds_when_too_many_steps_wait(tmp_path: Path) -> None:
    waits = Trainer(tiny(tmp_path), EXAMPLES, replace(CONFIG, steps=40, wait_weight=1.0, wait_rate_bound=0.8))
    lines = list(train(waits, tmp_path / "run"))
    alarms = [line for line in lines if "alarm" in line and "wait_rate" in line]
    assert [line["step"] for line in alarms] == [line["step"] for line in lines if too_many(line) and "loss" in line]
    assert alarms  # most steps wait, and with waits at full weight that is what a model learns first
    assert len(alarms) < 40  # and before it has learnt that, it does not
    assert "the bound is 0.8" in str(alarms[0]["alarm"])


def test_metrics_tell_the_sizes_of_text_and_audio(tmp_path: Path) -> None:
    recogniser = tiny(tmp_path)
    rows = recogniser.decoder.embedding.weight.detach().clone()
    metrics = Trainer(recogniser, EXAMPLES[:1], replace(CONFIG, batch_size=1, learning_rate=1e-12)).step()
    assert metrics["text_norm"] == pytest.approx(float(rows[[5, 9]].norm(dim=1).mean()), rel=1e-4)
    assert metrics["audio_norm"] > 0
    assert metrics["gradient_norm"] > 0
    assert not recogniser.adapter._forward_hooks


def test_a_loss_that_is_not_finite_moves_no_weight(tmp_path: Path) -> None:
    recogniser = tiny(tmp_path)
    before = recogniser.adapter.second.weight.detach().clone()
    recogniser.decoder.norm.weight.data[0] = torch.nan
    with pytest.raises(ConfigError, match="the loss of step 1 is nan"):
        Trainer(recogniser, EXAMPLES, CONFIG).step()
    assert torch.equal(recogniser.adapter.second.weight, before)
    with pytest.raises(ConfigError, match="no clip to train on"):
        Trainer(recogniser, [], CONFIG)


# -- parts of a batch ------------------------------------------------------------------------------------------------


def test_two_half_batches_are_one(tmp_path: Path) -> None:
    ends = []
    for size, parts in ((4, 1), (2, 2), (1, 4)):
        trainer = Trainer(tiny(tmp_path), EXAMPLES, replace(CONFIG, batch_size=size, accumulation=parts))
        ends.append(([trainer.step() for _ in range(2)], [p.detach() for p in trainer.recogniser.parameters()]))
    for metrics, weights in ends[1:]:
        for mine, theirs in zip(metrics, ends[0][0], strict=True):
            assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)
        for one, other in zip(weights, ends[0][1], strict=True):
            torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


def test_bfloat16_is_near_and_the_weights_stay_in_float32(tmp_path: Path) -> None:
    losses = []
    for bf16 in (False, True):
        trainer = Trainer(tiny(tmp_path), EXAMPLES, replace(CONFIG, bf16=bf16))
        losses.append(trainer.step()["loss"])
        assert {p.dtype for p in trainer.recogniser.parameters()} == {torch.float32}
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert losses[1] != losses[0]


def test_the_average_of_the_weights_follows_them(tmp_path: Path) -> None:
    trainer = Trainer(tiny(tmp_path), EXAMPLES, replace(CONFIG, average_decay=0.5))
    weight = trainer.recogniser.adapter.second.weight
    mean = weight.detach().clone()
    for _ in range(3):
        trainer.step()
        mean = 0.5 * mean + 0.5 * weight.detach()
    now = weight.detach().clone()
    torch.testing.assert_close(trainer.trained_weights()["adapter.second.weight"], mean)
    assert torch.equal(weight, now)


def test_batches_of_like_lengths_go_on_after_a_kill_and_fit(tmp_path: Path) -> None:
    pytest.importorskip("lhotse")
    examples = [*EXAMPLES, *(spoken((5, 320), (9, 560), steps=8) for _ in range(3))]
    config = replace(CONFIG, batch_seconds=2.6, longest_ms=1300)
    batch = Trainer(tiny(tmp_path), examples, config).next_batch()
    assert batch.samples.shape[0] in (2, 4)  # of 1.28 s, or of 0.64 s
    whole = list(train(Trainer(tiny(tmp_path), examples, config), tmp_path / "whole"))
    killed = train(Trainer(tiny(tmp_path), examples, config), tmp_path / "killed")
    first = [next(killed) for _ in range(3)]
    killed.close()
    rest = list(train(Trainer(tiny(tmp_path), examples, config), tmp_path / "killed"))
    assert timeless(first[:2] + rest) == timeless(whole)


def test_a_process_without_a_clip_adds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("lhotse")
    config = replace(CONFIG, batch_seconds=1.3, longest_ms=1300)  # a clip a batch
    idle = Trainer(tiny(tmp_path), EXAMPLES, config, Processes(rank=1, size=2)).next_batch()
    alone = Trainer(tiny(tmp_path), EXAMPLES, config).next_batch()
    assert torch.equal(idle.samples, alone.samples)
    assert not idle.valid.any()
    wait = tiny(tmp_path).wait
    logits = torch.randn(*idle.outputs.shape, wait + 1, requires_grad=True)
    whole = torch.tensor([3.0, 4.0, 2.0])
    loss, numbers = objective(logits, idle, wait=wait, wait_weight=0.3, z_loss=0.1, whole=whole)
    assert set(numbers.values()) == {0.0}
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert not logits.grad.any()


def test_a_batch_must_be_as_large_as_its_processes_are_many(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 processes cannot share a batch of 2"):
        Trainer(tiny(tmp_path), EXAMPLES, CONFIG, Processes(rank=0, size=3))


# -- the command -----------------------------------------------------------------------------------------------------


def command(folder: Path, model: Path, config: SftConfig) -> list[str]:
    """Its arguments, with a manifest of one clip."""
    soundfile.write(folder / "a.wav", EXAMPLES[0].samples.numpy(), SAMPLE_RATE)
    line = {"audio": "a.wav", "duration": 1.28, "text": "the on", "source": "made", "licence": "CC0"}
    (folder / "clips.jsonl").write_text(json.dumps(line) + "\n")
    words = (AlignedWord(text="the", start_ms=160, end_ms=320), AlignedWord(text="on", start_ms=640, end_ms=800))
    (folder / "aligned.jsonl").write_text(AlignedClip(audio="a.wav", text="the on", words=words).to_json() + "\n")
    values = {name: str(value).lower() for name, value in asdict(config).items()}
    (folder / "sft.yaml").write_text("\n".join(f"{name}: {value}" for name, value in values.items()))
    files = ("config", "sft.yaml"), ("manifest", "clips.jsonl"), ("alignments", "aligned.jsonl"), ("out", "out")
    return ["--model", str(model), *(part for name, file in files for part in (f"--{name}", str(folder / file)))]


def test_the_command_has_these_flags(tmp_path: Path) -> None:
    args = vars(build_parser().parse_args(command(tmp_path, tmp_path / "model", CONFIG)))
    assert set(args) == {
        "config",
        "model",
        "manifest",
        "alignments",
        "out",
        "device",
        "teacher",
        "show",
        "keep_all",
        "plot",
        "tensorboard",
    }
    assert args["device"] == "cpu"


def test_the_command_trains_and_writes_a_checkpoint(tmp_path: Path) -> None:
    save(tiny_additive_model(tmp_path), tmp_path / "model", "a card")
    config = replace(CONFIG, steps=2, delay_max=6)
    assert main(command(tmp_path, tmp_path / "model", config)) == 0
    trained = asr.load(tmp_path / "out" / "checkpoint")
    assert trained.config == asr.load(tmp_path / "model").config
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert '"steps": 2' in (tmp_path / "out" / "checkpoint" / "MODEL_CARD.md").read_text()


def test_the_command_refuses_what_it_cannot_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_additive_model(tmp_path), tmp_path / "model", "a card")
    assert main(command(tmp_path, tmp_path / "model", CONFIG)) == 2
    assert "offers delays of [6] steps; training covers 1 to 3" in capsys.readouterr().err
    save(tiny_model(tmp_path), tmp_path / "cross", "a card")
    assert main(command(tmp_path, tmp_path / "cross", CONFIG)) == 2
    assert "no additive-family model" in capsys.readouterr().err
