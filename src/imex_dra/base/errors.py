"""Every error that this project raises on purpose, in one tree.

Whoever catches an error asks one question: will it help to try again? That is a class, not a flag:

    ImexError
    ├── Retryable                   may succeed later, with nobody changing the request
    │   ├── NotYet                  something we wait for has not happened
    │   └── ApiRetryable
    │       ├── Conflict            409: decided on an old version; read, decide again
    │       ├── Gone                410: the resource version is too old; list again
    │       ├── TooManyRequests     429, with the server's `retry_after`
    │       └── Unavailable         5xx, time-outs, broken connections
    └── Terminal                    will fail the same way until somebody changes something
        ├── Rejected                the request itself can never be served
        ├── Misconfigured           a flag, a file or the environment is wrong
        └── ApiTerminal
            ├── NotFound            404
            ├── AlreadyExists       409 with that reason
            ├── Forbidden           401, 403
            └── Invalid             400, 422 and the rest of 4xx

A message names the object, the cause and the next step; it is written for the person who reads it in an
Event or at a prompt.
"""


class ImexError(Exception):
    """Base of all errors raised on purpose."""


class Retryable(ImexError):
    pass


class Terminal(ImexError):
    pass


class NotYet(Retryable):
    pass


class Rejected(Terminal):
    pass


class Misconfigured(Terminal):
    pass


class ApiRetryable(Retryable):
    pass


class ApiTerminal(Terminal):
    pass


class Conflict(ApiRetryable):
    pass


class Gone(ApiRetryable):
    pass


class Unavailable(ApiRetryable):
    pass


class TooManyRequests(ApiRetryable):
    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotFound(ApiTerminal):
    pass


class AlreadyExists(ApiTerminal):
    pass


class Forbidden(ApiTerminal):
    pass


class Invalid(ApiTerminal):
    pass
