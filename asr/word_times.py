"""When a word was spoken: its pieces of the CTC vocabulary aligned to what the CTC head heard around it.

More exact than the decoder's attention, which knows where a word begins but not where it ends (RESULTS.md, "word
times"); used wherever a checkpoint has a CTC head and the word has letters that the head can spell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from asr.ctc_tokenizer import CtcTokenizer, ctc_words
from asr.units import STEP_MS
from kernels.dispatch import dispatch

# Medians against forced alignments: a word begins this long before its first label's step, and ends so long after its
# last one's.
BEFORE_FIRST_MS = 65
AFTER_LAST_MS = 25
# Where to look: attention lies about 0.3 s behind a word's onset.
EARLIEST_MS = 700
LATEST_MS = 320
CORE_BEFORE_MS = 450
CORE_AFTER_MS = 100


def ctc_span_ms(
    text: str,
    first_ms: int,
    last_ms: int,
    *,
    log_probs: Tensor,
    step_end_ms: Sequence[int],
    tokenizer: CtcTokenizer,
    previous_end_ms: int,
) -> tuple[int, int] | None:
    """Start and end of a word, or None if the head cannot tell.

    Args:
        text: the word as written.
        first_ms, last_ms: the end of the frame that its first piece was read from, and its last one with a letter.
        log_probs: [W, V'+1] of the newest steps; step_end_ms: [W] where each ends on the audio clock, in order.
        tokenizer: the head's pieces.
        previous_end_ms: the end of the word before.
    """
    pieces = [piece for word in tokenizer.encode(ctc_words(text)) for piece in word]
    low, high = max(first_ms - EARLIEST_MS, previous_end_ms - STEP_MS), last_ms + LATEST_MS
    inside = [i for i, end in enumerate(step_end_ms) if end > low and end - STEP_MS < high]
    repeats = sum(a == b for a, b in pairwise(pieces))
    if not pieces or len(inside) < len(pieces) + repeats:
        return None
    window = log_probs[inside[0] : inside[-1] + 1].clone()
    # Around the word others are spoken: there, hearing anything at all is as good as hearing nothing.
    around = torch.tensor(
        [
            step_end_ms[i] < first_ms - CORE_BEFORE_MS or step_end_ms[i] - STEP_MS > last_ms + CORE_AFTER_MS
            for i in inside
        ]
    )
    window[:, tokenizer.blank] = torch.where(around, window.amax(1), window[:, tokenizer.blank])
    spans = dispatch("ctc.forced_align", "numba")(window, torch.tensor(pieces), blank=tokenizer.blank)
    first, last = inside[int(spans.first[0])], inside[int(spans.last[-1])]
    return step_end_ms[first] - STEP_MS - BEFORE_FIRST_MS, step_end_ms[last] + AFTER_LAST_MS
