"""GRPO: the loss by hand and as TRL has it, a start that changes nothing, what learns, and a run that goes on."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from torch import Tensor

import asr
from asr.checkpoint import save
from asr.cross_recogniser import CrossRecogniser
from asr.errors import CheckpointError, ConfigError
from asr.gate import AttentionGate, CorrectingGate
from asr.model import CrossConfig, Model, build_cross
from asr.transcriber import transcribe
from recipes import grpo
from recipes.data import read_manifest
from recipes.grpo import Grpo, GrpoConfig, main, policy_loss, with_correcting_gate
from recipes.grpo_reward import Outcome, RewardRule
from recipes.runs import METRICS, train
from recipes.sessions import SessionMaker
from recipes.teacher import TaughtWord
from tests.recipes.test_rollout import open_minded
from tests.tiny_model import bursts, tiny_additive_model, tiny_model

CLIPS = {"clip_low": 0.2, "clip_high": 0.28, "kl_weight": 0.04}
CONFIG = GrpoConfig(
    steps=4,
    recordings=2,
    group=3,
    delay_min=1,
    delay_max=2,
    chunk_ms=160,
    tail_steps=6,
    warmup_steps=1,
    decoder_rate=1e-3,
    gate_rate=1e-2,
    save_every=2,
)


# -- the loss --------------------------------------------------------------------------------------------------------


def random_batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """log_probs, drawn, reference [5, 7], advantage [5], free [5, 7]."""
    generator = torch.Generator().manual_seed(seed)
    log_probs, drawn, reference = -torch.rand(3, 5, 7, generator=generator) * 2
    free = torch.rand(5, 7, generator=generator) > 0.3
    free[:, 0] = True
    return log_probs, drawn, reference, torch.randn(5, generator=generator), free


def trl_loss(
    logps: Tensor, old: Tensor, ref: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float, beta: float
) -> tuple[Tensor, Tensor]:
    """TRL's GRPOTrainer._compute_loss with loss_type "grpo", importance sampling by token: the loss and the mean KL."""
    advantages = advantages.unsqueeze(1)
    per_token_kl = torch.exp(ref - logps) - (ref - logps) - 1
    coef_1 = torch.exp(logps - old)
    coef_2 = torch.clamp(coef_1, 1 - low, 1 + high)
    per_token_loss = -torch.min(coef_1 * advantages, coef_2 * advantages) + beta * per_token_kl
    loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    return loss, (per_token_kl * mask).sum(-1).div(mask.sum(-1)).mean()


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_trl_s(seed: int) -> None:
    log_probs, drawn, reference, advantage, free = random_batch(seed)
    mine, theirs = (log_probs.clone().requires_grad_() for _ in range(2))
    loss, parts = policy_loss(mine, drawn, reference, advantage, free, **CLIPS)
    expected, kl = trl_loss(theirs, drawn, reference, advantage, free, 0.2, 0.28, 0.04)
    torch.testing.assert_close(loss / 5, expected)
    assert parts["kl"] / 5 == pytest.approx(float(kl.detach()), rel=1e-5)
    (loss / 5).backward()
    expected.backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_the_loss_by_hand() -> None:
    log_probs = torch.tensor([[0.5, 0.25, 0.5]]).log()
    drawn = torch.tensor([[0.25, 0.5, 0.5]]).log()
    free = torch.tensor([[True, True, False]])
    # ρ = 2 and 1/2. A = 1: min(2, 1.28) and min(.5, .8). A = -1: min(-2, -1.28) and min(-.5, -.8).
    for advantage, gain in ((1.0, (1.28 + 0.5) / 2), (-1.0, (-2.0 - 0.8) / 2)):
        loss, parts = policy_loss(log_probs, drawn, log_probs, torch.tensor([advantage]), free, **CLIPS)
        assert float(loss) == pytest.approx(-gain)
        assert parts["kl"] == 0.0
        assert parts["clipped"] == 0.5
    # k3 against a reference with twice the probability: 2 - ln 2 - 1.
    loss, parts = policy_loss(log_probs, log_probs, log_probs + 2.0**0.0 * 0.6931472, torch.zeros(1), free, **CLIPS)
    assert parts["kl"] == pytest.approx(1 - 0.6931472, rel=1e-5)
    assert float(loss) == pytest.approx(0.04 * (1 - 0.6931472), rel=1e-5)


def test_at_the_start_the_gradient_is_the_policy_gradient() -> None:
    log_probs, _, _, advantage, free = random_batch()
    mine = log_probs.clone().requires_grad_()
    policy_loss(mine, log_probs, log_probs, advantage, free, **CLIPS)[0].backward()
    expected = -advantage[:, None] * free / free.sum(1, keepdim=True)
    torch.testing.assert_close(mine.grad, expected)


