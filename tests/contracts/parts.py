"""Adapters through which the laws see the parts; all are tiny and have random weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.blocks import Attention, Rotary, ring_mask
from asr.encoder import Encoder
from asr.frontend import MEL_FLOOR, Frontend, FrontendState
from asr.state import KVRing, Rings
from asr.units import STEP_SAMPLES
from kernels.ctc import CollapsedLabels, init_collapse
from kernels.dispatch import dispatch
from tests import tiny
from tests.contracts.streaming import FAR


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class _Part:
    """What most parts have in common; none of it is the part's behaviour."""

    grain, ratio, largest, padding, tolerance, causal = 1, 1, 4, 1e3, 1e-5, True

    def alone(self, row: int) -> Any:
        return self

    def join(self, outputs: list[Tensor]) -> Tensor:
        return torch.cat(outputs)


def valid_rows(y: Tensor, lens: Tensor) -> list[Tensor]:
    return [y[b, :n] for b, n in enumerate(lens.tolist())]


class FrontendPart(_Part):
    """Samples to frames and their loudness."""

    grain, ratio, largest = STEP_SAMPLES, 320, 4 * STEP_SAMPLES

    def __init__(self) -> None:
        self.frontend: Frontend = tiny.tiny_frontend()

    def input(self, time: int, seed: int) -> Tensor:
        return tiny.sound(time, seed)

    def init_state(self, batch: int, *, largest: int | None = None) -> FrontendState:
        return self.frontend.init_state(batch)

    def step(self, x: Tensor, lens: Tensor, state: FrontendState) -> tuple[list[Tensor], FrontendState]:
        frames, loudness, counts, state = self.frontend.step(x, lens, state)
        return valid_rows(torch.cat([frames, loudness[:, :, None]], 2), counts), state

    def reset(self, state: FrontendState, rows: Tensor) -> FrontendState:
        fresh = self.frontend.init_state(len(rows))
        return FrontendState(
            *(getattr(state, n).index_copy(0, rows, getattr(fresh, n)) for n in ("tail", "conv1", "conv2"))
        )

    def whole(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """The same maths without a state: silence long enough to be lasting goes before the clip."""
        silence = 2 * STEP_SAMPLES
        begin = silence // 160  # mel frames of it
        heard = F.pad(x, (silence + 360, 0))[None]
        spectrum = torch.stft(heard, 400, 160, window=torch.hann_window(400), center=False, return_complex=True)
        mel = (self.frontend.filters.T @ spectrum.abs().square()).clamp(min=10**MEL_FLOOR).log10() / 4 + 1  # [1, F, T]
        stem = F.gelu(self.frontend.conv2(F.pad(F.gelu(self.frontend.conv1(mel)), (1, 0))))
        loudness = mel[0, :, begin:].mean(0).unflatten(0, (-1, 2)).amax(1)
        return torch.cat([stem[0, :, (begin - 2) // 2 :].T, loudness[:, None]], 1)


def moved_ring(ring: KVRing, attention: Attention) -> KVRing:
    """The same memory, in storage of its own, as if the stream had begun 10^7 positions earlier."""
    shift = -(-FAR // ring.capacity) * ring.capacity  # whole turns: every position keeps its slot
    keys = ring.keys.clone()
    if attention.rotary is not None:
        keys = attention.rotary(keys, torch.full((keys.shape[0], keys.shape[2]), shift))
    return replace(ring, keys=keys, values=ring.values.clone(), length=ring.length + shift)


def moved_rings(rings: tuple[KVRing, ...], layers: Any) -> tuple[KVRing, ...]:
    return tuple(moved_ring(ring, layer.attention) for ring, layer in zip(rings, layers, strict=True))


class RingPart(_Part):
    """The ring itself: one attention layer with a sliding window over it."""

    window = 6
    memory = window - 1

    def __init__(self) -> None:
        self.attention: Attention = tiny.randomised(
            Attention(
                dim=8,
                heads=2,
                kv_heads=1,
                head_dim=4,
                query_bias=True,
                key_bias=False,
                value_bias=True,
                output_bias=True,
                rotary=Rotary(head_dim=4, theta=1e4),
            )
        )

    def input(self, time: int, seed: int) -> Tensor:
        return noise(time, 8, seed=seed)

    def init_state(self, batch: int, *, largest: int | None = None) -> KVRing:
        return KVRing.zeros(
            batch=batch, heads=1, head_dim=4, left_context=self.window - 1, slack=largest or self.largest
        )

    def moved(self, state: KVRing) -> KVRing:
        return moved_ring(state, self.attention)

    def step(self, x: Tensor, lens: Tensor, state: KVRing) -> tuple[list[Tensor], KVRing]:
        positions = state.length[:, None] + torch.arange(x.shape[1])
        mask = ring_mask(state, positions, lens, None, window=self.window)
        y = self.attention.step(x, positions, lens, state, mask, None)
        return valid_rows(y, lens), state.advance(lens, None)

    def reset(self, state: KVRing, rows: Tensor) -> KVRing:
        return state.reset(rows)

    def whole(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        index = torch.arange(len(x))
        mask = (index <= index[:, None]) & (index > index[:, None] - self.window)
        key, value = self.attention.keys_values(x[None], index[None])
        return self.attention.attend(self.attention.queries(x[None], index[None]), key, value, mask[None, None])[0]


class EncoderPart(_Part):
    """An encoder in plain chunks (R = S = 0): causal, or Whisper's with chunks of `chunk` frames."""

    def __init__(self, encoder: Encoder, *, chunk: int) -> None:
        self.encoder, self.grain, self.largest = encoder, 1, chunk
        self.causal = encoder.window_frames is not None
        self.memory = encoder.left_context_frames

    def input(self, time: int, seed: int) -> Tensor:
        return noise(time, tiny.DIM, seed=seed)

    def init_state(self, batch: int, *, largest: int | None = None) -> Rings:
        return self.encoder.init_state(batch, block_frames=largest or self.largest)

    def moved(self, state: Rings) -> Rings:
        return replace(state, rings=moved_rings(state.rings, self.encoder.layers))

    def step(self, x: Tensor, lens: Tensor, state: Rings) -> tuple[list[Tensor], Rings]:
        y, state = self.encoder.step(x, lens, lens, state, None)
        return valid_rows(y, lens), state

    def reset(self, state: Rings, rows: Tensor) -> Rings:
        return state.reset(rows)

    def whole(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        return self.encoder(x[None], self.encoder.chunk_mask(len(x), sizes[0] if sizes else 1))[0]


class RightContextPart(_Part):
    """Whisper's encoder with R provisional and S silence frames, which it keeps and adds itself.

    An output is a new frame's own encoding beside the mean over its block, so that every frame of a block matters.
    """

    causal, chunk, right, silence, tolerance = False, 4, 3, 2, 1e-5
    largest = 4

    def __init__(self) -> None:
        self.encoder = tiny.tiny_whisper_encoder(left_context_frames=10)
        self.quiet = noise(tiny.DIM, seed=5)
        self.memory = 10 + self.right

    def input(self, time: int, seed: int) -> Tensor:
        return noise(time, tiny.DIM, seed=seed)

    def init_state(self, batch: int, *, largest: int | None = None) -> tuple[Rings, Tensor, Tensor]:
        block = (largest or self.largest) + self.right + self.silence
        provisional = torch.zeros(batch, self.right, tiny.DIM)
        return self.encoder.init_state(batch, block_frames=block), provisional, torch.zeros(batch, dtype=torch.int64)

    def moved(self, state: tuple[Rings, Tensor, Tensor]) -> tuple[Rings, Tensor, Tensor]:
        return replace(state[0], rings=moved_rings(state[0].rings, self.encoder.layers)), state[1], state[2]

    def step(
        self, x: Tensor, lens: Tensor, state: tuple[Rings, Tensor, Tensor]
    ) -> tuple[list[Tensor], tuple[Rings, Tensor, Tensor]]:
        encoder, provisional, counts = state
        rows = (lens > 0).nonzero()[:, 0]  # idle rows stay out of the call, as in the recogniser
        blocks = [torch.cat([provisional[b, : counts[b]], x[b, : lens[b]]]) for b in rows.tolist()]
        sizes = torch.tensor([len(block) for block in blocks])
        padded = torch.full((len(blocks), int(sizes.max()) + self.silence, tiny.DIM), 1e3)
        for b, block in enumerate(blocks):
            padded[b, : len(block)] = block
            padded[b, len(block) : len(block) + self.silence] = self.quiet
        final = (sizes - self.right).clamp(min=0)
        y, encoder = self.encoder.step(padded, sizes + self.silence, final, encoder, rows)
        outputs = [x.new_zeros(0, 2 * tiny.DIM)] * x.shape[0]
        provisional, counts = provisional.clone(), counts.clone()
        for i, b in enumerate(rows.tolist()):
            encoded = y[i, : sizes[i] + self.silence]
            own = encoded[sizes[i] - lens[b] : sizes[i]]
            outputs[b] = torch.cat([own, encoded.mean(0).expand_as(own)], 1)
            rest = blocks[i][int(final[i]) :]
            provisional[b, : len(rest)] = rest
            counts[b] = len(rest)
        return outputs, (encoder, provisional, counts)

    def reset(self, state: tuple[Rings, Tensor, Tensor], rows: Tensor) -> tuple[Rings, Tensor, Tensor]:
        return state[0].reset(rows), state[1], state[2].index_fill(0, rows, 0)

    def whole(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        outputs = []
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        blocks = uncached_blocks(self.encoder, x, self.quiet, sizes, self.right, self.silence)
        for (encoded, begin), size, end in zip(blocks, sizes, ends, strict=True):
            own = encoded[end - size - begin : end - begin]
            outputs.append(torch.cat([own, encoded.mean(0).expand_as(own)], 1))
        return torch.cat(outputs)


def uncached_blocks(
    encoder: Encoder, x: Tensor, quiet: Tensor, sizes: Sequence[int], right: int, silence: int
) -> Iterator[tuple[Tensor, int]]:
    """Whisper's encoder without a ring: each block's encoding [T, C] of the frames from the last final one on.

    Gives with each its new frames and the final ones before it. quiet: [C] or [silence, C], silence as it is encoded.
    """
    kept: list[list[Tensor]] = [
        [] for _ in encoder.layers
    ]  # [1, T, C] what each layer's attention read of final frames
    done, now = 0, 0
    for size in sizes:
        now += size
        y = torch.cat([x[done:now], quiet[now : now + silence] if quiet.dim() == 2 else quiet.expand(silence, -1)])[
            None
        ]
        final = max(0, now - right - done)
        for layer, past in zip(encoder.layers, kept, strict=True):
            normed = layer.attention_norm(y)
            seen = torch.cat([*past, normed], 1)[:, -(encoder.left_context_frames + normed.shape[1]) :]
            mask = torch.ones(1, 1, normed.shape[1], seen.shape[1], dtype=torch.bool)
            key, value = layer.attention.keys_values(seen)
            y = y + layer.attention.attend(layer.attention.queries(normed), key, value, mask)
            y = y + layer.feed_forward(layer.feed_forward_norm(y))
            past.append(normed[:, :final])
        yield encoder.norm(y)[0], done
        done += final


class CrossDecoderPart(_Part):
    """Whisper's decoder over a memory that is there already; inputs are token ids."""

    padding = 1
    frames = 14

    def __init__(self, text_positions: int = 48) -> None:
        self.decoder = tiny.tiny_cross_decoder(text_positions)
        self.memory_frames = noise(1, self.frames, tiny.DIM, seed=8)

    def input(self, time: int, seed: int) -> Tensor:
        return torch.randint(0, tiny.VOCABULARY, (time,), generator=torch.Generator().manual_seed(seed))

    def init_state(self, batch: int, *, largest: int | None = None) -> Any:
        memory = self.decoder.init_memory(batch, frames=self.frames + 6)
        count = torch.full((batch,), self.frames)
        junk = noise(batch, self.frames + 6, tiny.DIM, seed=9)
        memory = self.decoder.remember(memory, junk, count + 6, count + 6, None).reset(torch.arange(batch))
        memory = self.decoder.remember(memory, self.memory_frames.expand(batch, -1, -1), count, count - 3, None)
        return self.decoder.init_state(batch), memory

    def step(self, x: Tensor, lens: Tensor, state: Any) -> tuple[list[Tensor], Any]:
        text, memory = state
        hidden, attention = self.decoder.rows(x, lens, text, memory)
        y = torch.cat([self.decoder.logits(hidden), attention], 2)
        return valid_rows(y, lens), (text.advance(lens), memory)

    def reset(self, state: Any, rows: Tensor) -> Any:
        return state[0].reset(rows), state[1]

    def whole(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        logits, attention = self.decoder(x[None], self.memory_frames, torch.tensor([self.frames]))
        return torch.cat([logits, attention], 2)[0]


class CollapsePart(_Part):
    """Greedy CTC collapse; an output is (label, first frame, last frame, goes on from the chunk before)."""

    blank = 4

    def __init__(self, backend: str) -> None:
        self.collapse = dispatch("ctc.greedy_collapse", backend)

    def input(self, time: int, seed: int) -> Tensor:
        labels = noise(time // 2 + 1, 5, seed=seed).repeat_interleave(2, 0)[:time]  # runs of equal labels
        return labels.log_softmax(1)

    def init_state(self, batch: int, *, largest: int | None = None) -> Any:
        return init_collapse(batch, blank=self.blank)

    def step(self, x: Tensor, lens: Tensor, state: Any) -> tuple[list[Tensor], Any]:
        found, state = self.collapse(x, lens, state, blank=self.blank)
        return [self._row(found, b) for b in range(len(lens))], state

    @staticmethod
    def _row(found: CollapsedLabels, b: int) -> Tensor:
        count = int(found.counts[b])
        goes_on = torch.zeros(count, dtype=torch.int64)
        goes_on[:1] = int(found.continues[b])
        return torch.stack([found.ids[b, :count], found.first[b, :count], found.last[b, :count], goes_on], 1)

    def join(self, outputs: list[Tensor]) -> Tensor:
        joined: list[Tensor] = []
        for output in outputs:
            for run in output:
                if run[3] and joined:
                    run = torch.cat([run[:3], joined.pop()[3:]])
                joined.append(run)
        return torch.stack(joined) if joined else torch.zeros(0, 4, dtype=torch.int64)

    def reset(self, state: Any, rows: Tensor) -> Any:
        fresh = init_collapse(len(rows), blank=self.blank)
        return replace(
            state,
            label=state.label.index_copy(0, rows, fresh.label),
            first=state.first.index_copy(0, rows, fresh.first),
            frames=state.frames.index_copy(0, rows, fresh.frames),
        )


class AdditiveDecoderPart(_Part):
    """The additive decoder; an input is an audio step with the output before it as its last channel."""

    def __init__(self, delay: int = 3) -> None:
        self.decoder = tiny.tiny_additive_decoder()
        self.delay = delay
        self.memory = self.decoder.window_steps - 1

    def input(self, time: int, seed: int) -> Tensor:
        tokens = torch.randint(0, tiny.VOCABULARY + 1, (time, 1), generator=torch.Generator().manual_seed(seed))
        return torch.cat([noise(time, tiny.DIM, seed=seed), tokens.float()], 1)

    def init_state(self, batch: int, *, largest: int | None = None) -> Any:
        return self.decoder.init_state(batch, max_rows=largest or self.largest)

    def moved(self, state: Any) -> Any:
        return replace(state, rings=moved_rings(state.rings, self.decoder.layers))

    def step(self, x: Tensor, lens: Tensor, state: Any) -> tuple[list[Tensor], Any]:
        tokens = x[..., -1].long().clamp(0, tiny.VOCABULARY)
        delay = torch.full((len(x),), self.delay)
        hidden = self.decoder.rows(tokens, x[..., :-1], delay, lens, state)
        return valid_rows(self.decoder.logits(hidden), lens), state.advance(lens)

    def reset(self, state: Any, rows: Tensor) -> Any:
        return state.reset(rows)

    def whole(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        return self.decoder(x[None, :, -1].long(), x[None, :, :-1], torch.tensor([self.delay]))[0]


class AdapterPart(_Part):
    """The adapter, which has no memory."""

    grain, ratio, largest = 4, 4, 16

    def __init__(self) -> None:
        self.adapter: nn.Module = tiny.tiny_additive().adapter

    def input(self, time: int, seed: int) -> Tensor:
        return noise(time, tiny.DIM, seed=seed)

    def init_state(self, batch: int, *, largest: int | None = None) -> Tensor:
        return torch.zeros(batch)

    def step(self, x: Tensor, lens: Tensor, state: Tensor) -> tuple[list[Tensor], Tensor]:
        return valid_rows(self.adapter(x), lens // 4), state

    def reset(self, state: Tensor, rows: Tensor) -> Tensor:
        return state

    def whole(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        frames = x.reshape(-1, 4 * tiny.DIM)
        first, second = self.adapter.get_parameter("first.weight"), self.adapter.get_parameter("second.weight")
        return F.gelu(frames @ first.T) @ second.T


class CtcHeadPart(_Part):
    """The CTC head: frames to log-probabilities of steps."""

    grain, ratio, largest = 4, 4, 16

    def __init__(self) -> None:
        self.head = tiny.tiny_ctc()

    def input(self, time: int, seed: int) -> Tensor:
        return noise(time, tiny.DIM, seed=seed)

    def init_state(self, batch: int, *, largest: int | None = None) -> Tensor:
        return self.head.init_state(batch)

    def step(self, x: Tensor, lens: Tensor, state: Tensor) -> tuple[list[Tensor], Tensor]:
        log_probs, steps, state = self.head.step(x, lens, state)
        return valid_rows(log_probs, steps), state

    def reset(self, state: Tensor, rows: Tensor) -> Tensor:
        return state.index_copy(0, rows, self.head.init_state(len(rows)))

    def whole(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        return self.head(x[None])[0]
