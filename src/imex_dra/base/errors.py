"""The exceptions of this project, in one tree.

The class answers the question of every caller, whether a retry can help:

    ImexError
    ├── Retryable                   may succeed later without a change of the request
    │   ├── NotYet                  waits for something that has not happened
    │   └── ApiRetryable
    │       ├── Conflict            409: the object has changed; read it and decide again
    │       ├── Gone                410: the resourceVersion is too old; list again
    │       ├── TooManyRequests     429, with the server's `retry_after`
    │       └── Unavailable         5xx, timeouts, broken connections
    └── Terminal                    fails again until something else is changed
        ├── Rejected                this request can never succeed
        ├── Misconfigured           a flag, a file or the environment is wrong
        ├── Unreadable              a manifest that is no YAML; the message has its file and line
        ├── OtherDriver             NVIDIA's DRA driver serves the same ComputeDomains
        └── ApiTerminal
            ├── NotFound            404
            ├── AlreadyExists       409 with that reason
            ├── Forbidden           401, 403
            │   └── NamespaceTerminating  403 with that cause: nothing can be created in it any more
            ├── Invalid             400, 422 and other 4xx
            └── Undecodable         an object without the form that its API promises

A message names the object, the cause and the next step. Users read it in an Event or on the command line.
"""


class ImexError(Exception):
    reason: str = ""
    """The CamelCase word of the explanation that the message came from, if it came from one."""


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


class Unreadable(Terminal):
    pass


class OtherDriver(Terminal):
    """The program must not run here. It ends with an exit status of its own (`cli.OTHER_DRIVER_STATUS`)."""


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


class NamespaceTerminating(Forbidden):
    pass


class Invalid(ApiTerminal):
    pass


class Undecodable(ApiTerminal):
    pass
