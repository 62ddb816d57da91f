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

_ASSIGNMENT = re.compile(rf"{LEGACY_VARIABLE}=\S*")
_IN_COMMAND_LINE = rf"(?<=\S) -x {LEGACY_VARIABLE}=[\w,]+(?=[\s\"']|$)"
"""As mpirun takes it, and not at the start of a line: an empty line in a folded scalar would be a line break."""


def asks(pods: Pods) -> bool:
    return bool(_volumes(pods)) or any(any(legacy_requests(container)) for container in pods.containers)


def asking_containers(pods: Pods) -> list[Container]:
    """Containers that asked for the channel themselves."""
    volumes = _volumes(pods)
    return [c for c in pods.containers if any(legacy_requests(c)) or _mounts(c, volumes)]


def remove_requests(editor: Editor, pods: Pods) -> None:
    volumes = _volumes(pods)
    for container in pods.containers:
        editor.remove(container.value, "env", _variables(container))
        editor.remove(container.value, "volumeMounts", _mounts(container, volumes))
        for part in ("command", "args"):
            _remove_words(editor, container.value, part)
    named = [volume["name"].scalar for volume in pods.spec["volumes"].elements()]
    editor.remove(pods.spec, "volumes", {index for index, name in enumerate(named) if name in volumes})


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


def _remove_words(editor: Editor, container: Value, part: str) -> None:
    """From a command line. What is written in another way stays, and is found by lint."""
    words = container[part].elements()
    removed: set[int] = set()
    for index, word in enumerate(words):
        if _ASSIGNMENT.fullmatch(word.text):
            if index and words[index - 1].text == "-x":
                removed |= {index - 1, index}
        elif LEGACY_VARIABLE in word.text:
            editor.yaml.remove_text(editor.node(word), _IN_COMMAND_LINE)
    editor.remove(container, part, removed)
