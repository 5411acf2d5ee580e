"""Word spotting in the log-probabilities of a CTC head: how well each of many label sequences is heard.

Shapes: W steps, V labels with the blank, P sequences, L labels. The kernel has the backends "reference" (PyTorch) and
"numba" (CPU), equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.dispatch import register, register_lazy


def spot_reference(log_probs: Tensor, labels: Tensor, lens: Tensor, *, blank: int, prefix: int) -> Tensor:
    """The log-likelihood ratio a label of each sequence: its best alignment against the best labels of the same steps.

    An alignment may begin at any step; blanks and repeats are CTC's. It has to be complete, or to reach the newest step
    with at least `prefix` labels, since the rest may still come.

    Args:
        log_probs: [W, V], the newest step last.
        labels: [P, L] int64 without blanks; lens: [P] int64, those of each sequence that count, at least 1.
        blank: its label.
        prefix: labels, at least 1.
    Returns:
        [P] float32, at most 0; -inf where there is no alignment.
    """
    _check(log_probs, labels, lens, prefix)
    drops = (log_probs - log_probs.amax(1, keepdim=True)).float()  # [W, V]
    none = torch.full(labels.shape, -torch.inf, device=labels.device)  # [P, L]
    said, rested = none, none  # alignments that end in a label, and in a blank after it
    begin = torch.zeros_like(none[:, :1])
    new = torch.cat([torch.zeros_like(labels[:, :1], dtype=torch.bool), labels[:, 1:] != labels[:, :-1]], 1)
    last = (lens - 1)[:, None]
    best = none[:, 0]
    for drop in drops:
        before = torch.cat([begin, rested[:, :-1]], 1)
        straight = torch.cat([begin, said[:, :-1]], 1).where(new, -torch.inf)
        rested, said = torch.maximum(said, rested) + drop[blank], torch.maximum(said, torch.maximum(before, straight))
        said = said + drop[labels]
        best = torch.maximum(best, said.gather(1, last)[:, 0] / lens)
    counts = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    reached = (torch.maximum(said, rested) / counts).where((counts >= prefix) & (counts <= lens[:, None]), -torch.inf)
    return torch.maximum(best, reached.amax(1))


def _check(log_probs: Tensor, labels: Tensor, lens: Tensor, prefix: int) -> None:
    if log_probs.dim() != 2 or labels.dim() != 2 or lens.shape != labels.shape[:1] or prefix < 1:
        shapes = [tuple(tensor.shape) for tensor in (log_probs, labels, lens)]
        raise ValueError(f"need [W, V], [P, L], [P] and a prefix of at least 1, got {shapes} and {prefix}")


def _numba() -> Callable[..., Tensor]:
    from kernels import spotting_numba

    def spot(log_probs: Tensor, labels: Tensor, lens: Tensor, *, blank: int, prefix: int) -> Tensor:
        _check(log_probs, labels, lens, prefix)
        drops = (log_probs - log_probs.amax(1, keepdim=True)).float()
        return torch.from_numpy(spotting_numba.spot(drops.numpy(), labels.numpy(), lens.numpy(), blank, prefix))

    return spot


register("spotting.spot", "reference", spot_reference)
register_lazy("spotting.spot", "numba", _numba)
