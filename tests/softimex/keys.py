"""Keys and certificates for nodes that encrypt."""

from imex_dra.sandbox.kubernetes.certificates import Authority
from tests.softimex.rack import Node


def equip(node: Node, authority: Authority, name: str) -> None:
    """Keys of its own for a node, in its root."""
    server = authority.server(f"server-{node.root.parent.name}-{node.slot}", [f"DNS:{name}"])
    client = authority.client(f"client-{node.root.parent.name}-{node.slot}", name, [])
    files = {
        "IMEX_SERVER_KEY": server.key,
        "IMEX_SERVER_CERT": server.certificate,
        "IMEX_SERVER_CERT_AUTH": authority.certificate,
        "IMEX_CLIENT_KEY": client.key,
        "IMEX_CLIENT_CERT": client.certificate,
        "IMEX_CLIENT_CERT_AUTH": authority.certificate,
    }
    for key, source in files.items():
        (node.root / key).write_bytes(source.read_bytes())
    paths = {key: node.root / key for key in files}
    node.write_config(IMEX_ENABLE_AUTH_ENCRYPTION=1, IMEX_AUTH_SOURCE="FILE", **paths)
