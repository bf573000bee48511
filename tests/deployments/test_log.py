"""Where a router's log of requests goes."""

from __future__ import annotations

import logging
import logging.handlers
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_app.deployments.log import join_serve_log, request_log_file

ROUTER = "serve-app_router_x7k2"


@pytest.fixture
def serve_logger() -> Iterator[logging.Logger]:
    """Serve's, without handlers; those that it gets go afterwards."""
    logger = logging.getLogger("ray.serve")
    before, level, logger.handlers = logger.handlers, logger.level, []
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.handlers = before
    logger.setLevel(level)


def test_it_follows_serve_s_log(serve_logger: logging.Logger, tmp_path: Path) -> None:
    """In its folder by default, and by its name in any; Serve holds lines back in memory on their way to the file."""
    file = logging.FileHandler(tmp_path / f"replica_{ROUTER}.log", delay=True)
    serve_logger.addHandler(logging.handlers.MemoryHandler(10, target=file))
    assert request_log_file(None, lambda: "any") == tmp_path / f"requests_{ROUTER}.log"
    assert request_log_file(Path("/var/log"), lambda: "any") == Path(f"/var/log/requests_{ROUTER}.log")


def test_a_folder_of_its_own_needs_no_log_of_serve_s(serve_logger: logging.Logger) -> None:
    """Without either there is no place for it."""
    serve_logger.addHandler(logging.NullHandler())
    assert request_log_file(Path("/var/log"), lambda: ROUTER) == Path(f"/var/log/requests_{ROUTER}.log")
    assert request_log_file(Path("/var/log"), lambda: "a/../b_router_x") == Path(
        "/var/log/requests_a_.._b_router_x.log"
    )
    assert request_log_file(None, lambda: ROUTER) is None


@pytest.fixture
def our_logger() -> Iterator[logging.Logger]:
    """This package's, as it was before."""
    logger = logging.getLogger("serve_app")
    before = logger.handlers, logger.level, logger.propagate
    yield logger
    logger.handlers, logger.level, logger.propagate = before


@pytest.mark.parametrize(
    ("level", "written"), [("DEBUG", "ab"), ("INFO", "b"), ("WARNING", "b"), ("ERROR", "")], ids=str
)
def test_what_shares_runs_is_written_where_serve_writes_warnings_only(
    level: str, written: str, serve_logger: logging.Logger, our_logger: logging.Logger, tmp_path: Path
) -> None:
    """As the shipped files have it; who wants errors only gets those."""
    serve_logger.addHandler(logging.FileHandler(tmp_path / "replica.log"))
    serve_logger.setLevel(level)
    join_serve_log()
    our_logger.debug("a")
    our_logger.info("b")
    assert written == (tmp_path / "replica.log").read_text().replace("\n", "")


def test_what_this_package_logs_is_written_at_once(
    serve_logger: logging.Logger, our_logger: logging.Logger, tmp_path: Path
) -> None:
    """By Serve's own filters, although Serve keeps its lines back."""
    file = logging.FileHandler(tmp_path / "replica.log")
    handler = logging.handlers.MemoryHandler(1000, target=file)
    handler.addFilter(lambda record: "secret" not in record.getMessage())
    serve_logger.addHandler(handler)

    for _ in range(2):
        join_serve_log()
    serve_logger.warning("of Serve")
    our_logger.warning("of ours")
    our_logger.warning("secret")

    assert (tmp_path / "replica.log").read_text() == "of ours\n"
