"""The cross family's recogniser: front end, encoder memory, Whisper's decoder, emit gate and re-anchoring as one part.

Frames in this module count from the stream's start unless a name or comment says "from the anchor".
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from asr.anchoring import background, newest_frame, on_steps, place_anchor, roll
from asr.answers import Answers, Draft
from asr.config import AnchorConfig, GateConfig, RowSettings
from asr.cross import CrossDecoder
from asr.cross_state import CrossState
from asr.ctc import CtcHead
from asr.encoder import Encoder
from asr.frontend import Frontend
from asr.gate import Gate, GateView, just_written
from asr.mtp import MtpHeads, attended, likely, pooled_ahead
from asr.preview import Preview
from asr.recogniser import PROSPECT_PIECES, WAIT, Prospect, RowOutput
from asr.units import FRAMES_PER_STEP

__all__ = ["CrossRecogniser", "CrossState"]


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
        pause_frames: so long a gap between two tokens' frames is a pause (the gate's number).
        ctc: previews the tail, where there is one.
        mtp: guesses several pieces ahead, where there are such heads.
        sink_frames: the first frames draw attention for no reason (the gate's number).
    """

    waits_take_rows = False
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
        pause_frames: int = GateConfig.pause_frames,
        ctc: CtcHead | None = None,
        mtp: MtpHeads | None = None,
        sink_frames: int = GateConfig.sink_frames,
    ) -> None:
        super().__init__()
        self.ctc, self.mtp, self.sink_frames = ctc, mtp, sink_frames
        self.frontend, self.encoder, self.decoder, self.gate, self.anchors = frontend, encoder, decoder, gate, anchors
        self.prompt, self.end_id, self.max_frames, self.pause_frames = prompt, end_id, max_frames, pause_frames
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
            row=Answers.none(
                tuple(self.encoder_positions.new_zeros(batch, 1, size) for size in (dim, memory.capacity, vocabulary))
            ),
            preview=Preview.zeros(
                self.encoder_positions,
                batch,
                hidden=self.ctc.hidden if self.ctc else 0,
                steps=history // FRAMES_PER_STEP if self.ctc else 0,
                labels=self.ctc.pieces + 1 if self.ctc else 0,
            ),
        )
        return self.reset(state, torch.arange(batch, device=device))

    def reset(self, state: CrossState, rows: Tensor) -> CrossState:
        """The state in which `rows` are fresh streams; nothing of what was there can be read."""

        def zero(x: Tensor) -> Tensor:
            return x.index_fill(0, rows, 0)

        state = replace(
            state,
            frontend=state.frontend.put(rows, self.frontend.init_state(rows.shape[0])),
            history=zero(state.history),
            loudness=state.loudness.index_fill(0, rows, self.frontend.floor),
            quietest=zero(state.quietest),
            preview=state.preview.reset(rows, blank=self.ctc.blank if self.ctc else 0),
            heard=zero(state.heard),
            anchor=zero(state.anchor),
            clock=zero(state.clock),
            asked=zero(state.asked),
            re_anchors=zero(state.re_anchors),
            row=state.row.reset(rows),
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
            row=state.row.forget(torch.zeros_like(state.ended).index_fill(0, rows, True)),
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
            history=roll(state.history, frames, counts),
            loudness=roll(state.loudness[:, :, None], loudness[:, :, None], counts)[:, :, 0],
            quietest=background(state.quietest, loudness, counts),
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
        return replace(state, row=state.row.forget(active))

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
        if self.ctc is None:
            return state
        preview = state.preview.step(
            self.ctc,
            y,
            start=state.anchor[index] + done,
            real=real,
            final=final,
            heard=state.heard[index],
            index=index,
        )
        return replace(state, preview=preview)

    # -- re-anchoring ----------------------------------------------------------------------------------------------

    def rest(self, state: CrossState) -> CrossState:
        """The state between blocks: one size after all of them."""
        return replace(state, row=state.row.narrowed())

    def ask_re_anchor(self, state: CrossState, rows: Tensor) -> CrossState:
        """The state in which `rows` start anew at their next block (the watchdog's call)."""
        return replace(state, asked=state.asked.index_fill(0, rows, True))

    def _must_re_anchor(self, before: Tensor, settings: RowSettings, state: CrossState) -> Tensor:
        """[B] whether the coming block has to start a new anchor; `before`: frames heard before it."""
        anchors = self.anchors
        span = state.heard - state.anchor
        limit = torch.minimum(torch.full_like(span, anchors.limit_frames), state.memory.capacity - settings.silence)
        newest = newest_frame(state.text_frames, state.count)
        since = before - state.anchor - newest
        pause = (span > anchors.pause_after_frames) & (since > anchors.pause_frames + settings.delay * FRAMES_PER_STEP)
        # The decoder took a full stop for the end, but somebody speaks on: begin anew behind the stop.
        back = state.heard - state.anchor - newest  # frames since the newest token's
        place = torch.arange(state.loudness.shape[1], 0, -1, device=span.device)  # frames before the end of `heard`
        reach = (back - anchors.tail_frames).clamp(max=anchors.keep_frames)  # the same however long the history is
        voiced = state.louder & (place < reach[:, None])
        speaks_on = state.ended & (state.count > 0) & (voiced.sum(1) >= anchors.voiced_frames)
        return state.asked | (span > limit) | pause | (state.count > anchors.text_limit) | speaks_on

    def _re_anchor(self, row: int, before: int, state: CrossState) -> CrossState:
        """Moves position 0 of a row to a gap between words in the last few seconds; later words are fed again."""
        anchor, count, asked = int(state.anchor[row]), int(state.count[row]), bool(state.asked[row])
        tokens = state.text[row, :count].tolist()
        frames = state.text_frames[row, :count].tolist()
        oldest = int(state.heard[row]) - state.history.shape[1] - anchor  # frames before it are forgotten
        loudness = [self.frontend.floor] * max(0, oldest) + state.loudness[row, max(0, -oldest) :].tolist()
        cut, first = place_anchor(
            self.anchors,
            before - anchor,
            tokens,
            frames,
            loudness,
            begins_word=lambda token: bool(self.begins_word[token]),
            ended=bool(state.ended[row]),
        )
        if asked:  # the watchdog does not trust the text: it is not fed again, so its words must not be heard again
            first, oldest = count, max(oldest, *frames, 0)
        latest = len(loudness) - FRAMES_PER_STEP  # something must be left to be heard
        cut = on_steps(min(cut, latest), anchor=anchor, oldest=min(oldest, latest))
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

    # -- speaking --------------------------------------------------------------------------------------------------

    def needs_call(self, active: Tensor, state: CrossState) -> Tensor:
        """[B] which rows of active [B] have no answer for the present step yet."""
        return active & (state.row.left == 0)

    def prospect(self, row: int, state: CrossState) -> Prospect:
        """What a drafter may know of one row."""
        count, anchor = int(state.count[row]), int(state.anchor[row])
        newest = slice(max(0, count - PROSPECT_PIECES), count)
        return Prospect(
            clock=int(state.clock[row]),
            text=state.text[row, newest].tolist(),
            text_frames=[anchor + frame for frame in state.text_frames[row, newest].tolist()],
            labels=state.preview.labels[row].tolist(),
            newest_step=int(state.heard[row]) // FRAMES_PER_STEP - 1,
            log_probs=state.preview.log_probs[row] if self.ctc is not None else None,
            room=self.decoder.text_positions - int(state.decoder.length[row] + state.pending_lens[row]),
        )

    def guesses(self, rows: Tensor, state: CrossState, *, heads: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """What the decoder expects `rows` [k] to write next, made of what the last row said.

        That row may be of the block before, and what it meant to write may still have to wait: it is likely to mean the
        same when it has heard more. Multi-token heads go on from there; they hear what lies behind the place it reads.

        Returns:
            pieces [k, n], how many of them [k] are likely together, and whether the first is the row's own [k].
        """
        settled = state.row.settled[rows]
        mtp = self.mtp if heads else None
        if mtp is None and bool(settled.all()):
            return rows.new_empty(rows.shape[0], 0), torch.zeros_like(rows), ~settled
        hidden, attention, logits = state.row.present(rows)
        later = logits.new_zeros(rows.shape[0], 0, 1)
        if mtp is not None:
            center = attended(attention, sink_frames=self.sink_frames)
            ahead = pooled_ahead(state.memory.features[rows], state.memory.frames[rows], center[:, None])[:, 0]
            later = mtp(hidden, ahead, self.decoder.embedding.weight)
        pieces, lens = likely(logits.masked_fill(self.banned, -torch.inf), later, settled, end_id=self.end_id)
        return pieces, torch.where(state.row.known[rows], lens, 0), ~settled

    def _call(self, need: Tensor, draft: Draft | None, state: CrossState) -> tuple[CrossState, Tensor]:
        """Runs the pending rows of the streams `need` [B], and behind them those of the draft's pieces.

        Returns:
            The state that remembers what they said, and the rows spent [B].
        """
        rows = None if bool(need.all()) else need.nonzero()[:, 0]
        index = torch.arange(need.shape[0], device=need.device) if rows is None else rows
        pending = state.pending_lens[index]
        room = self.decoder.text_positions - state.decoder.length[index] - pending
        if draft is None:
            draft = Draft.pack([[]] * index.shape[0], index.device)
        else:
            draft = Draft(draft.outputs[index], draft.source[index], draft.lens[index]).at_most(room)
        lens = pending + draft.lens
        offset = torch.arange(int(lens.max()), device=index.device).expand(index.shape[0], -1)
        tokens = state.pending[index].gather(1, offset.clamp(max=state.pending.shape[1] - 1))
        if draft.outputs.shape[1]:
            behind = (offset - pending[:, None]).clamp(0, draft.outputs.shape[1] - 1)
            drafted = draft.outputs.gather(1, behind).clamp(min=0)
            tokens = torch.where(offset < pending[:, None], tokens, drafted)
        hidden, attention = self.decoder.rows(tokens, lens, state.decoder, state.memory, rows)
        each = torch.arange(index.shape[0], device=index.device)[:, None]
        at = (pending[:, None] - 1 + torch.arange(draft.outputs.shape[1] + 1, device=index.device)).clamp(
            max=offset.shape[1] - 1
        )
        hidden, attention = hidden[each, at], attention[each, at]
        attention = nn.functional.pad(attention, (0, state.memory.capacity - attention.shape[2]))
        answers = state.row.put(rows, (hidden, attention, self.decoder.logits(hidden).float()), draft.lens + 1, draft)
        return replace(state, row=answers), torch.zeros_like(state.count).index_copy(0, index, lens)

    def row(
        self, active: Tensor, settings: RowSettings, state: CrossState, draft: Draft | None = None
    ) -> tuple[RowOutput, CrossState]:
        """Runs the present step's row of every active stream.

        When a piece goes is the gate's to say, and no part of a decoder row: a draft of pieces stays right however
        early or late they come.

        Args:
            active: [B] bool; the others' answers mean nothing.
            draft: the pieces expected next, tried in the same call.
        Returns:
            The answer and the state that remembers it, for waits within the block need no second look.
        """
        need, spent = self.needs_call(active, state), torch.zeros_like(state.count)
        if bool(need.any()):
            state, spent = self._call(need, draft, state)
        hidden, attention = state.row.present(parts=slice(2))
        logits, candidate, probability = self._said(active, state)
        ended = candidate == self.end_id
        blank = self.ctc.blank if self.ctc else None
        view = GateView(
            attention=attention,
            now=torch.minimum((state.clock + 1) * FRAMES_PER_STEP, state.heard) - state.anchor,
            frames=state.heard - state.anchor,
            delay=settings.delay,
            chunk_steps=settings.chunk_steps,
            hidden=hidden,
            around=state.around(settings),
            candidate=candidate,
            probability=probability,
            begins_word=self.begins_word[candidate],
            letters=self.letters[candidate],
            ended=ended,
            text=state.text,
            text_frames=state.text_frames,
            count=state.count,
            since_pause=state.since_pause,
            speech=state.speech(settings, attention.shape[1], blank=blank, keep=self.anchors.keep_frames),
            loud=state.loud(attention.shape[1]),
            labelled=state.labelled(attention.shape[1], blank=blank),
        )
        answer = self.gate(view)
        full = state.decoder.length + state.pending_lens >= self.decoder.text_positions
        output = RowOutput(
            open=answer.open & active & ~full,
            logits=logits,
            frame=answer.frame + state.anchor,
            closes=ended | self.begins_word[candidate] | ~self.letters[candidate],
            decoder_rows=spent,
            expected=state.row.expected(),
            steerable=self.letters[candidate] | self.begins_word[candidate],
            written=just_written(view, answer.frame, self.begins_word),
        )
        return output, replace(state, ended=torch.where(active, ended, state.ended))

    def _said(self, active: Tensor, state: CrossState) -> tuple[Tensor, Tensor, Tensor]:
        """Of the present row of every active stream: the logits [B, V] of what may be written, the likeliest piece [B],
        which may be the end, and its probability [B]. The others, whose vocabulary nobody looks through, have zeros."""
        rows = active.nonzero()[:, 0]
        (said,) = state.row.present(rows, slice(2, None))
        allowed = self._allowed(said, state.count[rows], state.word_open[rows])
        best, likeliest = allowed.max(-1)
        likely = (best - allowed.logsumexp(-1)).exp()
        allowed[:, self.end_id] = -torch.inf
        logits = allowed
        if rows.shape[0] < active.shape[0]:
            logits = allowed.new_zeros(active.shape[0], allowed.shape[1]).index_copy_(0, rows, allowed)
        candidate = torch.zeros_like(state.count).index_copy(0, rows, likeliest)
        return logits, candidate, best.new_zeros(active.shape[0]).index_copy(0, rows, likely)

    def _allowed(self, logits: Tensor, count: Tensor, word_open: Tensor) -> Tensor:
        """Logits [k, V], those of what may not be written at -inf: special pieces, letters with no word to continue."""
        logits = logits.masked_fill(self.banned, -torch.inf)
        orphan = self.letters & ~self.begins_word
        for streams, pieces in (((count == 0), self.banned_first), (~word_open, orphan)):
            if bool(streams.any()):
                logits = logits.masked_fill(streams[:, None] & pieces, -torch.inf)
        return logits

    def accept(self, active: Tensor, tokens: Tensor, output: RowOutput, state: CrossState) -> CrossState:
        """The state after every active row has given its output.

        Args:
            tokens: [B] the committed token, or WAIT.
        """
        spoke = active & (tokens != WAIT)
        pending = state.pending.clone()
        pending[:, 0] = torch.where(spoke, tokens, pending[:, 0])
        word_open = spoke | (state.word_open & ~output.closes)
        state = state.written(active, tokens, output.frame, word_open, pause_frames=self.pause_frames)
        return replace(
            state,
            decoder=state.decoder.advance(torch.where(spoke, state.pending_lens, 0)),
            pending=pending,
            pending_lens=torch.where(spoke, 1, state.pending_lens),
            row=state.row.give(spoke, tokens),
        )

    def take(self, active: Tensor, tokens: Tensor, frames: Tensor, state: CrossState) -> CrossState:
        """The state after every active row was given an output that the decoder has not seen; it will, as pending text.

        Args:
            tokens: [B] pieces or WAIT; frames: [B] where they are spoken.
        """
        spoke = active & (tokens != WAIT)
        index = torch.arange(state.pending.shape[1], device=tokens.device)
        last = (index == state.pending_lens[:, None]) & spoke[:, None]
        word_open = spoke | (state.word_open & ~active)
        state = state.written(active, tokens, frames, word_open, pause_frames=self.pause_frames)
        return replace(
            state,
            pending=torch.where(last, tokens[:, None], state.pending),
            pending_lens=state.pending_lens + spoke.long(),
            ended=state.ended & ~active,
            row=state.row.reset(spoke.nonzero()[:, 0]),
        )
