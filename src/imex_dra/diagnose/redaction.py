"""Objects and logs without secrets, for a support bundle that leaves the cluster.

Secrets and ConfigMaps are never read. What users write into pods may be secret, too: values of variables and of
HTTP headers, annotations, and credentials in any text. They are left out, except what findings are about. Names,
labels and images identify objects, and stay.
"""

import re
from typing import Any

from imex_dra.diagnose.snapshot import Plain

REDACTED = "redacted"
_KEPT_VARIABLES = re.compile(
    r"(NCCL|NVIDIA|NVSHMEM|CUDA|COMPUTE_DOMAIN|IMEX|OMPI|UCX)_|(LOCAL_)?RANK$|WORLD_SIZE$"
)
_KEPT_ANNOTATIONS = re.compile(r"imex-dra\.io/|resource\.kubernetes\.io/|([\w-]+\.)*nvidia\.com/")
_NAME = (
    r"(?:authorization|password|passwd|passphrase|secret|token(?!s|iz)|credential|(?:api|access|private)[-_]?key)"
)
"""Not tokens and tokenizers, of which language models have many."""
_CREDENTIAL = re.compile(rf"(?i)({_NAME}\w*[\"']?\s*[=:]\s*[\"']?)([^\s\"',;]+)")
_OPTION = rf"-+[\w-]*{_NAME}(?![\w-]*(?:file|path|dir|name)\b)[\w-]*"
_FLAG = re.compile(rf"(?i){_OPTION}$")
"""An argument whose value is the next one."""
_FLAG_AND_VALUE = re.compile(rf"(?i)((?<!\S){_OPTION}\s+)(?!-)(\"[^\"]*\"|'[^']*'|[^\s\"']+)")
"""Both in one text, such as a script of `sh -c`."""
_FIELD = re.compile(rf"(?i).*{_NAME}s?$")
"""A field whose text is the credential: not secretName, which names a Secret."""
_UNCHANGED = ("image", "imageID", "labels", "matchLabels", "nodeSelector")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+\S+")
_TOKEN = re.compile(
    r"eyJ[\w-]{10,}\.[\w-]+\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*-----"
    r"|\b(?:hf_|gh[pousr]_|glpat-|nvapi-|sk-)[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b",
    re.DOTALL,
)
"""By their form: JWTs, private keys, and tokens of services that mark theirs with a prefix."""
_URL_PASSWORD = re.compile(r"(://[^/\s:@]+:)[^/\s@]+@")


def redacted(obj: Plain) -> Plain:
    """A copy. Containers are found wherever they are, also in the templates of workloads."""
    found: Plain = _walk(obj)
    return found


def redacted_text(text: str) -> str:
    text = _BEARER.sub(rf"\1 {REDACTED}", _TOKEN.sub(REDACTED, text))
    text = _URL_PASSWORD.sub(rf"\1{REDACTED}@", text)
    return _CREDENTIAL.sub(rf"\1{REDACTED}", _FLAG_AND_VALUE.sub(rf"\1{REDACTED}", text))


def _walk(value: Any, key: str = "") -> Any:
    match value:
        case _ if key in _UNCHANGED:
            return value
        case dict():
            return {name: _walk(_kept(name, item), name) for name, item in value.items()}
        case list() if key == "env":
            return [_walk(_variable(entry)) for entry in value]
        case list() if key == "httpHeaders":
            return [{**entry, "value": REDACTED} if isinstance(entry, dict) else entry for entry in value]
        case list() if key in ("command", "args"):
            before = ["", *map(str, value)]
            return [
                REDACTED if _FLAG.match(flag) else _walk(one, key)
                for flag, one in zip(before, value, strict=False)
            ]
        case list():
            return [_walk(item, key) for item in value]
        case str() | int() if _FIELD.match(key) and not isinstance(value, bool):
            return REDACTED
        case str():
            return redacted_text(value)
    return value


def _kept(name: str, value: Any) -> Any:
    if name == "annotations" and isinstance(value, dict):
        return {key: text for key, text in value.items() if _KEPT_ANNOTATIONS.match(key)}
    return value


def _variable(entry: Any) -> Any:
    """valueFrom names a Secret or a field, and contains no value."""
    if not isinstance(entry, dict) or "value" not in entry:
        return entry
    name = str(entry.get("name", ""))
    # NVIDIA_API_KEY is a secret.
    kept = _KEPT_VARIABLES.match(name) and not re.search(rf"(?i){_NAME}|key", name)
    return entry if kept else {**entry, "value": REDACTED}
