"""Command-line options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_MODEL = "earlybird-en"
"""As `asr.checkpoint` has it; commands start before anything that needs torch is imported."""

ModelOption = Annotated[str, typer.Option("--model", help="Name of an installed model, or a checkpoint folder.")]
