"""Every error that a user can cause.

    QkscopeError
    ├── StudyError        the study file says something that cannot be done
    ├── CheckpointError   a model, revision or tokenizer that cannot be read
    │   └── HubError      the hub did not answer, or not as it should
    │       └── UnreachableError   no answer, or offline mode
    ├── CorpusError       texts that cannot be read or do not suffice
    ├── CaptureError      a model whose queries and keys cannot be observed
    │   └── MemoryShortError  too little memory for a pass through it
    ├── VectorsError      vectors on disk that cannot be analysed
    ├── TableError        a qk.csv or heads.csv that cannot be understood
    ├── StoreError        a file that cannot be written, or is damaged
    └── EngineError       a place to run that is missing or does not fit

A message says what was found, what was expected, where, and what to do. The command line prints it without a
traceback and exits with status 1.
"""

# Of torch on CUDA and MPS, of its allocator on CPUs, of cuBLAS and cuDNN.
_OUT_OF_MEMORY = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "_STATUS_ALLOC_FAILED",
)


def printable(text: str) -> str:
    """Text that is safe to print: control characters, direction marks and lone surrogates become escapes."""
    return "".join(c if c in "\n\t" or c.isprintable() else ascii(c)[1:-1] for c in text)


def out_of_memory(error: BaseException) -> bool:
    """Whether a library's error says that memory ran out: by its type, or only by its message."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _OUT_OF_MEMORY)


class QkscopeError(Exception):
    """Base class of all errors that qkscope raises. Control characters in the message are escaped."""

    def __str__(self) -> str:
        return printable(super().__str__())


class StudyError(QkscopeError):
    """The study file says something that cannot be done."""


class CheckpointError(QkscopeError):
    """A model, revision or tokenizer cannot be read."""


class HubError(CheckpointError):
    """The hub did not answer, or not as it should."""


class UnreachableError(HubError):
    """The hub cannot be reached, or offline mode forbids to ask it."""


class CorpusError(QkscopeError):
    """Texts cannot be read or do not suffice."""


class CaptureError(QkscopeError):
    """A model's queries and keys cannot be observed."""


class MemoryShortError(CaptureError):
    """Too little memory for a pass through a model: a smaller one may do."""


class VectorsError(QkscopeError):
    """Vectors on disk cannot be analysed."""


class TableError(QkscopeError):
    """A table cannot be understood."""


class StoreError(QkscopeError):
    """A file cannot be written, or is damaged: what was `found`, and what to do about it."""

    def __init__(self, found: str, remedy: str = "") -> None:
        super().__init__(f"{found}; {remedy}" if remedy else found)
        self.found = found


class EngineError(QkscopeError):
    """A place to run units is missing or does not fit."""
