"""Decodes what the API server sends, so that one hostile object cannot stop the decoding of others.

The API server passes some JSON on as a user wrote it: the parameters of opaque configurations, and
managedFields. It may be JSON that msgspec refuses even where a view skips it:

- an escaped surrogate without its counterpart (`"\\ud800"`),
- arrays and objects that are nested deeper than the stack allows,
- bytes that are not UTF-8.

A refusal would concern the whole message, which may be a page of 500 objects. So a message that is refused is
repaired and decoded again. A repair cannot make an object mean something else to us: no name, UID or field of
ours contains U+FFFD, and none is nested so deeply.
"""

import re
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from imex_dra.api.meta import Key, Resource, T
from imex_dra.base.errors import Undecodable

V = TypeVar("V")

MAX_DEPTH = 100
"""Values that are nested deeper become null. The deepest field of a view is at depth 12."""

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Every escape, so that `\\\\ud800` is not mistaken for a surrogate; the group matches a surrogate without its
counterpart."""

_STRUCTURE = re.compile(rb'"(?>[^"\\]+|\\.)*+(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)
"""Strings, which may contain brackets, and brackets."""


class Identity(Struct, rename="camel"):
    """The part of an object's metadata that identifies it."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)


class _Identified(Struct):
    metadata: Identity


_identities = msgspec.json.Decoder(_Identified)


class ObjectDecoder(Generic[T]):
    def __init__(self, resource: Resource[T]) -> None:
        self._kind = resource.kind
        self._decoder = msgspec.json.Decoder(resource.type)

    def decode(self, content: bytes | Raw) -> T:
        """Raises Undecodable."""
        try:
            return decode(self._decoder, content)
        except ValueError as error:
            identity = identity_of(content)
            name = str(identity.key) if identity else "whose metadata cannot be decoded"
            raise Undecodable(f"{self._kind} {name} cannot be decoded: {error}") from error


def decode(decoder: msgspec.json.Decoder[V], content: bytes | Raw) -> V:
    """Raises ValueError if the content does not have the decoder's type, and for nothing else."""
    try:
        return decoder.decode(content)
    except (ValueError, RecursionError):
        return decoder.decode(repaired(bytes(content)))


def identity_of(content: bytes | Raw) -> Identity | None:
    """Of an object that cannot be decoded otherwise; None if its metadata cannot be decoded either."""
    try:
        return decode(_identities, content).metadata
    except ValueError:
        return None


def repaired(content: bytes) -> bytes:
    """The same JSON without surrogates, deep nesting and invalid UTF-8. Content that is not JSON stays so."""
    text = content.decode(errors="replace").encode()
    return _shallow(_ESCAPE.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], text))


def _shallow(text: bytes) -> bytes:
    pieces: list[bytes] = []
    depth = done = start = 0
    for token in _STRUCTURE.finditer(text):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == MAX_DEPTH + 1:
                start = token.start()
        elif token[0] in (b"]", b"}"):
            depth -= 1
            if depth == MAX_DEPTH:
                pieces += [text[done:start], b"null"]
                done = token.end()
    return b"".join([*pieces, text[done:]])
