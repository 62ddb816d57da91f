"""Every error that soft IMEX raises on purpose.

    SoftImexError
    ├── StartError      the daemon can't start; names the key or file and what to do
    ├── QueryError      the ctl got no answer, or was asked for something impossible
    ├── Malformed       a message that breaks the protocol; costs its sender the connection
    └── CudaError       what a CUDA program would see, by number and name, and why

The tree stands apart from `imex_dra.base.errors`, because this package imports nothing of ours.
"""


class SoftImexError(Exception):
    """Base of all errors raised on purpose."""


class StartError(SoftImexError):
    pass


class QueryError(SoftImexError):
    pass


class Malformed(SoftImexError):
    pass


class CudaError(SoftImexError):
    """Equal codes have equal names; `why` is for the person who reads it."""

    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    INVALID_DEVICE = 101
    INVALID_HANDLE = 400
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801

    NAMES = {
        INVALID_VALUE: "CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY",
        INVALID_DEVICE: "CUDA_ERROR_INVALID_DEVICE",
        INVALID_HANDLE: "CUDA_ERROR_INVALID_HANDLE",
        NOT_PERMITTED: "CUDA_ERROR_NOT_PERMITTED",
        NOT_SUPPORTED: "CUDA_ERROR_NOT_SUPPORTED",
    }

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code, why)
        self.code = code
        self.name = self.NAMES.get(code, "CUDA_ERROR_UNKNOWN")
        self.why = why

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.why}"
