"""A rank's output, cut into lines, so that lines of many ranks never mix."""

import os

LONGEST = 8 * 1024
"""What has no end by then is passed on in pieces: written as JSON, each still fits in a frame."""


def cut(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole lines, and what may still become one."""
    whole, end, rest = data.rpartition(b"\n")
    lines = [line + b"\n" for line in whole.split(b"\n")] if end else []
    whole_pieces = len(rest) // LONGEST * LONGEST
    lines += [rest[:whole_pieces]] if whole_pieces else []
    return [piece for line in lines for piece in _pieces(line)], rest[whole_pieces:]


def _pieces(line: bytes) -> list[bytes]:
    return [line[at : at + LONGEST] for at in range(0, len(line), LONGEST)]


class LineReader:
    """Reads a pipe, without ever waiting for it."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.ended = False
        self._rest = b""

    def read(self) -> list[bytes]:
        """The lines that are complete by now; at the end of the output also the last, complete or not."""
        return self._lines(self._next())

    def drain(self) -> list[bytes]:
        """All that was written so far. Its writer has ended; somebody else may still hold the pipe."""
        lines = []
        while not self.ended and (data := self._next()) is not None:
            lines += self._lines(data)
        return lines + self._last()

    def _lines(self, data: bytes | None) -> list[bytes]:
        self.ended = data == b""
        lines, self._rest = cut(self._rest + (data or b""))
        return lines + self._last() if self.ended else lines

    def _next(self) -> bytes | None:
        """None if there is nothing yet."""
        try:
            return os.read(self.descriptor, 65536)
        except BlockingIOError:
            return None

    def _last(self) -> list[bytes]:
        rest, self._rest = self._rest, b""
        return [rest] if rest else []