def test_advantages_of_decisions_and_rollouts_without_any() -> None:
    log_probs, _, _, advantage, free = random_batch()
    each = advantage[:, None].expand(-1, 7)
    whole = policy_loss(log_probs, log_probs, log_probs, advantage, free, **CLIPS)[0]
    torch.testing.assert_close(policy_loss(log_probs, log_probs, log_probs, each, free, **CLIPS)[0], whole)
    none = policy_loss(log_probs, log_probs, log_probs, advantage, torch.zeros_like(free), **CLIPS)
    assert none[0] == 0
    assert none[1] == {"kl": 0.0, "clipped": 0.0, "entropy": 0.0}


# -- the start -------------------------------------------------------------------------------------------------------


def with_attention_gate(folder: Path) -> Model:
    """A tiny model whose attention gate opens now and then."""
    model = open_minded(folder)
    assert isinstance(model.config, CrossConfig)
    config = replace(model.config, gate_hidden=None, gate_corrects=False)
    recogniser = build_cross(config, model.vocabulary)
    recogniser.load_state_dict(
        {name: w for name, w in model.recogniser.state_dict().items() if not name.startswith("gate")}
    )
    return replace(model, config=config, recogniser=recogniser.eval().requires_grad_(False))


def test_the_correcting_gate_changes_no_text_and_is_saved(tmp_path: Path) -> None:
    model = with_attention_gate(tmp_path)
    assert isinstance(model.recogniser.gate, AttentionGate)  # type: ignore[union-attr]
    corrected = with_correcting_gate(model, hidden=5)
    assert isinstance(corrected.recogniser.gate, CorrectingGate)  # type: ignore[union-attr]
    for seed in range(3):
        sound = bursts(0.8, seed)
        before = transcribe(model, sound, delay_ms=80, chunk_ms=80)
        assert before.words
        assert transcribe(corrected, sound, delay_ms=80, chunk_ms=80).words == before.words
    save(corrected, tmp_path / "saved", "card")
    loaded = asr.load(str(tmp_path / "saved"))
    assert isinstance(loaded.recogniser.gate, CorrectingGate)  # type: ignore[union-attr]
    assert with_correcting_gate(loaded, hidden=9) is loaded


def test_models_that_need_no_correcting_gate_stay_and_strange_gates_are_refused(tmp_path: Path) -> None:
    additive = tiny_additive_model(tmp_path)
    assert with_correcting_gate(additive, hidden=5) is additive
    with pytest.raises(ConfigError, match="has a EagerGate, which nothing can correct"):
        with_correcting_gate(tiny_model(tmp_path), hidden=5)


# -- runs ------------------------------------------------------------------------------------------------------------


def recorded(folder: Path, count: int = 5) -> Path:
    """A manifest of clips of two words, and their words beside it."""
    lines, taught = [], []
    for i in range(count):
        sound = bursts(0.5 + 0.05 * i, i)
        soundfile.write(folder / f"{i}.wav", sound.numpy(), 16_000)
        lines.append({"audio": f"{i}.wav", "duration": len(sound) / 16_000, "source": "toy", "licence": "CC0"})
        words = [("the", 100, 240), ("dog", 240, 420)]
        entry = [{"text": text, "pieces": [40], "start_ms": start, "end_ms": end} for text, start, end in words]
        taught.append({"audio": f"{i}.wav", "words": entry})
    (folder / "words").mkdir()
    for path, entries in ((folder / "clips.jsonl", lines), (folder / "words" / "teacher.jsonl", taught)):
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder / "clips.jsonl"


WORDS = (
    TaughtWord(text="the", pieces=(40,), start_ms=100, end_ms=240),
    TaughtWord(text="dog", pieces=(41,), start_ms=240, end_ms=420),
)


def run_of(folder: Path, config: GrpoConfig = CONFIG, *, additive: bool = False) -> Grpo:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model").mkdir()
    model = tiny_additive_model(folder / "model") if additive else open_minded(folder / "model")
    clips = read_manifest(recorded(folder))
    return Grpo(model, clips, SessionMaker({clip.audio: WORDS for clip in clips}, []), config)


def prefixes(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name.split(".")[0] for name, value in after.items() if not torch.equal(value, before[name])}


def copied(run: Grpo) -> dict[str, Tensor]:
    return copy.deepcopy(run.model.recogniser.state_dict())


