"""Volumes of a pod, and the ConfigMaps, Secrets and pod fields that volumes and variables refer to."""

from msgspec import field

from imex_dra.api.meta import ObjectMeta, Resource, View


class ConfigMap(View, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}


class Secret(View, frozen=True):
    metadata: ObjectMeta
    data: dict[str, bytes] = {}


CONFIG_MAPS = Resource(ConfigMap, "", "v1", "configmaps")
SECRETS = Resource(Secret, "", "v1", "secrets")


class ObjectReference(View, frozen=True, gc=False):
    name: str = ""
    optional: bool = False


class KeySelector(View, frozen=True, gc=False):
    name: str = ""
    key: str = ""
    optional: bool = False


class FieldSelector(View, frozen=True, gc=False):
    field_path: str = ""


class VolumeFile(View, frozen=True, gc=False):
    """`KeyToPath`, or `DownwardAPIVolumeFile` if `field_ref` is set."""

    path: str
    key: str = ""
    mode: int | None = None
    field_ref: FieldSelector | None = None


class ConfigMapVolumeSource(View, frozen=True):
    name: str = ""
    items: tuple[VolumeFile, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class SecretVolumeSource(View, frozen=True):
    secret_name: str = ""
    items: tuple[VolumeFile, ...] = ()
    default_mode: int = 0o644
    optional: bool = False


class DownwardApiVolumeSource(View, frozen=True):
    items: tuple[VolumeFile, ...] = ()
    default_mode: int = 0o644


class ServiceAccountTokenProjection(View, frozen=True, gc=False):
    path: str
    audience: str = ""
    expiration_seconds: int = 3600


class SecretProjection(View, frozen=True):
    name: str = ""
    items: tuple[VolumeFile, ...] = ()
    optional: bool = False


class VolumeProjection(View, frozen=True):
    """Exactly one is set."""

    service_account_token: ServiceAccountTokenProjection | None = None
    config_map: ConfigMapVolumeSource | None = None
    secret: SecretProjection | None = None
    downward_api: DownwardApiVolumeSource | None = field(name="downwardAPI", default=None)


class ProjectedVolumeSource(View, frozen=True):
    sources: tuple[VolumeProjection, ...] = ()
    default_mode: int = 0o644


class EmptyDirVolumeSource(View, frozen=True, gc=False):
    """`medium` is ignored: the volume is always a directory on disk."""


class Volume(View, frozen=True):
    """At most one source is set; none is set if the volume is of a type that is not supported."""

    name: str
    empty_dir: EmptyDirVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    downward_api: DownwardApiVolumeSource | None = field(name="downwardAPI", default=None)
    projected: ProjectedVolumeSource | None = None

    @property
    def is_supported(self) -> bool:
        return any((self.empty_dir, self.config_map, self.secret, self.downward_api, self.projected))

    @property
    def default_mode(self) -> int:
        sources = (self.config_map, self.secret, self.downward_api, self.projected)
        return next((source.default_mode for source in sources if source), 0o644)

    @property
    def projections(self) -> tuple[VolumeProjection, ...]:
        """The sources of a projected volume; any other volume is treated as a projection of one source."""
        if self.projected is not None:
            return self.projected.sources
        source = self.secret
        secret = None if source is None else SecretProjection(source.secret_name, source.items, source.optional)
        return (VolumeProjection(config_map=self.config_map, secret=secret, downward_api=self.downward_api),)
