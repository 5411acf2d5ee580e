"""The additive family's recogniser: front end, causal encoder, adapter and decoder as one part.

Positions are relative and every memory is a window, so streams are endless without re-anchoring.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from asr.adapter import Adapter
from asr.additive import AdditiveDecoder
from asr.additive_config import AdditiveConfig
from asr.answers import Answers, Draft
from asr.config import RowSettings
from asr.encoder import Encoder, causal_encoder, causal_whisper_encoder
from asr.errors import ConfigError
from asr.frontend import Frontend, FrontendState
from asr.recogniser import PROSPECT_PIECES, WAIT, Prospect, RowOutput
from asr.state import Rings
from asr.units import FRAMES_PER_STEP
from asr.vocabulary import Vocabulary

__all__ = ["AdditiveRecogniser", "AdditiveState", "build_additive"]


@dataclass(frozen=True)
class AdditiveState:
    """State of B streams.

    Attributes:
        frontend, encoder, decoder: the parts' own.
        audio: [B, c, D] audio steps heard; a row has yet to use those from `used` [B] on and below `available` [B].
        previous: [B] the output before the present step, the wait's id V included; V before the first.
        clock: [B] steps decoded.
        asked: [B] whether the decoder's memory is to be emptied at the next block.
        re_anchors: [B] how often it was.
        text, text_frames: [B, 24] the newest pieces written, newest last, and the frames they were read from.
        row: what the last call's decoder rows said: hidden [B, n, D], scores [B, n, V + 1].
    """

    frontend: FrontendState
    encoder: Rings
    decoder: Rings
    audio: Tensor
    used: Tensor
    available: Tensor
    previous: Tensor
    clock: Tensor
    asked: Tensor
    re_anchors: Tensor
    text: Tensor
    text_frames: Tensor
    row: Answers


class AdditiveRecogniser(nn.Module):
    """A decoder-only language model on the step clock (the shape of Voxtral Realtime).

    Args:
        frontend, encoder, adapter, decoder: the parts; the encoder is causal.
        begins_word: [V] whether a piece begins a word. letters: [V] whether it holds a letter or digit.
        banned: [V] pieces never written.
    """

    waits_take_rows = True
    begins_word: Tensor
    letters: Tensor
    banned: Tensor

    def __init__(
        self,
        *,
        frontend: Frontend,
        encoder: Encoder,
        adapter: Adapter,
        decoder: AdditiveDecoder,
        begins_word: Tensor,
        letters: Tensor,
        banned: Tensor,
    ) -> None:
        super().__init__()
        if encoder.window_frames is None:
            raise ConfigError("the additive family needs a causal encoder; this one is bidirectional within a block")
        self.frontend, self.encoder, self.adapter, self.decoder = frontend, encoder, adapter, decoder
        self.wait = decoder.embedding.num_embeddings - 1
        for name, value in (("begins_word", begins_word), ("letters", letters), ("banned", banned)):
            if value.shape != (self.wait,):
                raise ConfigError(f"{name} has shape {tuple(value.shape)}; the decoder has {self.wait} text ids")
            self.register_buffer(name, value, persistent=False)

    # -- state ---------------------------------------------------------------------------------------------------

    def init_state(self, batch: int, *, max_chunk_steps: int, max_right: int, max_silence: int) -> AdditiveState:
        """Fresh streams whose blocks may be as large as stated (in steps).

        Raises:
            ConfigError: if right context or silence frames are asked for.
        """
        if max_right or max_silence:
            raise ConfigError(f"a causal encoder takes neither right context ({max_right}) nor silence ({max_silence})")
        weight = self.decoder.embedding.weight
        zero = torch.zeros(batch, dtype=torch.int64, device=weight.device)
        return AdditiveState(
            frontend=self.frontend.init_state(batch),
            encoder=self.encoder.init_state(batch, block_frames=max_chunk_steps * FRAMES_PER_STEP),
            decoder=self.decoder.init_state(batch, max_rows=max_chunk_steps),
            audio=weight.new_zeros(batch, max_chunk_steps, self.decoder.dim),
            used=zero,
            available=zero,
            previous=torch.full_like(zero, self.wait),
            clock=zero,
            asked=torch.zeros_like(zero, dtype=torch.bool),
            re_anchors=zero,
            text=torch.full((batch, PROSPECT_PIECES), -1, device=weight.device),
            text_frames=torch.zeros(batch, PROSPECT_PIECES, dtype=torch.int64, device=weight.device),
            row=Answers.none(
                (weight.new_zeros(batch, 1, self.decoder.dim), weight.new_zeros(batch, 1, self.wait + 1).float())
            ),
        )

    def reset(self, state: AdditiveState, rows: Tensor) -> AdditiveState:
        """The state in which `rows` are fresh streams; nothing of what was there can be read."""

        def zero(x: Tensor) -> Tensor:
            return x.index_fill(0, rows, 0)

        return replace(
            state,
            frontend=state.frontend.put(rows, self.frontend.init_state(rows.shape[0])),
            encoder=state.encoder.reset(rows),
            decoder=state.decoder.reset(rows),
            used=zero(state.used),
            available=zero(state.available),
            previous=state.previous.index_fill(0, rows, self.wait),
            clock=zero(state.clock),
            asked=zero(state.asked),
            re_anchors=zero(state.re_anchors),
            text=state.text.index_fill(0, rows, -1),
            row=state.row.reset(rows),
        )

    # -- hearing -------------------------------------------------------------------------------------------------

    def listen(self, samples: Tensor, lens: Tensor, settings: RowSettings, state: AdditiveState) -> AdditiveState:
        """Takes one block of audio a row; its audio steps wait to be used.

        Args:
            samples: [B, N] 16 kHz; lens: [B] valid samples, whole steps; 0 idles.
        Returns:
            The new state. Rows that were asked to have forgotten their text and their outputs first.
        Raises:
            ConfigError: if an active row asks for right context or silence, or if its unused steps and the new ones
                are more than the state was made for.
        """
        frames, _, counts, frontend = self.frontend.step(samples, lens, state.frontend)
        active = counts > 0
        if bool((active & ((settings.right > 0) | (settings.silence > 0))).any()):
            raise ConfigError(
                f"a causal encoder takes neither right context ({settings.right.tolist()}) nor silence "
                f"({settings.silence.tolist()})"
            )
        left, new = state.available - state.used, counts // FRAMES_PER_STEP
        capacity = state.audio.shape[1]
        if int((left + new).max()) > capacity:
            raise ConfigError(
                f"rows hold {(left + new).tolist()} unused audio steps; the state was made for {capacity}"
            )
        forget = (active & state.asked).nonzero()[:, 0]
        encoded, encoder = self.encoder.step(frames, counts, counts, state.encoder, None)
        heard = torch.cat([state.audio, self.adapter(encoded)], 1)  # [B, c + N/1280, D]
        offset = torch.arange(capacity, device=counts.device)
        at = torch.where(offset < left[:, None], state.used[:, None] + offset, capacity + offset - left[:, None])
        at = at.clamp(max=heard.shape[1] - 1)
        return replace(
            state,
            frontend=frontend,
            encoder=encoder,
            decoder=state.decoder.reset(forget),
            audio=heard.gather(1, at[:, :, None].expand(-1, -1, heard.shape[2])),
            used=torch.zeros_like(state.used),
            available=left + new,
            previous=state.previous.index_fill(0, forget, self.wait),
            asked=state.asked & ~active,
            re_anchors=state.re_anchors.index_add(0, forget, torch.ones_like(forget)),
            row=state.row.reset(forget),
        )

    def rest(self, state: AdditiveState) -> AdditiveState:
        """The state between blocks: one size after all of them."""
        return replace(state, row=state.row.narrowed())

    def ask_re_anchor(self, state: AdditiveState, rows: Tensor) -> AdditiveState:
        """The state in which the decoder of `rows` forgets its past at their next block (the watchdog's call)."""
        return replace(state, asked=state.asked.index_fill(0, rows, True))

    # -- speaking ------------------------------------------------------------------------------------------------

    def needs_call(self, active: Tensor, state: AdditiveState) -> Tensor:
        """[B] which rows of active [B] have no answer for the present step yet."""
        return active & (state.row.left == 0)

    def prospect(self, row: int, state: AdditiveState) -> Prospect:
        """What a drafter may know of one row; there is no CTC head in this family."""
        written = [at for at, piece in enumerate(state.text[row].tolist()) if piece >= 0]
        clock = int(state.clock[row])
        return Prospect(
            clock=clock,
            text=state.text[row, written].tolist(),
            text_frames=state.text_frames[row, written].tolist(),
            labels=(),
            newest_step=clock + int(state.available[row] - state.used[row]) - 1,
        )

    def guesses(self, rows: Tensor, state: AdditiveState, *, heads: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Nothing: a row hears a step of its own, and there are no multi-token heads."""
        return rows[:, None], torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)

    def _call(
        self, need: Tensor, settings: RowSettings, draft: Draft | None, state: AdditiveState
    ) -> tuple[AdditiveState, Tensor]:
        """Runs the present steps' rows of the streams `need` [B], and behind them those of the draft.

        Returns:
            The state that remembers what they said, and the rows spent [B].
        """
        rows = None if bool(need.all()) else need.nonzero()[:, 0]
        index = torch.arange(need.shape[0], device=need.device) if rows is None else rows
        used = state.used[index]
        heard = state.available[index] - used
        if draft is None:
            draft = Draft.pack([[]] * index.shape[0], index.device)
        else:  # the last step's output may be drafted, but no row follows it
            draft = Draft(draft.outputs[index], draft.source[index], draft.lens[index]).at_most(heard)
        lens = torch.minimum(draft.lens + 1, heard)
        count = int(lens.max())
        outputs = torch.where(draft.outputs == WAIT, self.wait, draft.outputs).clamp(min=0)[:, : count - 1]
        offset = torch.arange(count, device=index.device)
        at = (used[:, None] + offset).clamp(max=state.audio.shape[1] - 1)
        hidden = self.decoder.rows(
            torch.cat([state.previous[index, None], outputs], 1),
            state.audio[index[:, None], at],
            settings.delay[index],
            lens,
            state.decoder,
            rows,
        )
        answers = state.row.put(rows, (hidden, self.decoder.logits(hidden).float()), lens, draft)
        return replace(state, row=answers), torch.zeros_like(state.clock).index_copy(0, index, lens)

    def row(
        self, active: Tensor, settings: RowSettings, state: AdditiveState, draft: Draft | None = None
    ) -> tuple[RowOutput, AdditiveState]:
        """Runs the present step's row of every active stream.

        Args:
            active: [B] bool; the others' answers mean nothing.
            draft: the outputs expected of the steps that were heard, waits included, tried in the same call.
        Raises:
            ConfigError: if an active row has no audio step left.
        """
        if bool((active & (state.used >= state.available)).any()):
            raise ConfigError(f"rows have {(state.available - state.used).tolist()} audio steps left; listen first")
        need, spent = self.needs_call(active, state), torch.zeros_like(state.clock)
        if bool(need.any()):
            state, spent = self._call(need, settings, draft, state)
        scores = state.row.present()[1]  # [B, V + 1]
        logits = scores[:, : self.wait].masked_fill(self.banned, -torch.inf)
        best, candidate = logits.max(-1)
        frame = ((state.clock + 1 - settings.delay) * FRAMES_PER_STEP - 1).clamp(min=0)
        output = RowOutput(
            open=active & (best >= scores[:, self.wait]),
            logits=logits,
            frame=frame,  # what was heard last of the word that is due
            closes=self.begins_word[candidate] | ~self.letters[candidate],
            decoder_rows=spent,
            expected=state.row.expected(),
        )
        return output, state

    def accept(self, active: Tensor, tokens: Tensor, output: RowOutput, state: AdditiveState) -> AdditiveState:
        """The state after every active row has given its output, a wait or a text id; both are remembered.

        Args:
            tokens: [B] the committed token, or WAIT.
        """
        said = torch.where(tokens == WAIT, self.wait, tokens)
        spoke = (active & (tokens != WAIT))[:, None]
        return replace(
            state,
            text=torch.where(spoke, torch.cat([state.text[:, 1:], tokens[:, None]], 1), state.text),
            text_frames=torch.where(
                spoke, torch.cat([state.text_frames[:, 1:], output.frame[:, None]], 1), state.text_frames
            ),
            row=state.row.give(active, tokens),
            decoder=state.decoder.advance(active.long()),
            previous=torch.where(active, said, state.previous),
            used=state.used + active.long(),
            clock=state.clock + active.long(),
        )

    def take(self, active: Tensor, tokens: Tensor, frames: Tensor, state: AdditiveState) -> AdditiveState:
        """Refused: in this family every output is a row of the decoder.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("the additive family remembers a row for every output; none can be given without the decoder")

    # -- training ------------------------------------------------------------------------------------------------

    def forward(self, samples: Tensor, outputs: Tensor, delay: Tensor) -> Tensor:
        """The teacher-forced training forward; the encoder is causal, so no chunk size changes it.

        Args:
            samples: [B, N] 16 kHz, N a multiple of 1280; rows that end earlier are padded.
            outputs: [B, N/1280] what each step says, the wait as V.
            delay: [B] τ in steps.
        Returns:
            logits [B, N/1280, V + 1], the wait last: of each step, given the outputs before it.
        """
        lens = torch.full((samples.shape[0],), samples.shape[1], dtype=torch.int64, device=samples.device)
        frames, _, _, _ = self.frontend.step(samples, lens, self.frontend.init_state(samples.shape[0]))
        mask = self.encoder.chunk_mask(frames.shape[1], frames.shape[1], device=frames.device)
        audio = self.adapter(self.encoder(frames, mask))
        first = torch.full_like(outputs[:, :1], self.wait)
        return self.decoder(torch.cat([first, outputs[:, :-1]], 1), audio, delay)  # type: ignore[no-any-return]


def _encoder(config: AdditiveConfig) -> Encoder:
    if config.encoder_kind == "whisper":
        return causal_whisper_encoder(
            layers=config.encoder_layers,
            dim=config.encoder_dim,
            heads=config.encoder_heads,
            theta=config.encoder_theta,
            window_frames=config.encoder_window_frames,
        )
    return causal_encoder(
        layers=config.encoder_layers,
        dim=config.encoder_dim,
        heads=config.encoder_heads,
        head_dim=config.encoder_head_dim,
        hidden=config.encoder_hidden,
        theta=config.encoder_theta,
        window_frames=config.encoder_window_frames,
    )


def build_additive(config: AdditiveConfig, vocabulary: Vocabulary) -> AdditiveRecogniser:
    """The recogniser that a configuration describes, its weights random; special pieces are never written."""
    size = config.vocabulary
    banned = torch.zeros(size, dtype=torch.bool)
    banned[vocabulary.special_from :] = True
    return AdditiveRecogniser(
        frontend=Frontend(mel_bins=config.mel_bins, dim=config.encoder_dim),
        encoder=_encoder(config),
        adapter=Adapter(frame_dim=config.encoder_dim, dim=config.dim),
        decoder=AdditiveDecoder(
            outputs=size + 1,
            layers=config.layers,
            dim=config.dim,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            hidden=config.hidden,
            theta=config.theta,
            window_steps=config.window_steps,
            condition_dim=config.condition_dim,
        ),
        begins_word=vocabulary.begins_word(size),
        letters=vocabulary.letters(size),
        banned=banned,
    )
