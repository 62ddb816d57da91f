"""The errors of soft IMEX.

    SoftImexError
    ├── StartError      the daemon cannot start; names the key or file and the remedy
    ├── QueryError      nvidia-imex-ctl got no answer, or its arguments are invalid
    ├── Malformed       a message violates the protocol; its sender loses the connection
    ├── JobError        a multi-node job cannot start or continue; names the rank or variable
    └── CudaError       the error that a CUDA program would see, and its reason

The tree is separate from `imex_dra.base.errors`, because this package imports only the standard library.
"""


class SoftImexError(Exception):
    """Base of all expected errors."""


class StartError(SoftImexError):
    pass


class QueryError(SoftImexError):
    pass


class Malformed(SoftImexError):
    pass


class JobError(SoftImexError):
    pass


class CudaError(SoftImexError):
    """`code` and `name` are CUDA's; `reason` is for people."""

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

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.name = self.NAMES.get(code, "CUDA_ERROR_UNKNOWN")
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.reason}"
