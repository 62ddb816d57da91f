"""The Secret with the certificate of IMEX daemons, as the controller issues it and as the kubelet mounts it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from imex_dra.controller.issuing import KeyPair, Request, issue


class Secret:
    """A volume of the kubelet: it replaces all files at once, by a link."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._versions = 0
        directory.mkdir(parents=True)

    def write(self, authority: KeyPair, pair: KeyPair) -> None:
        self._versions += 1
        version = self.directory / f"..{self._versions}"
        version.mkdir()
        files = {"tls.key": pair.key, "tls.crt": pair.certificate, "ca.crt": authority.certificate}
        for name, content in files.items():
            (version / name).write_text(content)
        link = self.directory / "..new"
        link.symlink_to(version.name)
        link.rename(self.directory / "..data")
        for name in files:
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")


async def new_authority() -> KeyPair:
    now = datetime.now(UTC)
    return await issue(Request(now, now + timedelta(days=3650)))


async def certificate(authority: KeyPair) -> KeyPair:
    now = datetime.now(UTC)
    return await issue(Request(now, now + timedelta(days=365), authority))
