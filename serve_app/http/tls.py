"""TLS for the routers' own ports: certificates that rotate while the server runs, and contexts.

An issuer (cert-manager, an ACME client) replaces the files. Their times are checked at connections, at most once a
second. Inconsistent files, e.g. while only one is replaced, change nothing: the last good ones stay in use, and the log
says why.
"""

from __future__ import annotations

import logging
import ssl
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from serve_app.domain.settings import TlsFiles
from serve_app.errors import ConfigError

_log = logging.getLogger(__name__)

_POLL_INTERVAL_S: Final = 1.0
_OPEN_TO_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Read certificates, for an HTTP/1.1 server.

    Raises:
        ConfigError: A file is missing, unreadable or inconsistent; says which and why.
    """
    problems = [problem for path in files.paths() if (problem := _unreadable(path)) is not None]
    if problems:
        raise ConfigError(tuple(problems))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[files.minimum_version]
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except _Encrypted:
        raise ConfigError((f"{files.key}: is encrypted; give the private key without a password",)) from None
    except ssl.SSLError as error:
        raise ConfigError((_misfit(files, error),)) from None
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except ssl.SSLError:
            raise ConfigError((f"{files.client_ca}: holds no certificates in PEM",)) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def key_permission_problem(files: TlsFiles) -> str | None:
    """The problem with the private key's permissions, in one line, if any."""
    mode = files.key.stat().st_mode
    if not mode & _OPEN_TO_OTHERS:
        return None
    return f"{files.key}: mode {stat.S_IMODE(mode):04o} lets other users read the private key; run chmod 600"


class _Encrypted(Exception):
    """The private key is encrypted."""


def _no_password() -> str:
    raise _Encrypted  # OpenSSL would ask on the terminal


def _unreadable(path: Path) -> str | None:
    try:
        path.read_bytes()
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror or error}"
    return None


def _misfit(files: TlsFiles, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{files.key}: is not the key of the certificate in {files.certificate}"
    for path, kind in ((files.certificate, b"CERTIFICATE-----"), (files.key, b"PRIVATE KEY-----")):
        if kind not in path.read_bytes():
            return f"{path}: holds no {kind.decode().rstrip('-').lower()} in PEM"
    return f"{files.certificate} and {files.key}: cannot be used: {error.reason or error}"


class Certificates:
    """A router's certificates, which follow their files. Ports and threads share them.

    Raises:
        ConfigError: The certificates are not usable.
    """

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._context = make_context(files)
        self._looked = clock()
        warning = key_permission_problem(files)
        if warning is not None:
            _log.warning("%s", warning)

    def context(self) -> ssl.SSLContext:
        """The context for a new HTTP connection. Checks the files, at most once a second."""
        with self._lock:
            now = self._clock()
            if now - self._looked >= _POLL_INTERVAL_S:
                self._looked = now
                if (stamps := self._stamps()) != self._seen:
                    self._seen = stamps
                    self._renew()
            return self._context

    def _renew(self) -> None:
        try:
            self._context = make_context(self._files)
        except ConfigError as error:
            _log.warning("New certificates are not used: %s", "; ".join(error.problems))
        else:
            _log.info("New certificates are in use: %s", self._files.certificate)

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_stamp, self._files.paths()))

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials for a gRPC server, whose threads check for new files at each handshake."""
        files, used = self._files, self._context

        def configuration() -> grpc.ServerCertificateConfiguration:
            return grpc.ssl_server_certificate_configuration(
                [(files.key.read_bytes(), files.certificate.read_bytes())],
                None if files.client_ca is None else files.client_ca.read_bytes(),
            )

        def news() -> grpc.ServerCertificateConfiguration | None:
            nonlocal used
            before, used = used, self.context()
            return None if used is before else configuration()

        return grpc.dynamic_ssl_server_credentials(
            configuration(),
            news,  # type: ignore[arg-type] # its stubs forget that nothing new is None
            require_client_authentication=files.client_ca is not None,
        )


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
