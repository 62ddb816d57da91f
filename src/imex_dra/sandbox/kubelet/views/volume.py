"""A volume of a pod, and the sources that its files come from."""

from msgspec import field

from imex_dra.api.meta import View
from imex_dra.sandbox.kubelet.views.configuration import FieldReference


class FileItem(View, frozen=True, gc=False):
    """One file of a volume; the source is a key or a field."""

    path: str
    key: str = ""
    mode: int | None = None
    field_ref: FieldReference | None = None


class ConfigMapVolume(View, frozen=True):
    name: str = ""
    items: tuple[FileItem, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class SecretVolume(View, frozen=True):
    secret_name: str = ""
    items: tuple[FileItem, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class DownwardVolume(View, frozen=True):
    items: tuple[FileItem, ...] = ()
    default_mode: int = 0o644


class TokenSource(View, frozen=True, gc=False):
    path: str
    audience: str = ""
    expiration_seconds: int = 3600


class SecretSource(View, frozen=True):
    name: str = ""
    items: tuple[FileItem, ...] = ()
    optional: bool = False


class ProjectedSource(View, frozen=True):
    """One of them."""

    service_account_token: TokenSource | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretSource | None = None
    downward_api: DownwardVolume | None = field(name="downwardAPI", default=None)


class ProjectedVolume(View, frozen=True):
    sources: tuple[ProjectedSource, ...] = ()
    default_mode: int = 0o644


class EmptyDirVolume(View, frozen=True, gc=False):
    """Wherever it asks to lie, it is a directory here."""


class Volume(View, frozen=True):
    """Of the sources at most one is set; a kind that is not here leaves all of them empty."""

    name: str
    empty_dir: EmptyDirVolume | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    downward_api: DownwardVolume | None = field(name="downwardAPI", default=None)
    projected: ProjectedVolume | None = None

    @property
    def is_known(self) -> bool:
        return any((self.empty_dir, self.config_map, self.secret, self.downward_api, self.projected))

    @property
    def default_mode(self) -> int:
        sources = (self.config_map, self.secret, self.downward_api, self.projected)
        return next((source.default_mode for source in sources if source), 0o644)

    @property
    def parts(self) -> tuple[ProjectedSource, ...]:
        """Every kind is read as projected: a plain one is a projection of one source."""
        if self.projected is not None:
            return self.projected.sources
        own = self.secret
        secret = None if own is None else SecretSource(own.secret_name, own.items, own.optional)
        plain = ProjectedSource(config_map=self.config_map, secret=secret, downward_api=self.downward_api)
        return (plain,)
