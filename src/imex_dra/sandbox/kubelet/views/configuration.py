"""What variables and files are taken from: config maps, secrets, and fields of the pod itself."""

from imex_dra.api.meta import ObjectMeta, Resource, View


class ConfigMap(View, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}


class Secret(View, frozen=True):
    metadata: ObjectMeta
    data: dict[str, bytes] = {}


class ObjectReference(View, frozen=True, gc=False):
    name: str = ""
    optional: bool = False


class KeyReference(View, frozen=True, gc=False):
    name: str = ""
    key: str = ""
    optional: bool = False


class FieldReference(View, frozen=True, gc=False):
    field_path: str = ""


CONFIG_MAPS = Resource(ConfigMap, "", "v1", "configmaps")
SECRETS = Resource(Secret, "", "v1", "secrets")
