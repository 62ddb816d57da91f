"""What a workload of the transparent model asks for, and how that is removed from its manifest."""

import re
from pathlib import PurePosixPath

from imex_dra.lint.isolationrules import (
    LEGACY_MOUNT,
    LEGACY_VARIABLE,
    host_paths,
    is_channel_path,
    legacy_requests,
)
from imex_dra.lint.pods import Container, Pods
from imex_dra.lint.values import Value
from imex_dra.migrate.editor import Editor
from imex_dra.migrate.yamltext import Node

_ASSIGNMENT = re.compile(rf"{LEGACY_VARIABLE}=\S*")
_FLAG = rf"-x {LEGACY_VARIABLE}=[\w,]+"
"""As mpirun takes it."""
_IN_LINE = rf"(?<=\S) {_FLAG}(?=[\s\"']|$)"
"""Not at the start of a line: an empty line in a folded scalar would be a line break."""
_CONTINUED = (
    # All of a continued line, with the backslash before it: that of its own line, if it has one, takes its place.
    rf"(?<=\S)[ \t]+\\\r?\n[ \t]*{_FLAG}(?=[ \t]*(?:\\?\r?\n|[\"']|\Z))",
    # At the start of a continued line that has more.
    rf"\\\r?\n[ \t]*(?P<cut>{_FLAG}[ \t]+)(?=[^\s\\\"'])",
)
"""In literal and double-quoted scalars, where a backslash at the end of a line continues it."""
_FOLDED = (
    rf"\r?\n(?P<indent>[ \t]*)(?P<before>[^\s#][^\n]*)(?P<cut>\r?\n(?P=indent){_FLAG}[ \t]*)(?=\r?\n(?P=indent)\S)"
)
"""A line of its own in a folded scalar, between lines of the same depth, with which it is folded into one."""


def asks(pods: Pods) -> bool:
    return bool(_volumes(pods)) or any(any(legacy_requests(container)) for container in pods.containers)


def asking_containers(pods: Pods) -> list[Container]:
    """Containers that asked for the channel themselves."""
    volumes = _volumes(pods)
    return [c for c in pods.containers if any(legacy_requests(c)) or _mounts(c, volumes)]


def remove_requests(editor: Editor, pods: Pods) -> bool:
    """Whether all of them: what is written in another way in a command line stays, and is found by lint."""
    complete = True
    volumes = _volumes(pods)
    for container in pods.containers:
        editor.remove(container.value, "env", _variables(container))
        editor.remove(container.value, "volumeMounts", _mounts(container, volumes))
        for part in ("command", "args"):
            complete &= _remove_words(editor, container.value, part)
    named = [volume["name"].scalar for volume in pods.spec["volumes"].elements()]
    editor.remove(pods.spec, "volumes", {index for index, name in enumerate(named) if name in volumes})
    return complete


def _variables(container: Container) -> set[int]:
    entries = container.value["env"].elements()
    return {index for index, entry in enumerate(entries) if entry["name"].text == LEGACY_VARIABLE}


def _mounts(container: Container, volumes: set[str]) -> set[int]:
    mounts = container.value["volumeMounts"].elements()
    return {i for i, mount in enumerate(mounts) if _is_legacy(mount) or mount["name"].scalar in volumes}


def _is_legacy(mount: Value) -> bool:
    return PurePosixPath(mount["mountPath"].text).is_relative_to(LEGACY_MOUNT)


def _volumes(pods: Pods) -> set[str]:
    """Volumes with channel devices of the host, and those that only legacy mounts use."""
    mounts = [mount for container in pods.containers for mount in container.value["volumeMounts"].elements()]
    legacy = {mount["name"].scalar for mount in mounts if _is_legacy(mount)}
    others = {mount["name"].scalar for mount in mounts if not _is_legacy(mount)}
    devices = {id(value) for value, path in host_paths(pods) if is_channel_path(path)}
    return (legacy - others) | {
        volume["name"].scalar
        for volume in pods.spec["volumes"].elements()
        if id(volume.at("hostPath.path")) in devices
    }


def _remove_words(editor: Editor, container: Value, part: str) -> bool:
    words = container[part].elements()
    removed: set[int] = set()
    complete = f"{LEGACY_VARIABLE}=" not in container[part].text
    for index, word in enumerate(words):
        number = word.text.count(f"{LEGACY_VARIABLE}=")
        if _ASSIGNMENT.fullmatch(word.text) and index and words[index - 1].text == "-x":
            removed |= {index - 1, index}
        elif number:
            complete &= _remove_flags(editor, editor.node(word)) == number
    editor.remove(container, part, removed)
    return complete


def _remove_flags(editor: Editor, scalar: Node) -> int:
    """How many."""
    patterns: tuple[str, ...] = (_IN_LINE,)
    if scalar.style in ("|", '"'):
        patterns += _CONTINUED
    elif scalar.style == ">":
        patterns += (_FOLDED,)
    return editor.yaml.remove_text(scalar, patterns)
