"""The cross family's recogniser: front end, encoder memory, Whisper's decoder, emit gate and re-anchoring as one part.

Frames in this module count from the stream's start unless a name or comment says "from the anchor".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from asr.config import AnchorConfig, RowSettings
from asr.cross import CrossDecoder, CrossMemory, DecoderState, log_probabilities
from asr.ctc import CtcHead
from asr.encoder import Encoder, EncoderState
from asr.frontend import Frontend, FrontendState
from asr.gate import Gate, GateView
from asr.recogniser import WAIT, RowOutput
from asr.units import FRAMES_PER_STEP

__all__ = ["CrossRecogniser", "CrossState"]


@dataclass(frozen=True)
class Heard:
    """What one decoder row said; it stays true until the row's block or text changes.

    Attributes: hidden: [B, C]; attention: [B, S]; logits: [B, V]; valid: [B] whether it may be used again.
    """

    hidden: Tensor
    attention: Tensor
    logits: Tensor
    valid: Tensor


@dataclass(frozen=True)
class CrossState:
    """State of B streams.

    Attributes:
        frontend, encoder, memory, decoder: the parts' own.
        history: [B, Hc, C] the newest stem frames, newest last, for provisional frames and re-anchoring;
            loudness: [B, Hc] theirs; quietest: [B] the loudness of the background.
        heard: [B] frames heard. anchor: [B] the frame that has position 0. clock: [B] steps decoded.
        pending: [B, P] tokens whose rows are not remembered yet (the prompt, text fed again, the last token);
            pending_lens: [B].
        text, text_frames: [B, P] tokens since the anchor and the frames (from the anchor) they were read from;
            count: [B] how many; since_pause: [B] tokens since the last pause.
        word_open: [B] whether the last piece may be continued.
        ended: [B] whether the decoder last said that the text ends here.
        asked: [B] whether a re-anchoring was asked for. re_anchors: [B] how many there were.
        row: what the last decoder row said.
        ctc: [B, hidden] the CTC head's state at `ctc_heard` [B] final frames; ctc_window: [B] newest step that has a
            label; ctc_labels, ctc_probability: [B, W] its
            best label of the newest W steps, newest last, provisional ones included.
    """

    frontend: FrontendState
    encoder: EncoderState
    memory: CrossMemory
    decoder: DecoderState
    history: Tensor
    loudness: Tensor
    quietest: Tensor
    heard: Tensor
    anchor: Tensor
    clock: Tensor
    pending: Tensor
    pending_lens: Tensor
    text: Tensor
    text_frames: Tensor
    count: Tensor
    since_pause: Tensor
    word_open: Tensor
    ended: Tensor
    asked: Tensor
    re_anchors: Tensor
    row: Heard
    ctc: Tensor
    ctc_heard: Tensor
    ctc_window: Tensor
    ctc_labels: Tensor
    ctc_probability: Tensor


class CrossRecogniser(nn.Module):
    """A converted Whisper on the step clock.

    Args:
        frontend, encoder, decoder: the parts.
        gate: decides when a token may go.
        anchors: when positions start anew.
        prompt: ids that every text begins with (start of transcript, language, task, no timestamps).
        end_id: the decoder's "text ends here".
        begins_word: [V] whether a piece begins a word. letters: [V] whether it holds a letter or digit.
        banned: [V] pieces never written; banned_first: [V] those not written first.
        max_frames: encoder positions there are.
        ctc: previews the tail, where there is one.
    """

    encoder_positions: Tensor
    begins_word: Tensor
    letters: Tensor
    banned: Tensor
    banned_first: Tensor

    def __init__(
        self,
        *,
        frontend: Frontend,
        encoder: Encoder,
        decoder: CrossDecoder,
        gate: Gate,
        anchors: AnchorConfig,
        prompt: tuple[int, ...],
        end_id: int,
        begins_word: Tensor,
        letters: Tensor,
        banned: Tensor,
        banned_first: Tensor,
        max_frames: int,
        ctc: CtcHead | None = None,
    ) -> None:
        super().__init__()
        self.ctc = ctc
        self.frontend, self.encoder, self.decoder, self.gate, self.anchors = frontend, encoder, decoder, gate, anchors
        self.prompt, self.end_id, self.max_frames = prompt, end_id, max_frames
        self.encoder_positions = nn.Parameter(torch.zeros(max_frames, frontend.dim))
        for name, value in (
            ("begins_word", begins_word),
            ("letters", letters),
            ("banned", banned),
            ("banned_first", banned_first),
        ):
            self.register_buffer(name, value, persistent=False)

    # -- state ---------------------------------------------------------------------------------------------------

    def init_state(self, batch: int, *, max_chunk_steps: int, max_right: int, max_silence: int) -> CrossState:
        """Fresh streams whose blocks may be as large as stated (in steps and frames)."""
        device = self.encoder_positions.device
        chunk = max_chunk_steps * FRAMES_PER_STEP
        block = chunk + max_right + max_silence
        history = max(self.anchors.keep_frames + chunk, chunk + max_right)

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        vocabulary, dim = self.decoder.embedding.weight.shape
        positions = self.decoder.text_positions
        memory = self.decoder.init_memory(batch, frames=min(self.max_frames, self.anchors.limit_frames + max_silence))
        state = CrossState(
            frontend=self.frontend.init_state(batch),
            encoder=self.encoder.init_state(batch, block_frames=block),
            memory=memory,
            decoder=self.decoder.init_state(batch),
            history=self.encoder_positions.new_zeros(batch, history, dim),
            loudness=self.encoder_positions.new_zeros(batch, history),
            quietest=self.encoder_positions.new_zeros(batch),
            heard=zeros(batch),
            anchor=zeros(batch),
            clock=zeros(batch),
            pending=zeros(batch, len(self.prompt) + positions),
            pending_lens=zeros(batch),
            text=zeros(batch, positions),
            text_frames=zeros(batch, positions),
            count=zeros(batch),
            since_pause=zeros(batch),
            word_open=zeros(batch, dtype=torch.bool),
            ended=zeros(batch, dtype=torch.bool),
            asked=zeros(batch, dtype=torch.bool),
            re_anchors=zeros(batch),
            row=Heard(
                self.encoder_positions.new_zeros(batch, dim),
                self.encoder_positions.new_zeros(batch, memory.capacity),
                self.encoder_positions.new_zeros(batch, vocabulary),
                zeros(batch, dtype=torch.bool),
            ),
            ctc=self.encoder_positions.new_zeros(batch, self.ctc.hidden if self.ctc else 0),
            ctc_heard=zeros(batch),
            ctc_window=zeros(batch),
            ctc_labels=zeros(batch, history // FRAMES_PER_STEP if self.ctc else 0),
            ctc_probability=self.encoder_positions.new_zeros(batch, history // FRAMES_PER_STEP if self.ctc else 0),
        )
        return self.reset(state, torch.arange(batch, device=device))

    def reset(self, state: CrossState, rows: Tensor) -> CrossState:
        """The state in which `rows` are fresh streams; nothing of what was there can be read."""
        fresh = self.frontend.init_state(rows.shape[0])
        old = state.frontend

        def zero(x: Tensor) -> Tensor:
            return x.index_fill(0, rows, 0)

        state = replace(
            state,
            frontend=replace(
                old,
                tail=old.tail.index_copy(0, rows, fresh.tail),
                conv1=old.conv1.index_copy(0, rows, fresh.conv1),
                conv2=old.conv2.index_copy(0, rows, fresh.conv2),
            ),
            history=zero(state.history),
            loudness=state.loudness.index_fill(0, rows, self.frontend.floor),
            quietest=zero(state.quietest),
            ctc=zero(state.ctc),
            ctc_heard=zero(state.ctc_heard),
            ctc_window=zero(state.ctc_window),
            ctc_labels=state.ctc_labels.index_fill(0, rows, self.ctc.blank if self.ctc else 0),
            ctc_probability=zero(state.ctc_probability),
            heard=zero(state.heard),
            anchor=zero(state.anchor),
            clock=zero(state.clock),
            asked=zero(state.asked),
            re_anchors=zero(state.re_anchors),
        )
        return self._without_text(state, rows)

    def _without_text(self, state: CrossState, rows: Tensor) -> CrossState:
        """The state in which `rows` stand at position 0 with the prompt pending."""
        prompt = torch.tensor(self.prompt, device=rows.device)
        pending = state.pending.clone()
        pending[rows, : len(self.prompt)] = prompt

        def zero(x: Tensor) -> Tensor:
            return x.index_fill(0, rows, 0)

        return replace(
            state,
            encoder=state.encoder.reset(rows),
            memory=state.memory.reset(rows),
            decoder=state.decoder.reset(rows),
            pending=pending,
            pending_lens=state.pending_lens.index_fill(0, rows, len(self.prompt)),
            count=zero(state.count),
            since_pause=zero(state.since_pause),
            word_open=zero(state.word_open),
            ended=zero(state.ended),
            row=replace(state.row, valid=zero(state.row.valid)),
        )

    # -- hearing -------------------------------------------------------------------------------------------------

    def listen(self, samples: Tensor, lens: Tensor, settings: RowSettings, state: CrossState) -> CrossState:
        """Takes one block of audio a row into the memory.

        Args:
            samples: [B, N] 16 kHz; lens: [B] valid samples, whole steps; 0 idles.
        Returns:
            The new state. Rows that had to were re-anchored first.
        """
        frames, loudness, counts, frontend = self.frontend.step(samples, lens, state.frontend)
        before = state.heard
        state = replace(
            state,
            frontend=frontend,
            history=_roll(state.history, frames, counts),
            loudness=_roll(state.loudness[:, :, None], loudness[:, :, None], counts)[:, :, 0],
            quietest=_background(state.quietest, loudness, counts),
            heard=state.heard + counts,
        )
        active = counts > 0
        due = active & self._must_re_anchor(before, settings, state)
        for row in due.nonzero()[:, 0].tolist():
            state = self._re_anchor(row, int(before[row]), state)
        # Re-anchored rows encode seconds, the others one chunk: apart, so that nobody pays for padding.
        for group in (active & ~due, due):
            if bool(group.any()):
                state = self._block(None if bool(group.all()) else group.nonzero()[:, 0], settings, state)
        return replace(state, row=replace(state.row, valid=state.row.valid & ~active))

    def _block(self, rows: Tensor | None, settings: RowSettings, state: CrossState) -> CrossState:
        """Encodes from the last final frame on, for `rows`."""
        index = torch.arange(state.heard.shape[0], device=state.heard.device) if rows is None else rows
        done = state.encoder.length[index]  # from the anchor
        now = (state.heard - state.anchor)[index]
        real, silence = now - done, settings.silence[index]
        lens = real + silence
        offset = torch.arange(int(lens.max()), device=now.device)
        history = state.history if rows is None else state.history[rows]
        at = (history.shape[1] - real[:, None] + offset).clamp(0, history.shape[1] - 1)
        x = history.gather(1, at[:, :, None].expand(-1, -1, history.shape[2]))  # [k, T, C]
        x = torch.where((offset < real[:, None])[:, :, None], x, self.frontend.silent_frame())
        x = x + self.encoder_positions[(done[:, None] + offset).clamp(max=self.max_frames - 1)]
        final = (now - settings.right[index] - done).clamp(min=0)
        y, encoder = self.encoder.step(x, lens, final, state.encoder, rows)
        memory = self.decoder.remember(state.memory, y, lens, final, rows)
        state = replace(state, encoder=encoder, memory=memory)
        return self._preview(y, done, real, final, index, state)

    def _preview(
        self, y: Tensor, done: Tensor, real: Tensor, final: Tensor, index: Tensor, state: CrossState
    ) -> CrossState:
        """The CTC head over a block's features y [k, T, C]: final frames once, provisional ones for the time being."""
        if self.ctc is None:
            return state
        start = state.anchor[index] + done
        skip = (state.ctc_heard[index] - start).clamp(min=0)  # final frames that a re-anchoring has encoded again
        fresh = (final - skip).clamp(min=0)
        log_probs, steps, ctc = self.ctc.step(_part(y, skip, fresh), fresh, state.ctc[index])
        tail, more, _ = self.ctc.step(_part(y, skip + fresh, real - skip - fresh), real - skip - fresh, ctc)
        heard = state.heard[index] // FRAMES_PER_STEP
        before = (start + skip) // FRAMES_PER_STEP
        size = state.ctc_labels.shape[1]
        labels, probability = state.ctc_labels[index], state.ctc_probability[index]
        # The window has been written up to the last block's newest step; move it to this one's.
        moved = heard - state.ctc_window[index]
        place = torch.arange(size, device=y.device) + moved[:, None]
        labels = torch.where(place < size, labels.gather(1, place.clamp(max=size - 1)), self.ctc.blank)
        probability = torch.where(place < size, probability.gather(1, place.clamp(max=size - 1)), 0.0)
        for said, count, first in ((log_probs, steps, before), (tail, more, before + steps)):
            if said.shape[1]:
                best, label = said.max(-1)
                at = torch.arange(size, device=y.device) - size + (heard - first)[:, None]
                here = (at >= 0) & (at < count[:, None])
                labels = torch.where(here, label.gather(1, at.clamp(0, label.shape[1] - 1)), labels)
                probability = torch.where(here, best.exp().gather(1, at.clamp(0, label.shape[1] - 1)), probability)
        return replace(
            state,
            ctc=state.ctc.index_copy(0, index, ctc),
            ctc_heard=state.ctc_heard.index_copy(0, index, start + torch.maximum(final, skip)),
            ctc_window=state.ctc_window.index_copy(0, index, heard),
            ctc_labels=state.ctc_labels.index_copy(0, index, labels),
            ctc_probability=state.ctc_probability.index_copy(0, index, probability),
        )

    # -- re-anchoring ----------------------------------------------------------------------------------------------

    def ask_re_anchor(self, state: CrossState, rows: Tensor) -> CrossState:
        """The state in which `rows` start anew at their next block (the watchdog's call)."""
        return replace(state, asked=state.asked.index_fill(0, rows, True))

    def _must_re_anchor(self, before: Tensor, settings: RowSettings, state: CrossState) -> Tensor:
        """[B] whether the coming block has to start a new anchor; `before`: frames heard before it."""
        anchors = self.anchors
        span = state.heard - state.anchor
        limit = torch.minimum(torch.full_like(span, anchors.limit_frames), state.memory.capacity - settings.silence)
        newest = self._newest(state)
        since = before - state.anchor - newest
        pause = (span > anchors.pause_after_frames) & (since > anchors.pause_frames + settings.delay * FRAMES_PER_STEP)
        # The decoder took a full stop for the end, but somebody speaks on: begin anew behind the stop.
        back = state.heard - state.anchor - newest  # frames since the newest token's
        place = torch.arange(state.loudness.shape[1], 0, -1, device=span.device)  # frames before the end of `heard`
        reach = (back - anchors.tail_frames).clamp(max=anchors.keep_frames)  # the same however long the history is
        voiced = (state.loudness > (state.quietest + 0.25)[:, None]) & (place < reach[:, None])
        speaks_on = state.ended & (state.count > 0) & (voiced.sum(1) >= anchors.voiced_frames)
        return state.asked | (span > limit) | pause | (state.count > anchors.text_limit) | speaks_on

    @staticmethod
    def _newest(state: CrossState) -> Tensor:
        """[B] the furthest frame, from the anchor, that a token was read from."""
        index = torch.arange(state.text.shape[1], device=state.count.device)
        return torch.where(index < state.count[:, None], state.text_frames, 0).amax(1)

    def _re_anchor(self, row: int, before: int, state: CrossState) -> CrossState:
        """Moves position 0 of a row to a gap between words in the last few seconds; later words are fed again."""
        anchor, count, asked = int(state.anchor[row]), int(state.count[row]), bool(state.asked[row])
        tokens = state.text[row, :count].tolist()
        frames = state.text_frames[row, :count].tolist()
        oldest = int(state.heard[row]) - state.history.shape[1] - anchor  # frames before it are forgotten
        loudness = [self.frontend.floor] * max(0, oldest) + state.loudness[row, max(0, -oldest) :].tolist()
        cut, first = self._place(before - anchor, tokens, frames, loudness, bool(state.ended[row]))
        if asked:  # the watchdog does not trust the text
            first = count
        cut = max(cut, oldest, 0)
        cut -= (anchor + cut) % FRAMES_PER_STEP  # anchors lie on steps
        cut += FRAMES_PER_STEP if cut < max(oldest, 0) else 0
        one = torch.tensor([row], device=state.heard.device)
        state = self._without_text(replace(state, asked=state.asked.index_fill(0, one, False)), one)
        again = torch.tensor(tokens[first:], dtype=torch.int64, device=one.device)
        kept = again.shape[0]
        prompt = len(self.prompt)
        pending, text, text_frames = state.pending.clone(), state.text.clone(), state.text_frames.clone()
        pending[row, prompt : prompt + kept] = again
        text[row, :kept] = again
        text_frames[row, :kept] = torch.tensor([max(0, f - cut) for f in frames[first:]], dtype=torch.int64)
        return replace(
            state,
            anchor=state.anchor.index_fill(0, one, anchor + cut),
            pending=pending,
            pending_lens=state.pending_lens.index_fill(0, one, prompt + kept),
            text=text,
            text_frames=text_frames,
            count=state.count.index_fill(0, one, kept),
            since_pause=state.since_pause.index_fill(0, one, kept),
            re_anchors=state.re_anchors.index_add(0, one, torch.ones_like(one)),
        )

    def _place(
        self, heard: int, tokens: list[int], frames: list[int], loudness: list[float], ended: bool
    ) -> tuple[int, int]:
        """Where to cut, and the first token to feed again; frames from the anchor, `heard` of them before this block.

        The quietest frame of the widest gap before a word that was read in the last `keep_frames`; behind the last
        word, if nothing was read lately or the decoder says that the text has ended.
        """
        earliest = max(0, heard - self.anchors.keep_frames)
        newest = max(frames, default=0)
        if ended or newest < earliest or heard - newest > self.anchors.pause_frames:
            start = max(earliest, newest)
            return _quietest(loudness, start, min(start + 60, len(loudness))), len(tokens)
        best, gap = len(tokens), -1
        for i in range(1, len(tokens)):
            is_word = bool(self.begins_word[tokens[i]])
            if is_word and earliest <= frames[i] <= heard - 50 and frames[i] - frames[i - 1] >= gap:
                best, gap = i, frames[i] - frames[i - 1]
        if best == len(tokens):
            return max(earliest, newest - 10), len(tokens)
        return _quietest(loudness, max(earliest, frames[best - 1]), frames[best]), best

    # -- speaking --------------------------------------------------------------------------------------------------

    def row(self, active: Tensor, settings: RowSettings, state: CrossState) -> tuple[RowOutput, CrossState]:
        """Runs the present step's row of every active stream.

        Args:
            active: [B] bool; the others' answers mean nothing.
        Returns:
            The answer and the state that remembers it, for waits within the block need no second look.
        """
        said = state.row
        calls = bool((active & ~said.valid).any())
        if calls:
            lens = torch.where(active, state.pending_lens, 0)
            hidden, attention = self.decoder.rows(
                state.pending[:, : max(1, int(lens.max()))], lens, state.decoder, state.memory
            )
            at = (lens - 1).clamp(min=0)
            pick = torch.arange(lens.shape[0], device=lens.device)
            hidden, attention = hidden[pick, at], attention[pick, at]
            attention = nn.functional.pad(attention, (0, state.memory.capacity - attention.shape[1]))
            said = Heard(hidden, attention, self.decoder.logits(hidden).float(), active)
        logits = self._allowed(said.logits, state)
        best, candidate = logits.max(-1)
        probability = (best - logits.logsumexp(-1)).exp()
        ended = candidate == self.end_id
        view = GateView(
            attention=said.attention,
            now=torch.minimum((state.clock + 1) * FRAMES_PER_STEP, state.heard) - state.anchor,
            frames=state.heard - state.anchor,
            delay=settings.delay,
            chunk_steps=settings.chunk_steps,
            hidden=said.hidden,
            around=self._around(settings, state),
            candidate=candidate,
            probability=probability,
            begins_word=self.begins_word[candidate],
            letters=self.letters[candidate],
            ended=ended,
            text=state.text,
            text_frames=state.text_frames,
            count=state.count,
            since_pause=state.since_pause,
            loud=self._loud(state, said.attention.shape[1]),
        )
        answer = self.gate(view)
        full = state.decoder.length + state.pending_lens >= self.decoder.text_positions
        output = RowOutput(
            open=answer.open & active & ~full,
            logits=logits.index_fill(1, torch.tensor([self.end_id], device=best.device), -torch.inf),
            frame=answer.frame + state.anchor,
            closes=ended | self.begins_word[candidate] | ~self.letters[candidate],
            decoder_rows=torch.where(active & calls, state.pending_lens, 0),
        )
        return output, replace(state, row=said, ended=torch.where(active, ended, state.ended))

    def _around(self, settings: RowSettings, state: CrossState) -> Tensor:
        """[B, C] the mean of the eight encoder frames around now - τ."""
        now = torch.minimum((state.clock + 1) * FRAMES_PER_STEP, state.heard) - state.anchor
        at = (now - settings.delay * FRAMES_PER_STEP)[:, None] + torch.arange(-4, 4, device=now.device)
        at = at.clamp(0, state.memory.capacity - 1)
        return state.memory.features.gather(1, at[:, :, None].expand(-1, -1, self.decoder.dim)).mean(1)

    def _loud(self, state: CrossState, frames: int) -> Tensor:
        """[B, frames] whether each frame since the anchor is 10 dB louder than the background."""
        size = state.loudness.shape[1]
        place = torch.arange(frames, device=state.heard.device) + (state.anchor - state.heard)[:, None] + size
        known = state.loudness.gather(1, place.clamp(0, size - 1)) > (state.quietest + 0.25)[:, None]
        return (place < size - self.anchors.keep_frames) | (known & (place < size))

    def _allowed(self, logits: Tensor, state: CrossState) -> Tensor:
        """Logits with what may not be written at -inf: special pieces, and letters without a word to continue."""
        logits = logits.masked_fill(self.banned, -torch.inf)
        none_yet = (state.count == 0)[:, None]
        orphan = ~state.word_open[:, None] & (self.letters & ~self.begins_word)
        return logits.masked_fill((none_yet & self.banned_first) | orphan, -torch.inf)

    def accept(self, active: Tensor, tokens: Tensor, output: RowOutput, state: CrossState) -> CrossState:
        """The state after every active row has given its output.

        Args:
            tokens: [B] the committed token, or WAIT.
        """
        spoke = active & (tokens != WAIT)
        frame = output.frame - state.anchor
        index = torch.arange(state.text.shape[1], device=tokens.device)
        newest = self._newest(state)
        here = (index == state.count[:, None]) & spoke[:, None]
        token = tokens.clamp(min=0)
        paused = frame - newest > 50
        pending = state.pending.clone()
        pending[:, 0] = torch.where(spoke, token, pending[:, 0])
        word_open = spoke | (state.word_open & ~output.closes)
        return replace(
            state,
            decoder=state.decoder.advance(torch.where(spoke, state.pending_lens, 0)),
            pending=pending,
            pending_lens=torch.where(spoke, 1, state.pending_lens),
            text=torch.where(here, token[:, None], state.text),
            text_frames=torch.where(here, frame[:, None], state.text_frames),
            count=state.count + spoke.long(),
            since_pause=torch.where(spoke, torch.where(paused, 1, state.since_pause + 1), state.since_pause),
            word_open=torch.where(active, word_open, state.word_open),
            clock=state.clock + active.long(),
            row=replace(state.row, valid=state.row.valid & ~spoke),
        )


