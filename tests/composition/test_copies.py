"""Copies of remote models are there whole or not at all, whatever happens to them on the way."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import onnx
import onnx_models
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.composition.copies import is_being_written, staging
from serve_app.composition.locate import ModelLocation, resolve_model
from serve_app.composition.look import look_at
from serve_app.composition.model import read_builds
from serve_app.config.model import ModelConfig
from serve_app.errors import ConfigError


def environ(folder: Path) -> dict[str, str]:
    """An environment whose folders are the test's own."""
    return {"SERVE_APP_HOME": str(folder), "SERVE_APP_CACHE": str(folder / "cache")}


def left_over(folder: Path) -> list[str]:
    """What lies in the cache without being a copy."""
    return [item.name for item in (folder / "cache" / "models").glob(".*")]


# --- Filesystems that fail --------------------------------------------------------------------------------------------


class Faulty(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem in memory that does something when a file has been copied from it."""

    protocol = "faulty"
    store: dict[str, Any] = {}  # noqa: RUF012 - as its base
    pseudo_dirs = [""]  # noqa: RUF012 - as its base
    cachable = False
    after: Callable[[int, str], None] = staticmethod(lambda _count, _copy: None)
    copied = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("faulty:/")))

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        """Copy one file here."""
        super().get_file(rpath, lpath, **options)
        Faulty.copied += 1
        Faulty.after(Faulty.copied, lpath)


fsspec.register_implementation("faulty", Faulty, clobber=True)


def generation(number: int) -> dict[str, bytes]:
    """A model and what belongs to it, whose every file tells of which state it is; of the same sizes in all."""
    with TemporaryDirectory() as made:
        file = Path(made) / "model.onnx"
        weights = np.full(64, number, np.float32)
        onnx_models.write(
            file,
            [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
            [("x", onnx.TensorProto.FLOAT, ["batch", 64])],
            [("y", onnx.TensorProto.FLOAT, ["batch", 64])],
            {"w": weights},
        )
        model = onnx.load(file)
        model.doc_string = f"state {number}"
        onnx.save(model, file, save_as_external_data=True, location="w.bin", size_threshold=0)
        files = {name: (Path(made) / name).read_bytes() for name in ("model.onnx", "w.bin")}
    return {**files, "labels.txt": f"{number}\n".encode()}


GENERATIONS = [generation(number) for number in range(2)]


def put(number: int, folder: str) -> None:
    """Put a state of the model there."""
    Faulty().pipe({f"{folder}/{name}": content for name, content in GENERATIONS[number].items()})


@contextmanager
def failing(after: Callable[[int, str], None]) -> Iterator[None]:
    """Do this after each file that is copied."""
    Faulty.after, Faulty.copied = staticmethod(after), 0
    try:
        yield
    finally:
        Faulty.after = staticmethod(lambda _count, _copy: None)


def cut(at: int, size: int, count: int, copy: str) -> None:
    """Cut the file that is copied as this one."""
    if count == at:
        os.truncate(copy, min(size, Path(copy).stat().st_size))


def change(at: int, folder: str, count: int, _copy: str) -> None:
    """Put the second state there when so many files have been copied."""
    if count == at:
        put(1, folder)


def vanish(at: int, folder: str, count: int, _copy: str) -> None:
    """Remove the folder when so many files have been copied."""
    if count == at:
        Faulty().rm(folder, recursive=True)


def fill(at: int, _folder: str, count: int, _copy: str) -> None:
    """The disk is full when so many files have been copied."""
    if count == at:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def contents(location: ModelLocation) -> dict[str, bytes]:
    """What was copied."""
    return {file.name: file.read_bytes() for file in location.files()}


@pytest.mark.parametrize("folder", ["/flat", "/versions/1"])
@settings(max_examples=60, deadline=None)
@given(at=st.integers(1, 4), size=st.integers(0, 300), fault=st.sampled_from([cut, change, vanish, fill]))
def test_a_copy_is_one_state_of_all_files_or_none(folder: str, at: int, size: int, fault: Any) -> None:
    """Whichever file is cut, changes, vanishes or finds no room; and a later copy is whole."""
    Faulty.store.clear()
    put(0, folder)
    uri = "faulty:/" + folder.removesuffix("/1")
    with TemporaryDirectory() as made:
        variables = environ(Path(made))
        with failing(partial(fault, at, size if fault is cut else folder)):
            try:
                assert contents(resolve_model(uri, environ=variables)) in GENERATIONS
            except ConfigError as error:
                (line,) = error.problems
                assert line.startswith(uri)
                assert "\n" not in line
        assert left_over(Path(made)) == []
        put(1, folder)
        assert contents(resolve_model(uri, environ=variables)) in GENERATIONS


def test_what_happened_to_a_copy_is_told(tmp_path: Path) -> None:
    """In a line."""
    Faulty.store.clear()
    for fault, told in (
        (partial(cut, 1, 7), r"7 of \d+ bytes of .*model.onnx were received"),
        (partial(change, 2, "/flat"), "it changed while it was copied; try again"),
        (partial(fill, 2, ""), "No space left on device"),
    ):
        put(0, "/flat")
        with failing(fault), pytest.raises(ConfigError, match=told):
            resolve_model("faulty://flat", environ=environ(tmp_path))


def test_weights_that_change_alone_are_copied_again(tmp_path: Path) -> None:
    """The file that names them is the same."""
    Faulty.store.clear()
    put(0, "/flat")
    assert contents(resolve_model("faulty://flat", environ=environ(tmp_path))) == GENERATIONS[0]
    Faulty().pipe("/flat/w.bin", GENERATIONS[1]["w.bin"])
    assert contents(resolve_model("faulty://flat", environ=environ(tmp_path)))["w.bin"] == GENERATIONS[1]["w.bin"]


@pytest.mark.parametrize("folder", ["/flat", "/versions/1"])
def test_a_model_without_its_weights_is_not_copied(tmp_path: Path, folder: str) -> None:
    """They may be on their way there; then both are copied."""
    Faulty.store.clear()
    put(0, folder)
    Faulty().rm(f"{folder}/w.bin")
    uri = "faulty:/" + folder.removesuffix("/1")
    with pytest.raises(ConfigError, match=r"model\.onnx names w\.bin, which is not there"):
        resolve_model(uri, environ=environ(tmp_path))
    put(0, folder)
    assert contents(resolve_model(uri, environ=environ(tmp_path))) == GENERATIONS[0]


def test_a_version_that_was_copied_too_early_is_copied_again(tmp_path: Path) -> None:
    """What it has cannot be read: it was still being put there."""
    Faulty.store.clear()
    model = ModelConfig.model_validate({"name": "m", "path": "faulty://versions"})
    put(0, "/versions/1")
    Faulty().pipe("/versions/1/model.onnx", GENERATIONS[0]["model.onnx"][:100])
    early = resolve_model(model.path, environ=environ(tmp_path))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        read_builds(model, {"": early})
    put(0, "/versions/1")
    whole = resolve_model(model.path, environ=environ(tmp_path))
    assert contents(whole) == GENERATIONS[0]
    assert read_builds(model, {"": whole}).keys() == {""}


def test_nothing_is_copied_to_another_place(tmp_path: Path) -> None:
    """Whatever files a configuration names beside a model."""
    Faulty.store.clear()
    put(0, "/above/flat")
    Faulty().pipe("/above/flat/../names.txt", b"a\n")  # which other filesystems lead upwards
    with pytest.raises(ConfigError, match=r"\.\./names\.txt is outside its folder"):
        resolve_model("faulty://above/flat", environ=environ(tmp_path), beside=["../names.txt"])


# --- A server that sends half of a file -------------------------------------------------------------------------------


@dataclass
class Site:
    """One model behind HTTP.

    Attributes:
        content: Its file.
        cut: Bytes that an answer ends after; ``None``: it is whole.
        honest: Whether such an answer says its own length, and not that of the file.
        stalls: Whether such an answer goes on only when the server ends.
        copying: Whether it is being copied.
        half_sent: Set once a part was sent to whoever copies it.
        ending: Set when the server ends.
    """

    content: bytes
    cut: int | None = None
    honest: bool = False
    stalls: bool = False
    copying: Callable[[], bool] = lambda: True
    half_sent: threading.Event = field(default_factory=threading.Event)
    ending: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(site: Site) -> Iterator[str]:
    """Serve it. Gives the URI of its file."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            """Tell of a file."""
            found = self.path.endswith("/model.onnx")
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(site.content)) if found else "0")
            self.end_headers()

        def do_GET(self) -> None:
            """Send it, or a part of it."""
            if not self.path.endswith("/model.onnx"):
                self.do_HEAD()
                return
            part = site.content if site.cut is None else site.content[: site.cut]
            self.send_response(200)
            self.send_header("Content-Length", str(len(part if site.honest else site.content)))
            self.end_headers()
            self.wfile.write(part)
            self.wfile.flush()
            if site.copying():
                site.half_sent.set()
            if site.stalls:
                site.ending.wait()
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/m/model.onnx"
    finally:
        site.ending.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("honest", [True, False])
def test_half_a_file_of_a_server_is_refused(tmp_path: Path, honest: bool) -> None:
    """Whatever length its answer says. Afterwards it is copied whole."""
    site = Site(GENERATIONS[0]["model.onnx"] * 100, honest=honest)
    with serving(site) as uri:
        for cut_at in (0, 1, len(site.content) - 1):
            site.cut = cut_at
            with pytest.raises(ConfigError, match=r"bytes of .* were received|cannot be read: ClientPayloadError"):
                resolve_model(uri, environ=environ(tmp_path), backend="onnx")
        assert left_over(tmp_path) == []


def test_a_copy_whose_process_is_killed_is_made_anew(tmp_path: Path) -> None:
    """What it has left is removed."""
    site = Site(onnx_models.make(tmp_path / "made.onnx", "add_one").read_bytes(), cut=20, stalls=True)
    site.copying = lambda: bool(left_over(tmp_path))
    with serving(site) as uri:
        code = f"from serve_app.composition.locate import resolve_model; resolve_model({uri!r})"
        with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **environ(tmp_path)}) as process:
            assert site.half_sent.wait(30.0)
            process.send_signal(signal.SIGKILL)
        assert len(left_over(tmp_path)) == 1
        site.cut, site.stalls = None, False
        found = resolve_model(uri, environ=environ(tmp_path))
        assert found.model_file.read_bytes() == site.content
        assert left_over(tmp_path) == []


def test_a_changed_file_of_a_server_is_seen(tmp_path: Path) -> None:
    """By its size, where it tells nothing else."""
    site = Site(onnx_models.make(tmp_path / "made.onnx", "add_one").read_bytes())
    with serving(site) as uri:
        model = ModelConfig.model_validate({"name": "m", "path": uri})
        first = look_at(model)
        assert first is not None
        assert resolve_model(uri, environ=environ(tmp_path)).model_file.read_bytes() == site.content
        site.content = onnx_models.make(tmp_path / "other.onnx", "image_logits").read_bytes()
        assert look_at(model) not in (None, first)
        assert resolve_model(uri, environ=environ(tmp_path)).model_file.read_bytes() == site.content


# --- Here -------------------------------------------------------------------------------------------------------------


def test_what_others_make_at_this_moment_is_left_alone(tmp_path: Path) -> None:
    """Only what nobody holds is removed, and only of the same kind."""
    (tmp_path / ".a-left").mkdir()
    (tmp_path / ".b-left").mkdir()
    with staging(tmp_path, ".a-") as first, staging(tmp_path, ".a-") as second:
        assert first.is_dir()
        assert {item.name for item in tmp_path.iterdir()} == {first.name, second.name, ".b-left"}
    assert [item.name for item in tmp_path.iterdir()] == [".b-left"]


def test_a_file_that_is_open_for_writing_is_being_written(tmp_path: Path) -> None:
    """Whoever writes it; readers do no harm."""
    file = tmp_path / "labels.txt"
    with file.open("w") as written:
        written.write("a\n")
        written.flush()
        if not is_being_written(file):
            pytest.skip("the filesystem of this machine has no leases")
    with file.open() as read:
        assert not is_being_written(file)
        assert read.read() == "a\n"
