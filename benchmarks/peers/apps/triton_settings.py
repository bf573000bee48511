"""What both ways to serve with Triton share: its ports, its access, its interpreter."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from pytriton.triton import TritonConfig, TritonSecurityConfig

from benchmarks.peers.apps.settings import Settings

# Otherwise statistics and the repository API need a token, which neither Triton's own load generator nor a V2 client
# can give.
SECURITY = TritonSecurityConfig(restricted_endpoints=[])


def config(settings: Settings, repository: Path | None = None) -> TritonConfig:
    """Triton on this machine's own address, with a model repository where there is one."""
    grpc, metrics = settings.more_ports
    return TritonConfig(
        model_repository=repository,
        http_address="127.0.0.1",
        http_port=settings.port,
        grpc_address="127.0.0.1",
        grpc_port=grpc,
        metrics_port=metrics,
        log_verbose=0,
    )


def find_library() -> None:
    """Have Triton's workers find this interpreter's library.

    They embed an interpreter: that of another patch release does not fit this one's standard library.
    """
    folders = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
