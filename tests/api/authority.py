"""Certificates of an authority of our own, as files, and clients that trust it."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import trustme

from serve_app.domain.settings import TlsFiles


class Authority:
    """An authority that gives certificates to this machine, and to clients.

    Args:
        folder: Where its files go.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.ca = trustme.CA()
        self.ca_file = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.ca_file)

    def server(self, *, client_ca: Path | None = None, name: str = "server", **options: Any) -> TlsFiles:
        """A certificate for 127.0.0.1. The same name again replaces it."""
        files = TlsFiles(self._folder / f"{name}.pem", self._folder / f"{name}.key", client_ca)
        self.write(files, **options)
        return files

    def write(self, files: TlsFiles, **options: Any) -> None:
        """Put a new certificate of this authority in the place of another."""
        issued = self.ca.issue_cert("127.0.0.1", "localhost", **options)
        # Replaced as a whole: who reads meanwhile gets the old one or the new one.
        for blob, target in (
            (b"".join(each.bytes() for each in issued.cert_chain_pems), files.certificate),
            (issued.private_key_pem.bytes(), files.key),
        ):
            fresh = target.with_suffix(".new")
            fresh.write_bytes(blob)
            fresh.chmod(0o600)
            fresh.replace(target)

    def client(self, *, trusted: bool = True, certificate: Authority | None = None) -> ssl.SSLContext:
        """What a client checks the server with, and shows where an authority gave it a certificate."""
        context = ssl.create_default_context()
        if trusted:
            self.ca.configure_trust(context)
        if certificate is not None:
            certificate.ca.issue_cert("client@example.org").configure_cert(context)
        return context
