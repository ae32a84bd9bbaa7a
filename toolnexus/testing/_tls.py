"""A certificate for 127.0.0.1 from an authority made on the spot."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from toolnexus._extras import need

__all__ = ["server_context"]


def server_context() -> tuple[ssl.SSLContext, Path]:
    """
    Return a TLS context for a server on 127.0.0.1 and the file of the authority that vouches for it.

    The file is the caller's to delete.

    Raises:
        MissingExtraError: ``trustme`` is not installed.
    """
    trustme = need("trustme", "testing")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    handle, name = tempfile.mkstemp(prefix="toolnexus-testing-ca-", suffix=".pem")
    os.close(handle)
    path = Path(name)
    path.write_bytes(authority.cert_pem.bytes())
    return context, path
