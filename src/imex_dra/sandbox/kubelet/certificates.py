"""Who a kubelet is to its callers, and whom it believes."""

import ssl
from pathlib import Path


def tls(certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    """A caller without a certificate is let in as far as to be told so."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context
