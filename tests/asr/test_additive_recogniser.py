"""The additive recogniser: what it says of each row, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from torch import Tensor

from asr.additive_recogniser import AdditiveRecogniser, AdditiveState, build_additive
from asr.config import RowSettings
from asr.decode import decode_block
from asr.errors import ConfigError
from asr.recogniser import WAIT
from asr.units import STEP_SAMPLES
from asr.vocabulary import Vocabulary
from tests import tiny
from tests.asr.test_additive_config import CONFIG

ROWS = tiny.rows_of(tiny.settings(2, 2), tiny.settings(5, 2))
BOTH = torch.tensor([True, True])


def fresh(model: AdditiveRecogniser, batch: int = 2) -> AdditiveState:
    return model.init_state(batch, max_chunk_steps=4, max_right=0, max_silence=0)


def hear(
    model: AdditiveRecogniser, state: AdditiveState, steps: list[int], rows: RowSettings = ROWS, seed: int = 80
) -> AdditiveState:
    x = torch.stack([tiny.sound(STEP_SAMPLES * max(steps), seed + b) for b in range(len(steps))])
    return model.listen(x, STEP_SAMPLES * torch.tensor(steps), rows, state)


def test_open_is_the_arg_max_over_text_and_wait() -> None:
    model = tiny.tiny_additive()
    state = fresh(model)
    opened = 0
    for seed in range(6):
        state = hear(model, state, [1, 1], seed=90 + 2 * seed)
        at = state.used.clamp(max=3)
        audio = state.audio[torch.arange(2), at][:, None]
        hidden = model.decoder.rows(state.previous[:, None], audio, ROWS.delay, torch.ones(2).long(), state.decoder)
        scores = model.decoder.logits(hidden[:, 0])
        scores[:, : model.wait][:, model.banned] = -torch.inf
        output, state = model.row(BOTH, ROWS, state)
        assert output.open.tolist() == (scores.argmax(-1) != model.wait).tolist()
        assert output.logits.shape == (2, tiny.VOCABULARY)
        assert torch.equal(output.logits.argmax(-1), scores[:, :-1].argmax(-1))
        opened += int(output.open.sum())
        tokens = torch.where(output.open, output.logits.argmax(-1), WAIT)
        state = model.accept(BOTH, tokens, output, state)
        assert state.previous.tolist() == [model.wait if t == WAIT else t for t in tokens.tolist()]
    assert opened


def test_special_pieces_are_never_written() -> None:
    model = tiny.tiny_additive()
    output, _ = model.row(BOTH, ROWS, hear(model, fresh(model), [1, 1]))
    assert output.logits[:, model.banned].eq(-torch.inf).all()
    assert output.logits[:, ~model.banned].isfinite().all()


def test_the_frame_is_the_last_one_heard_of_a_word_that_is_due() -> None:
    # Step t is the due step of a word that ended within step t - τ, whose last frame is 4 (t + 1 - τ) - 1.
    model = tiny.tiny_additive()
    state, frames = fresh(model), []
    for _ in range(3):
        state = hear(model, state, [2, 2])
        for _ in range(2):
            output, state = model.row(BOTH, ROWS, state)
            frames.append(output.frame.tolist())
            state = model.accept(BOTH, torch.tensor([WAIT, WAIT]), output, state)
    assert frames == [[0, 0], [0, 0], [3, 0], [7, 0], [11, 0], [15, 3]]


def test_a_candidate_that_continues_the_word_does_not_close_it() -> None:
    model = tiny.tiny_additive()
    output, _ = model.row(BOTH, ROWS, hear(model, fresh(model), [1, 1]))
    candidate = output.logits.argmax(-1)
    assert output.closes.tolist() == [not 10 <= int(c) < 18 for c in candidate]  # pieces 10..17 continue a word
    closes = []
    for continues in (True, False):
        model.begins_word = torch.full((tiny.VOCABULARY,), not continues)
        model.letters = torch.ones(tiny.VOCABULARY, dtype=torch.bool)
        output, _ = model.row(BOTH, ROWS, hear(model, fresh(model), [1, 1]))
        closes.append(output.closes.tolist())
    assert closes == [[False, False], [True, True]]


def test_right_context_and_silence_are_refused_in_rows_that_take_part() -> None:
    model = tiny.tiny_additive()
    rows = tiny.rows_of(tiny.settings(2, 2), tiny.settings(2, 2, 8, 4))
    hear(model, fresh(model), [1, 0], rows)
    with pytest.raises(ConfigError, match=r"takes neither right context \(\[0, 8\]\) nor silence \(\[0, 4\]\)"):
        hear(model, fresh(model), [1, 1], rows)
    with pytest.raises(ConfigError, match=r"takes neither right context \(8\) nor silence \(0\)"):
        model.init_state(1, max_chunk_steps=1, max_right=8, max_silence=0)


def test_audio_steps_wait_until_they_are_used() -> None:
    model = tiny.tiny_additive()
    whole, _ = step_by_step(model, hear_all(model, [4]))
    parts, _ = step_by_step(model, hear_all(model, [1, 2, 1]))
    assert torch.equal(whole.argmax(-1), parts.argmax(-1))
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5)
    with pytest.raises(ConfigError, match=r"rows hold \[5\] unused audio steps; the state was made for 4"):
        hear_all(model, [4, 1])


def hear_all(model: AdditiveRecogniser, blocks: list[int]) -> AdditiveState:
    state = fresh(model, 1)
    x = tiny.sound(STEP_SAMPLES * sum(blocks), 81)
    for block in x.split([STEP_SAMPLES * n for n in blocks]):
        state = model.listen(block[None], torch.tensor([len(block)]), tiny.rows_of(tiny.settings(2, 1)), state)
    return state


def step_by_step(model: AdditiveRecogniser, state: AdditiveState) -> tuple[Tensor, AdditiveState]:
    rows, active, logits = tiny.rows_of(tiny.settings(2, 1)), torch.tensor([True]), []
    for _ in range(int(state.available[0])):
        output, state = model.row(active, rows, state)
        state = model.accept(active, output.logits.argmax(-1), output, state)
        logits.append(output.logits[0])
    return torch.stack(logits), state


def test_a_row_without_audio_is_refused() -> None:
    model = tiny.tiny_additive()
    with pytest.raises(ConfigError, match=r"rows have \[1, 0\] audio steps left; listen first"):
        model.row(BOTH, ROWS, hear(model, fresh(model), [1, 0]))


def test_a_watchdog_s_re_anchoring_empties_the_decoder_at_the_next_block() -> None:
    model = tiny.tiny_additive()
    lens = torch.full((2,), 2 * STEP_SAMPLES)
    state = fresh(model)
    x = torch.stack([tiny.sound(12 * STEP_SAMPLES, 82), tiny.sound(12 * STEP_SAMPLES, 83)])
    blocks = list(x.split(2 * STEP_SAMPLES, 1))
    for block in blocks[:3]:
        _, state, _ = decode_block(model, block, lens, ROWS, state)
    state = model.ask_re_anchor(state, torch.tensor([1]))
    assert state.decoder.length.tolist() == [6, 6]
    idle = model.listen(blocks[3], torch.tensor([2 * STEP_SAMPLES, 0]), ROWS, state)
    assert idle.asked.tolist() == [False, True]
    state = model.listen(blocks[3], lens, ROWS, state)
    assert state.decoder.length.tolist() == [6, 0]
    assert state.encoder.length.tolist() == [32, 32]  # the audio is not forgotten
    assert (state.asked.tolist(), state.re_anchors.tolist()) == ([False, False], [0, 1])
    assert state.previous[1] == model.wait
    assert state.clock.tolist() == [6, 6]


def test_a_bidirectional_encoder_is_refused() -> None:
    model = tiny.tiny_additive()
    with pytest.raises(ConfigError, match="needs a causal encoder"):
        AdditiveRecogniser(
            frontend=model.frontend,
            encoder=tiny.tiny_whisper_encoder(),
            adapter=model.adapter,
            decoder=model.decoder,
            begins_word=model.begins_word,
            letters=model.letters,
            banned=model.banned,
        )


def test_tables_must_fit_the_decoder() -> None:
    model = tiny.tiny_additive()
    with pytest.raises(ConfigError, match=r"letters has shape \(3,\); the decoder has 24 text ids"):
        AdditiveRecogniser(
            frontend=model.frontend,
            encoder=model.encoder,
            adapter=model.adapter,
            decoder=model.decoder,
            begins_word=model.begins_word,
            letters=model.letters[:3],
            banned=model.banned,
        )


def toy_vocabulary(folder: Path) -> Vocabulary:
    pieces = ["Ġa", "Ġthe", "b", "c", "."]
    model: dict[str, Any] = {"type": "BPE", "vocab": {p: i for i, p in enumerate(pieces)}, "merges": []}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []}), encoding="utf-8")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens(["<|endoftext|>", "<|startoftranscript|>"])
    tokenizer.save(str(path))
    return Vocabulary(path)


def test_a_configuration_is_built_as_it_says(tmp_path: Path) -> None:
    model = build_additive(CONFIG, toy_vocabulary(tmp_path))
    assert model.wait == CONFIG.vocabulary
    assert model.decoder.embedding.weight.shape == (25, 16)
    assert model.banned.nonzero()[:, 0].tolist() == list(range(5, 24))
    assert model.begins_word.nonzero()[:, 0].tolist() == [0, 1]
    assert model.letters.nonzero()[:, 0].tolist() == [0, 1, 2, 3]
    rows = tiny.rows_of(tiny.settings(2, 2))
    outputs, state, _ = decode_block(
        model, tiny.sound(2 * STEP_SAMPLES)[None], torch.tensor([2 * STEP_SAMPLES]), rows, fresh(model, 1)
    )
    assert len(outputs) == 2
    assert state.clock.tolist() == [2]


def test_the_training_forward_reaches_every_weight() -> None:
    model = tiny.tiny_additive().train().requires_grad_(True)
    logits = model(tiny.sound(6 * STEP_SAMPLES)[None], torch.zeros(1, 6, dtype=torch.int64), torch.tensor([2]))
    logits.log_softmax(-1)[..., 0].sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
