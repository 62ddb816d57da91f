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
    r"(?:authorization|password|passwd|passphrase|(?<!imagepull)secret|token(?!s|iz)|credential"
    r"|(?:api|access|private)[-_]?key)"
)
"""Not tokens and tokenizers, of which language models have many."""
_CREDENTIAL = re.compile(
    rf"(?i)({_NAME}(?![\w-]*(?:name|file|path|dir)\b)[\w-]*\\?[\"']?\s*[=:]\s*)"
    r"(?:(?P<quote>\\?[\"']).*?(?<!\\)(?P=quote)|(?P<open>\\?[\"'])[^\n]+|[^\s\"',;]+)"
)
"""A value in quotes, which may be escaped, ends with the second one; without it, with the line."""
_AUTHORIZATION = re.compile(
    r"(?i)(authorization\\?[\"']?\s*[=:]\s*\\?[\"']?)(?:digest\s[^\n]*|[^\s\"']+(?:[ \t]+[^\s\"']+)?)"
)
"""Scheme and credentials: any scheme, not only Bearer."""
_USER = r"--(?:proxy-)?user|-U"
_USER_PASSWORD = re.compile(
    rf"((?<!\S)(?:-[A-Za-z]{{0,4}}u\s+|(?:{_USER})(?:\s+|=)))(\"[^\"]*\"|'[^']*'|[^\s\"']+)"
)
_CURL = re.compile(r"\bcurl\s(?:\\\n|[^\n|;&])*")
_CURL_USER = re.compile(rf"((?<!\S)(?:-[A-Za-z]{{0,4}}?u\s*|(?:{_USER})(?:\s+|=)))(\"[^\"]*\"|'[^']*'|[^\s\"']+)")
_USER_FLAG = re.compile(rf"(?:-u|{_USER})$")
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
_URL_PASSWORD = re.compile(r"(://[^/\s:@\"]*:)[^/\s@\"]+@")
_URL_TOKEN = re.compile(r"(https?://)[^/\s:@\"]+@")


def redacted(obj: Plain) -> Plain:
    """A copy. Containers are found wherever they are, also in the templates of workloads."""
    found: Plain = _walk(obj)
    return found


def redacted_text(text: str) -> str:
    text = _AUTHORIZATION.sub(rf"\1{REDACTED}", _TOKEN.sub(REDACTED, text))
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    text = _URL_TOKEN.sub(rf"\1{REDACTED}@", _URL_PASSWORD.sub(rf"\1{REDACTED}@", text))
    text = _CURL.sub(
        lambda command: _CURL_USER.sub(lambda m: m[1] + _without_password(m[2], sure=True), command[0]), text
    )
    text = _USER_PASSWORD.sub(lambda match: match[1] + _without_password(match[2]), text)
    return _CREDENTIAL.sub(_value_redacted, _FLAG_AND_VALUE.sub(rf"\1{REDACTED}", text))


def _value_redacted(match: re.Match[str]) -> str:
    quote = match["quote"] or match["open"] or ""
    return f"{match[1]}{quote}{REDACTED}{match['quote'] or ''}"


def _without_password(user: str, *, sure: bool = False) -> str:
    """Of `user:password`. Unless it is sure to be that: not `1000:1000`, a user and a group, nor `host:/path`."""
    name, colon, password = user.partition(":")
    quote = user[0] if user[0] in "\"'" else ""
    if not colon or (not sure and re.match(r"\d+[\"']?$|/", password)):
        return user
    return f"{name}:{REDACTED}{quote}"


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
            return [_argument(flag, one) for flag, one in zip(before, value, strict=False)]
        case list():
            return [_walk(item, key) for item in value]
        case str() | int() if _FIELD.match(key) and not isinstance(value, bool):
            return REDACTED
        case str():
            return redacted_text(value)
    return value


def _argument(flag: str, value: Any) -> Any:
    if _FLAG.match(flag):
        return REDACTED
    if _USER_FLAG.match(flag) and isinstance(value, str) and value:
        return redacted_text(_without_password(value))
    return _walk(value, "args")


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
