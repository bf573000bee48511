"""Settings of TLS on the routers' own ports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from serve_app.config.files import home
from serve_app.config.values import Section
from serve_app.domain.settings import TlsFiles


class TlsConfig(Section):
    """TLS on the routers' own ports. Files that change are read again for new connections."""

    certificate: str = Field(min_length=1)
    """PEM file with the server's certificate, and after it those between it and its authority.

    Like `key` and `client_ca` it is relative to `SERVE_APP_HOME`, or absolute.
    """

    key: str = Field(min_length=1)
    """PEM file with the certificate's private key, not encrypted."""

    client_ca: str | None = Field(default=None, min_length=1)
    """PEM file with the authorities whose certificates clients must show (mutual TLS). Clients need none by default."""

    minimum_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest version of TLS that is spoken."""

    def files(self, environ: Mapping[str, str] | None = None) -> TlsFiles:
        """The files' places.

        Args:
            environ: Default: this process's.
        """
        folder = home(os.environ if environ is None else environ)
        return TlsFiles(
            certificate=folder / self.certificate,
            key=folder / self.key,
            client_ca=None if self.client_ca is None else folder / self.client_ca,
            minimum_version=self.minimum_version,
        )