@pytest.fixture
def uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model knows no word: let what it writes, and how soon, be worth something."""

    def outcome(reference: Sequence[Any], words: Sequence[Any]) -> Outcome:
        count = len(words)
        return Outcome(errors=count % 3, words=4, matched=2, spoken=4, deletions=0, delay_ms=40.0 * count)

    monkeypatch.setattr(grpo, "outcome_of", outcome)


@pytest.mark.usefixtures("uneven")
@pytest.mark.parametrize("additive", [False, True])
def test_decoder_and_gate_learn_and_the_rest_stays(tmp_path: Path, additive: bool) -> None:
    run = run_of(tmp_path, additive=additive)
    before, reference = copied(run), copy.deepcopy(run._reference.state_dict())
    metrics = run.step()
    after = copied(run)
    assert prefixes(before, after) == ({"decoder"} if additive else {"decoder", "gate"})
    assert torch.equal(after["decoder.embedding.weight"], before["decoder.embedding.weight"])
    assert not prefixes(reference, run._reference.state_dict())
    assert metrics["gradient_norm"] > 0
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clipped"] == 0.0
    second = run.step()
    assert second["kl"] > 0


@pytest.mark.usefixtures("uneven")
def test_what_has_no_rate_stays(tmp_path: Path) -> None:
    for name, change in (("gate", {"decoder_rate": 0.0}), ("decoder", {"gate_rate": 0.0})):
        run = run_of(tmp_path / name, replace(CONFIG, **change))  # type: ignore[arg-type]
        before = copied(run)
        run.step()
        assert prefixes(before, copied(run)) == {name}
    with pytest.raises(ConfigError, match="nothing would be trained"):
        run_of(tmp_path / "none", replace(CONFIG, decoder_rate=0.0, gate_rate=0.0))


@pytest.mark.usefixtures("uneven")
def test_low_rank_corrections_learn_alone_and_are_merged_for_the_checkpoint(tmp_path: Path) -> None:
    run = run_of(tmp_path, replace(CONFIG, lora_rank=2, gate_rate=0.0, decoder_rate=1e-2))
    before = copied(run)
    names = set(open_minded(tmp_path).recogniser.state_dict())
    run.step()
    run.step()
    moved = {name for name, value in copied(run).items() if not torch.equal(value, before[name])}
    assert moved
    assert all(name.endswith((".up", ".down")) for name in moved)
    merged = run.trained_model()
    assert set(merged.recogniser.state_dict()) == names
    save(merged, tmp_path / "saved", "card")
    assert set(asr.load(str(tmp_path / "saved")).recogniser.state_dict()) == names
    assert isinstance(merged.recogniser, CrossRecogniser)
    assert isinstance(run.model.recogniser, CrossRecogniser)
    tokens, frames = torch.tensor([[1, 2]]), torch.randn(1, 4, 16)
    with torch.no_grad():
        mine = run.model.recogniser.decoder(tokens, frames, torch.tensor([4]))[0]
        theirs = merged.recogniser.decoder(tokens, frames, torch.tensor([4]))[0]
    torch.testing.assert_close(theirs, mine, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("wanted", [1, -1])
def test_it_learns_to_write_what_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int) -> None:
    """Where each word pays, it writes more of them; where each one costs, fewer."""

    def counted(group: Sequence[Outcome], rule: RewardRule) -> list[float]:
        return [float(wanted * one.errors) for one in group]

    def outcome(reference: Sequence[Any], words: Sequence[Any]) -> Outcome:
        return Outcome(errors=len(words), words=1, matched=0, spoken=1, deletions=0, delay_ms=None)

    monkeypatch.setattr(grpo, "rewards", counted)
    monkeypatch.setattr(grpo, "outcome_of", outcome)
    config = replace(CONFIG, group=8, temperature=8.0, decoder_rate=0.0, gate_rate=0.2, kl_weight=0.0, delay_max=1)
    run = run_of(tmp_path, config)
    gate = run.model.recogniser.gate  # type: ignore[union-attr]
    gate.config = replace(gate.config, hold_frames=300, sure_probability=0.0, careful_tokens=0)  # nothing is overdue
    written = [run.step()["word_error_rate"] for _ in range(8)]
    early, late = sum(written[:3]) / 3, sum(written[-3:]) / 3
    assert wanted * (late - early) > 0.3


def test_groups_that_all_score_the_same_teach_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpo, "rewards", lambda group, rule: [0.3] * len(group))
    run = run_of(tmp_path)
    before = copied(run)
    metrics = run.step()
    assert metrics["even_groups"] == 1.0
    assert not prefixes(before, copied(run))


def lines(folder: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read]


@pytest.mark.usefixtures("uneven")
@pytest.mark.parametrize("change", [{"segment_credit": True}, {"iterations": 2}])
def test_a_step_in_parts_is_the_step_at_once(tmp_path: Path, change: dict[str, Any]) -> None:
    config = replace(CONFIG, recordings=3, decoder_rate=0.0, **change)
    runs = [run_of(tmp_path / str(parts), replace(config, accumulation=parts)) for parts in (1, 2, 9)]
    whole, *others = [[run.step() for _ in range(2)] for run in runs]
    for metrics in others:
        for mine, theirs in zip(metrics, whole, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    assert runs[0].shown == runs[2].shown


@pytest.mark.usefixtures("uneven")
def test_the_trained_model_has_the_average_where_one_is_kept(tmp_path: Path) -> None:
    run = run_of(tmp_path, replace(CONFIG, average_decay=0.5, lora_rank=2))
    before = copied(run)
    up = next(key for key in before if key.endswith(".up"))
    run.step()
    after = copied(run)
    merged = run.trained_model().recogniser.state_dict()
    base, down = up.replace(".up", ".base.weight"), up.replace(".up", ".down")
    mean = {key: (before[key] + after[key]) / 2 for key in (up, down)}
    expected = before[base] + run.config.lora_alpha / 2 * mean[up] @ mean[down]
    torch.testing.assert_close(merged[up.replace(".up", ".weight")], expected)
    assert not prefixes(after, copied(run))


@pytest.mark.usefixtures("uneven")
@pytest.mark.parametrize("change", [{}, {"lora_rank": 2, "segment_credit": True, "iterations": 2}])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not(tmp_path: Path, change: dict[str, Any]) -> None:
    config = replace(CONFIG, **change)
    whole = run_of(tmp_path / "a", config)
    list(train(whole, tmp_path / "whole"))
    running = train(run_of(tmp_path / "b", config), tmp_path / "killed")
    for _ in range(3):  # it stops behind a save, before the next one
        next(running)
    running.close()
    random.seed(99)
    torch.manual_seed(99)
    again = run_of(tmp_path / "c", config)
    list(train(again, tmp_path / "killed"))
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert not prefixes(copied(whole), copied(again))


def test_another_run_s_save_is_refused(tmp_path: Path) -> None:
    state = run_of(tmp_path / "a").state_dict()
    with pytest.raises(CheckpointError, match="the saved run has config="):
        run_of(tmp_path / "b", replace(CONFIG, seed=2)).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": 1}, "compared with at least one other"),
        ({"steps": 0}, "steps is 0"),
        ({"temperature": 0.0}, "temperature and clips"),
        ({"kl_weight": -1.0}, "0 or more"),
        ({"delay_min": 3}, "must not exceed"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **change)


def test_clips_delays_and_words_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none of 5 clips is 100 ms or shorter"):
        run_of(tmp_path / "a", replace(CONFIG, longest_ms=100))
    with pytest.raises(ConfigError, match="none is from 3 to 5"):
        run_of(tmp_path / "b", replace(CONFIG, delay_min=3, delay_max=5))
    with pytest.raises(ConfigError, match="hardly a clip has 3 words"):
        run_of(tmp_path / "c", replace(CONFIG, shortest_words=3)).step()


def test_the_command_trains_saves_and_shows(tmp_path: Path) -> None:
    save(with_attention_gate(tmp_path), tmp_path / "model", "card")
    manifest = recorded(tmp_path)
    settings = "steps: 2\nrecordings: 1\ngroup: 2\ndelay_min: 1\ndelay_max: 1\nchunk_ms: 160\ntail_steps: 4\n"
    (tmp_path / "grpo.yaml").write_text(settings + "save_every: 1\nsilent_bound: -1\n")
    out = tmp_path / "out"
    command = ["--config", str(tmp_path / "grpo.yaml"), "--model", str(tmp_path / "model"), "--out", str(out)]
    command += ["--data", str(manifest), str(tmp_path / "words"), "--plot", "--show", str(manifest)]
    assert main(command) == 0
    shown = [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]
    assert [line["step"] for line in shown] == [1, 2]
    assert shown[0]["reference"] == "the dog"
    assert shown[0]["best"]["reward"] >= shown[0]["worst"]["reward"]
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert [line["step"] for line in samples] == [1] * 5 + [2] * 5
    alarms = [line for line in lines(out) if "alarm" in line]
    assert alarms[0]["alarm"] == "0.000 of the rollouts write nothing; the bound is -1"
    assert (out / "metrics.png").read_bytes()[1:4] == b"PNG"
    assert isinstance(asr.load(str(out / "checkpoint")).recogniser.gate, CorrectingGate)  # type: ignore[union-attr]


def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = recorded(tmp_path)
    command = ["--model", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    assert main([*command, "--data", str(manifest), str(tmp_path / "words")]) == 2
    assert "error: " in capsys.readouterr().err
