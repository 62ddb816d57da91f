"""The CDI specs of our claims, in a directory that other drivers use too. Their files are never touched."""

from pathlib import Path

import msgspec

from imex_dra.api.names import CDI_CLASS, CDI_VENDOR
from imex_dra.base.files import write_atomically
from imex_dra.cdi.spec import KIND, VERSION, ContainerEdits, Device, Spec

_PREFIX = f"{CDI_VENDOR}-{CDI_CLASS}_"


class Directory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, claim_uid: str, edits: ContainerEdits, annotations: dict[str, str]) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        spec = Spec(VERSION, KIND, (Device(claim_uid, edits),), annotations)
        write_atomically(self._file(claim_uid), spec.encode())

    def remove(self, claim_uid: str) -> None:
        self._file(claim_uid).unlink(missing_ok=True)

    def read(self, claim_uid: str) -> Spec | None:
        """None if the file does not exist or is malformed; the caller then writes it again."""
        try:
            return msgspec.json.decode(self._file(claim_uid).read_bytes(), type=Spec)
        except (FileNotFoundError, ValueError, RecursionError):
            return None

    def claims(self) -> set[str]:
        return {path.stem.removeprefix(_PREFIX) for path in self._path.glob(f"{_PREFIX}*.json")}

    def remove_temporary_files(self) -> None:
        """Removes what a process left that was killed during a write. The caller ensures that there is no
        writer.
        """
        for temporary in self._path.glob(f".{_PREFIX}*"):
            temporary.unlink(missing_ok=True)

    def _file(self, claim_uid: str) -> Path:
        return self._path / f"{_PREFIX}{claim_uid}.json"
