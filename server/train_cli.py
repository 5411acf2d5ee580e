"""The command `earlybird train STAGE …`: each stage is a recipe, run as a program of its own.

A recipe's flags are its own: `earlybird train tune --help` prints them. With `--processes N` before the stage's flags
it runs under torchrun. Nothing of `recipes/` is imported here (docs/design.md §4).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

STAGES = {
    "prepare": ("recipes.prepare", "Recordings with transcripts, as you have them, to manifests."),
    "synthesize": ("recipes.synthesize", "Sentences spoken by synthetic voices, for words that no recording has."),
    "cuts": ("recipes.cuts", "Manifests and word times to lhotse's CutSets, and back."),
    "align": ("recipes.align", "When each word was spoken."),
    "tokenizer": ("recipes.tokenizer", "The CTC head's pieces, from text."),
    "convert": ("recipes.convert", "A Whisper to a streaming checkpoint."),
    "graft": ("recipes.graft", "A language model on a Whisper's ears: an additive checkpoint to train."),
    "teacher": ("recipes.teacher", "What the full-context model hears and writes."),
    "spell": ("recipes.spell", "Capitals and marks for transcripts without them."),
    "ctc": ("recipes.ctc", "The CTC head, everything else frozen."),
    "gate": ("recipes.gate", "A gate learnt from aligned words."),
    "sft": ("recipes.sft", "Supervised training of the additive family."),
    "tune": ("recipes.tune", "Joint tuning of the cross family in the stream."),
    "mtp": ("recipes.mtp", "Heads that guess several pieces ahead."),
    "grpo": ("recipes.grpo", "Learning from its own streams to write right and soon."),
    "evaluate": ("recipes.evaluate", "Word errors and delays over a manifest."),
    "compare": ("recipes.compare", "Two evaluations of the same clips: what changed, with intervals."),
    "plots": ("recipes.awed", "Delays and word errors over delay, drawn."),
    "export": ("recipes.export", "Parts and checkpoints put together into one."),
}
"""Name to the recipe's module and what it makes, in the order in which they are needed."""

SHARED = ("sft", "grpo")
"""The stages whose batches several processes share; the others take `--processes` themselves or refuse it."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train, evaluate and export models: the stages in the order in which they are needed (recipes/README.md).",
)


def command_line(stage: str, processes: int, arguments: Sequence[str]) -> list[str]:
    """What is run for a stage.

    >>> command_line("align", 1, ["--help"])[1:]
    ['-m', 'recipes.align', '--help']
    >>> command_line("grpo", 2, [])[1:]
    ['-m', 'torch.distributed.run', '--nproc-per-node', '2', '-m', 'recipes.grpo']
    >>> command_line("align", 2, [])[1:]
    ['-m', 'recipes.align', '--processes', '2']
    """
    many: list[str] = []
    if processes > 1 and stage in SHARED:
        many = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    elif processes > 1:
        arguments = [*arguments, "--processes", str(processes)]
    return [sys.executable, *many, "-m", STAGES[stage][0], *arguments]


def _stage(name: str) -> Callable[..., None]:
    def run(
        context: typer.Context,
        processes: Annotated[
            int, typer.Option("--processes", min=1, help="Processes that share each batch, on this machine.")
        ] = 1,
    ) -> None:
        raise typer.Exit(subprocess.run(command_line(name, processes, context.args), check=False).returncode)

    return run


def add_stage(to: typer.Typer, name: str) -> None:
    """Makes a stage a command of `to`; every flag but `--processes` is the recipe's own.

    Raises:
        KeyError: no stage of that name.
    """
    to.command(
        name,
        help=STAGES[name][1],
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    )(_stage(name))


for _name in STAGES:
    add_stage(app, _name)
