"""The files of one run: certificates for Ray's calls, and HAProxy's; for this user only, and gone afterwards."""

from __future__ import annotations

import signal
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from serve_app.cli.run_folder import run_folder
from serve_app.cli.watchdog import watch


def mode(path: Path) -> int:
    """Who may do what with a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_may_read_the_files_of_a_run_and_they_go_with_it() -> None:
    """Even where a fault ends the run."""

    def fail() -> None:
        with run_folder({}) as added:
            files = [Path(path) for name, path in added.items() if name.startswith("RAY_TLS_")]
            folders.update({path.parent for path in files})
            assert {mode(path) for path in files} == {0o600}
            assert {mode(path) for path in folders} == {0o700}
            raise KeyError

    folders: set[Path] = set()
    with pytest.raises(KeyError):
        fail()
    (folder,) = folders
    assert not folder.exists()


def test_the_folder_of_a_killed_run_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog removes it once the run is gone and everything that the run has started."""
    monkeypatch.setenv("SERVE_APP_TEST_MARK", str(tmp_path))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "tls.key").touch()
    waiting = [sys.executable, "-c", "import signal; print('started', flush=True); signal.pause()"]
    with subprocess.Popen(waiting, stdout=subprocess.PIPE, text=True) as left:
        assert left.stdout is not None
        assert left.stdout.readline() == "started\n"
        watch("SERVE_APP_TEST_MARK", str(folder)).communicate()
        assert left.poll() == -signal.SIGTERM
    assert not folder.exists()


def test_ray_is_told_to_ask_for_certificates() -> None:
    """Its variables name an authority, a certificate of it for this machine, and the key of that."""
    with run_folder({}) as added:
        assert added["RAY_USE_TLS"] == "1"
        context = ssl.create_default_context(cafile=added["RAY_TLS_CA_CERT"])
        context.load_cert_chain(added["RAY_TLS_SERVER_CERT"], added["RAY_TLS_SERVER_KEY"])
        certificates = x509.load_pem_x509_certificates(Path(added["RAY_TLS_SERVER_CERT"]).read_bytes())
        names = certificates[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        authority = x509.load_pem_x509_certificate(Path(added["RAY_TLS_CA_CERT"]).read_bytes())
        certificates[0].verify_directly_issued_by(authority)
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert {"127.0.0.1", "::1"} <= {str(address) for address in names.get_values_for_type(x509.IPAddress)}


def test_every_run_has_an_authority_of_its_own() -> None:
    """A certificate of one run opens nothing of another."""
    with run_folder({}) as one, run_folder({}) as other:
        assert Path(one["RAY_TLS_CA_CERT"]).read_bytes() != Path(other["RAY_TLS_CA_CERT"]).read_bytes()


@pytest.mark.parametrize("decision", ["0", "1"])
def test_what_the_user_set_stays(decision: str) -> None:
    """Certificates of the user's own, none at all, and another place for HAProxy's socket."""
    with run_folder({"RAY_USE_TLS": decision, "RAY_SERVE_HAPROXY_SOCKET_PATH": "/run/a.sock"}) as added:
        assert not [name for name in added if "TLS" in name or name == "RAY_SERVE_HAPROXY_SOCKET_PATH"]


def test_haproxys_sockets_have_short_paths() -> None:
    """With the name of a node and what HAProxy appends while it starts, within the 107 bytes of a Unix socket."""
    node, while_starting = "n" * 56, ".4194304.tmp"
    with run_folder({}) as added:
        for name in ("RAY_SERVE_HAPROXY_SOCKET_PATH", "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH"):
            path = Path(added[name])
            assert len(str(path.parent / node / (path.name + while_starting))) <= 107