def _roll(history: Tensor, frames: Tensor, counts: Tensor) -> Tensor:
    """The newest frames of each row, newest last: [B, Hc, C] after counts[b] more of frames [B, T, C]."""
    both = torch.cat([history, frames], 1)
    at = counts[:, None] + torch.arange(history.shape[1], device=counts.device)
    return both.gather(1, at[:, :, None].expand(-1, -1, history.shape[2]))


def _part(x: Tensor, start: Tensor, counts: Tensor) -> Tensor:
    """x[b, start[b] : start[b] + counts[b]] of every row, padded: [k, longest, C]."""
    at = start[:, None] + torch.arange(int(counts.max()), device=x.device)
    return x.gather(1, at.clamp(0, x.shape[1] - 1)[:, :, None].expand(-1, -1, x.shape[2]))


def _background(quietest: Tensor, loudness: Tensor, counts: Tensor) -> Tensor:
    """[B] the loudness of the background: the quietest 20 ms lately, rising by 10 dB in 20 s."""
    valid = torch.arange(loudness.shape[1], device=counts.device) < counts[:, None]
    lowest = torch.where(valid, loudness, torch.inf).amin(1)
    return torch.minimum(quietest + 0.25 / 1000 * counts, lowest)


def _quietest(loudness: list[float], start: int, end: int) -> int:
    """The frame of [start, end) at which 100 ms are quietest; start if there is none."""
    if end - start < 2:
        return start
    return min(range(start, end), key=lambda i: (sum(loudness[max(0, i - 2) : i + 3]), i))


def token_probability(output: RowOutput, tokens: Tensor) -> Tensor:
    """[B] probability of each row's token under its own logits."""
    return log_probabilities(output.logits).gather(1, tokens.clamp(min=0)[:, None])[:, 0].exp()
