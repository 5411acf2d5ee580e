"""Every error this toolkit raises on purpose, in one tree.

```
EarlybirdError
├── ConfigError                 a setting that cannot work, or that the checkpoint was not made for
├── AudioFormatError            audio that cannot be decoded, or that is not what it was declared to be
│   ├── EmptyAudio              a file or stream without one sample
│   ├── NoAudioTrack            a container without an audio track
│   ├── TruncatedAudio          audio that ends before its header says
│   ├── InvalidSamples          NaN or infinity among the samples
│   └── UnknownContainer        bytes that no installed decoder reads
├── CheckpointError             a checkpoint folder that is incomplete, altered or of another version
├── PhraseError                 a phrase list that cannot be used
├── LanguageModelError          an n-gram model that cannot be used
├── KernelUnavailable           a kernel backend that was asked for by name and is not there
├── StreamClosed                a call on a session that has ended
├── Overloaded                  no free slot
├── WorkerDied                  a worker process that ended by itself, with a file or before it had one
├── ProtocolError               a message on a connection that cannot be used
└── SpeculationBudgetExceeded   a draft longer than the key-value memory can take back
```

A message names what it got, what it needed, and where.
"""

import kernels.dispatch


class EarlybirdError(Exception):
    """Root of the tree: catch this to catch everything the toolkit raises on purpose."""


class ConfigError(EarlybirdError):
    """A setting that cannot work, or that the checkpoint was not made for."""


class AudioFormatError(EarlybirdError):
    """Audio that cannot be decoded, or that is not what it was declared to be."""


class EmptyAudio(AudioFormatError):
    """A file or stream without one sample."""


class NoAudioTrack(AudioFormatError):
    """A container without an audio track."""


class TruncatedAudio(AudioFormatError):
    """Audio that ends before its header says."""


class InvalidSamples(AudioFormatError):
    """NaN or infinity among the samples."""


class UnknownContainer(AudioFormatError):
    """Bytes that no installed decoder reads."""


class CheckpointError(EarlybirdError):
    """A checkpoint folder that is incomplete, altered or of another version."""


class PhraseError(EarlybirdError):
    """A phrase list that cannot be used."""


class LanguageModelError(EarlybirdError):
    """An n-gram model that cannot be used."""


class KernelUnavailable(EarlybirdError, kernels.dispatch.KernelUnavailable):
    """A kernel backend that was asked for by name and is not there; `kernels` raises its own parent of this one."""


class StreamClosed(EarlybirdError):
    """A call on a session that has ended."""


class Overloaded(EarlybirdError):
    """No free slot."""


class WorkerDied(EarlybirdError):
    """A worker process that ended by itself, with a file or before it had one."""


class ProtocolError(EarlybirdError):
    """A message on a connection that cannot be used.

    Args:
        code: what kind, one word for programs: see docs/protocol.md.
        text: what was got and what was needed, for people.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class SpeculationBudgetExceeded(EarlybirdError):
    """A draft longer than the key-value memory can take back."""
