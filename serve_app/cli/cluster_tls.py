"""Certificates of one run for the calls between Ray's and Serve's processes.

Every replica of Serve listens on all interfaces for calls between Serve's processes, which are pickles: a client there
can run code. Ray's token alone would protect them, and travel in plaintext. With ``RAY_USE_TLS`` these ports, and those
of Ray's own servers, accept only certificates of the run's authority. Its key is thrown away, so that no other
certificate can be made, and only this user can read the existing one.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SWITCH = "RAY_USE_TLS"
_VALID_FOR = timedelta(days=3650)  # longer than any run: Ray reads the files once per process
_CLOCK_MAY_STEP_BACK = timedelta(days=1)


def variables(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Make the certificates of a run, and the variables for Ray.

    Args:
        folder: Accessible only to this user. The files stay there during the run.
        environ: The present environment. If it sets ``RAY_USE_TLS``, nothing is made.

    Returns:
        Additions to the environment before Ray is imported.
    """
    if _SWITCH in environ:
        return {}
    authority, certificate, key = _issue(_own_names())
    files = {
        "RAY_TLS_CA_CERT": (folder / "ca.crt", authority),
        "RAY_TLS_SERVER_CERT": (folder / "tls.crt", certificate),
        "RAY_TLS_SERVER_KEY": (folder / "tls.key", key),
    }
    for path, content in files.values():
        _write_private(path, content)
    return {_SWITCH: "1", **{name: str(path) for name, (path, _) in files.items()}}


def _issue(names: list[x509.GeneralName]) -> tuple[bytes, bytes, bytes]:
    """An authority's certificate, a certificate of it for clients and servers, and the latter's key: PEM."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer, subject = _name("serve-app run: authority"), _name("serve-app run")
    authority = (
        _builder(issuer, issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, SHA256())
    )
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(issuer, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, SHA256())
    )
    return (
        authority.public_bytes(Encoding.PEM),
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _builder(issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_MAY_STEP_BACK)
        .not_valid_after(now + _VALID_FOR)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _own_names() -> list[x509.GeneralName]:
    """This machine's names for the run's processes: its host name and all addresses."""
    return [*(x509.DNSName(name) for name in _host_names()), *(x509.IPAddress(address) for address in _addresses())]


def _host_names() -> list[str]:
    name = socket.gethostname()
    return ["localhost", name] if name.isascii() and name != "localhost" else ["localhost"]


def _addresses() -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    texts = {"127.0.0.1", "::1"}
    for found in psutil.net_if_addrs().values():
        texts |= {each.address.partition("%")[0] for each in found if each.family in {socket.AF_INET, socket.AF_INET6}}
    return map(ipaddress.ip_address, sorted(texts))


def _write_private(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
