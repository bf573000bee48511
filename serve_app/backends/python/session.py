"""Sessions of a loaded class: in the server's process, or in a process of its own."""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import subprocess
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, Final, Protocol

import numpy as np

from serve_app.backends.backend import SessionLost
from serve_app.backends.python import host
from serve_app.backends.python.declaration import Declaration, Declared
from serve_app.backends.python.environment import clean_environ
from serve_app.backends.python.host import Context, Fault
from serve_app.errors import ConfigError
from serve_app.payloads import Tensors
from serve_app.threads import in_thread

logger = logging.getLogger(__name__)

_CLOSING_S: Final = 5.0
"""Longest `close` of a class, seconds."""

_LAST_WORDS_S: Final = 1.0
"""For how long what an ended process said is waited for, seconds: one that it has started may still hold its output."""

_LINE_BYTES: Final = 4096
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")


class PythonSession(Protocol):
    """Runs one instance of a class. One thread at a time, except for `close`."""

    def predict(self, batch: Tensors, rows: int | None) -> Tensors:
        """Run the class and check its outputs; the caller owns them.

        Args:
            rows: Rows that the outputs must have; ``None``: any number.

        Raises:
            Fault: The class raised, or returned other tensors than it declares.
        """

    def stream(self, batch: Tensors) -> Generator[Tensors, None, None]:
        """Run a class whose `predict` is a generator; parts are checked, and owned by the caller.

        Exhaust or close the generator before any other run. Closing it closes the class's generator at once. Raises
        what `predict` raises.
        """

    def preprocess(self, content: Sequence[bytes], about: Mapping[str, Any]) -> Tensors:
        """Make and check the inputs of one request, owned by the caller. Thread-safe. Raises what `predict` raises."""

    def postprocess(self, content: Sequence[bytes], about: Mapping[str, Any], outputs: Tensors) -> Any:
        """Make the answer to one request as a JSON value. Thread-safe. Raises what `predict` raises."""

    def close(self) -> None:
        """Let the class free its resources. Idempotent.

        Ends a run in another thread together with its process. In the server's process that is impossible: the run
        continues, and the class's `close` is not called.
        """


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How to load a class.

    Attributes:
        declared: The class's declarations.
        made: Inputs as `preprocess` returns them: shapes with any number of rows.
        rows_at: Row axis by tensor name; ``None``: no rows.
        processor_threads: Threads that call `preprocess` and `postprocess` at once; 0: none.
        timeout_s: For the load, seconds.
    """

    model: str
    file: Path
    declared: Declaration
    made: tuple[Declared, ...]
    rows_at: Mapping[str, int] | None
    device: str
    threads: int
    parameters: Mapping[str, Any]
    processor_threads: int = 0
    timeout_s: float = 600.0

    def context(self) -> dict[str, Any]:
        """The fields of `host.Context`."""
        return {
            "folder": str(self.file.parent.absolute()),
            "device": self.device,
            "threads": self.threads,
            "parameters": dict(self.parameters),
        }


def _too_slow(load: LoadSettings) -> Fault:
    return Fault(
        f"importing {load.file.name} and setup have not ended within {load.timeout_s:g} s; see"
        " backend_options.setup_timeout_s"
    )


class InProcess:
    """Runs the class in this process.

    Raises:
        Fault: The class cannot be loaded, or that takes too long: its thread is then left behind, and closes the class.
    """

    def __init__(self, load: LoadSettings) -> None:
        self._name = load.model
        self._running = Lock()
        made: Future[host.Model] = Future()
        # Another thread, since there is no other way to give up on one that does not return.
        in_thread("setup", lambda: self._load(load, made))
        wait([made], load.timeout_s)
        if made.cancel():  # not where it ends at this moment
            raise _too_slow(load)
        self._model: host.Model | None = made.result()

    @staticmethod
    def _load(load: LoadSettings, made: Future[host.Model]) -> None:
        file, declared = str(load.file.absolute()), load.declared
        context = Context(**load.context())
        try:
            model = host.Model(file, declared.name, load.made, declared.outputs, load.rows_at, context)
        except BaseException as error:
            if made.set_running_or_notify_cancel():
                made.set_exception(error)
            return
        if made.set_running_or_notify_cancel():
            made.set_result(model)
            return
        logger.warning("model %r: setup has ended, too late: what it made is closed", load.model)
        _close(load.model, model)
        del model
        gc.collect()

    def predict(self, batch: Tensors, rows: int | None) -> Tensors:
        """Copy the result: the class may reuse its memory."""
        with self._running:
            return _own(self._loaded().predict(_read_only(batch), rows))

    def stream(self, batch: Tensors) -> Generator[Tensors, None, None]:
        """Copy each part, as `predict` does."""
        with self._running, closing(self._loaded().stream(_read_only(batch))) as parts:
            for part in parts:
                yield _own(part)

    def preprocess(self, content: Sequence[bytes], about: Mapping[str, Any]) -> Tensors:
        """Copy the result, as `predict` does."""
        return _own(self._loaded().preprocess(host.make_request(content, **about)))

    def postprocess(self, content: Sequence[bytes], about: Mapping[str, Any], outputs: Tensors) -> Any:
        """Call the class."""
        return self._loaded().postprocess(host.make_request(content, **about), _read_only(outputs))

    def close(self) -> None:
        """Close it unless it runs, and collect its cycles: modules and classes form some."""
        model, self._model = self._model, None
        if model is None:
            return
        if not self._running.acquire(blocking=False):
            logger.warning(
                "model %r: closed inside a run that does not end: its thread and memory are lost", self._name
            )
            return
        if not in_thread("close", partial(_close, self._name, model)).ended.wait(_CLOSING_S):
            logger.warning("model %r: close has not ended within %g s and is left alone", self._name, _CLOSING_S)
            return
        self._running.release()
        del model
        gc.collect()

    def _loaded(self) -> host.Model:
        if self._model is None:
            raise RuntimeError(f"model {self._name!r} is closed")
        return self._model


def _close(name: str, model: host.Model) -> None:
    try:
        model.close()
    except Fault as fault:
        logger.error("model %r: %s", name, fault)  # noqa: TRY400 - the place in the model's file is told


def _read_only(tensors: Tensors) -> Tensors:
    seen = {name: array.view() for name, array in tensors.items()}
    for array in seen.values():
        array.flags.writeable = False
    return seen


def _own(tensors: Mapping[str, Any]) -> Tensors:
    return {name: np.array(array) for name, array in tensors.items()}


class _Channel:
    """A channel to the process, one message at a time."""

    def __init__(self, name: str) -> None:
        self.channel, self._theirs = socket.socketpair()
        self._files = [os.memfd_create(f"serve-app-{name}", os.MFD_CLOEXEC) for _ in range(2)]
        self.requests, self.answers = host.Writer(self._files[0]), host.Reader(self._files[1])
        self.poll = select.poll()

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors for the process."""
        return (self._theirs.fileno(), *self._files)

    def started(self, pid_fd: int) -> None:
        """Close the process's ends after it has started."""
        self._theirs.close()
        for fd in (self.channel.fileno(), pid_fd):
            self.poll.register(fd, select.POLLIN)

    def free(self) -> None:
        self._theirs.close()
        self.channel.close()
        files, self._files = self._files, []
        for fd in files:
            os.close(fd)


class OwnProcess:
    """Runs the class in a process of its own, which ends with this one.

    Raises:
        Fault: The class cannot be loaded, that takes too long, or the process has ended.
        ConfigError: The interpreter cannot be started.
    """

    def __init__(self, load: LoadSettings, python: Path) -> None:
        self._name = load.model
        self._kinds = {each.name: each.kind for each in load.declared.inputs}
        self._output_kinds = {each.name: each.kind for each in load.declared.outputs}
        self._lock = Lock()  # of the runs' way
        self._ending = Lock()
        self._ended = ""  # how the process ended, once it has
        self._closed = False
        self._said = ""
        self._runs = _Channel(load.model)
        self._others = [_Channel(load.model) for _ in range(load.processor_threads)]
        self._free_ways: SimpleQueue[_Channel] = SimpleQueue()
        ways = [self._runs, *self._others]
        fds = tuple(fd for way in ways for fd in way.fds)
        command = [str(python), "-I", "-u", str(Path(host.__file__).absolute()), *map(str, fds)]
        environ = clean_environ() | dict.fromkeys(_THREADS, str(load.threads))
        started: Future[subprocess.Popen[bytes]] = Future()
        # The system ends a process with the thread that started it: such a thread lives as long as this process.
        self._attendant = in_thread("output", lambda: self._start_and_log(command, fds, environ, started))
        try:
            self._process = started.result()
        except OSError as error:
            self._free()
            raise ConfigError((f"model {load.model!r}: {python} cannot be started: {error.strerror}",)) from None
        self._pid_fd = os.pidfd_open(self._process.pid)
        for way in ways:
            way.started(self._pid_fd)
        for way in self._others:
            self._free_ways.put(way)
        try:
            self._ask(
                self._runs,
                {
                    "do": "load",
                    "file": str(load.file.absolute()),
                    "class": load.declared.name,
                    "inputs": load.made,
                    "outputs": load.declared.outputs,
                    "rows_at": load.rows_at,
                    "context": load.context(),
                },
                load.timeout_s,
            )
        except TimeoutError:
            self._kill()
            self.close()
            raise _too_slow(load) from None
        except SessionLost:
            self.close()
            hint = "; its environment must have numpy" if self._said.endswith("No module named 'numpy'") else ""
            raise Fault(f"its process {self._ended}: {self._said or 'it said nothing'}{hint}") from None
        except BaseException:
            self.close()
            raise

    def predict(self, batch: Tensors, rows: int | None) -> Tensors:
        """Ask the process."""
        with self._lock:
            way = self._alive(self._runs)
            told = way.requests.write([(name, self._kinds[name], array) for name, array in batch.items()])
            return _own(way.answers.read(self._ask(way, {"do": "run", "rows": rows, **told})))

    def stream(self, batch: Tensors) -> Generator[Tensors, None, None]:
        """Ask for one part after the other: the process makes each on demand."""
        with self._lock:
            way = self._alive(self._runs)
            told = way.requests.write([(name, self._kinds[name], array) for name, array in batch.items()])
            answer = self._ask(way, {"do": "stream", **told})
            while "tensors" in answer:
                try:
                    yield _own(way.answers.read(answer))
                except BaseException:
                    self._ask(way, {"do": "stop"})
                    raise
                answer = self._ask(way, {"do": "next"})

    def preprocess(self, content: Sequence[bytes], about: Mapping[str, Any]) -> Tensors:
        """Ask the process, beside a run."""
        with self._free_channel() as way:
            told = way.requests.write([_sent(content)])
            return _own(way.answers.read(self._ask(way, {"do": "preprocess", "request": dict(about), **told})))

    def postprocess(self, content: Sequence[bytes], about: Mapping[str, Any], outputs: Tensors) -> Any:
        """Ask the process, beside a run."""
        with self._free_channel() as way:
            tensors = [(name, self._output_kinds[name], array) for name, array in outputs.items()]
            told = way.requests.write([_sent(content), *tensors])
            return self._ask(way, {"do": "postprocess", "request": dict(about), **told})["answer"]

    def close(self) -> None:
        """End the process: cleanly, unless a run is active or it takes too long."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._ended:
                    self._ask(self._runs, {"do": "close"}, _CLOSING_S)
            except Fault as fault:
                logger.error("model %r: %s", self._name, fault)  # noqa: TRY400 - the place in its file is told
            except (SessionLost, TimeoutError):
                pass
            finally:
                self._lock.release()
        if not self._closed:
            self._kill()  # which ends what is under way in other threads
        with self._lock:
            if not self._closed:
                self._closed = True
                self._ended = self._ended or "was closed"
                ways = [self._free_ways.get() for _ in self._others]  # all of them have been answered then
                self._process.wait()
                self._attendant.ended.wait(_LAST_WORDS_S)
                os.close(self._pid_fd)
                self._free()
                for way in ways:
                    self._free_ways.put(way)

    @contextmanager
    def _free_channel(self) -> Iterator[_Channel]:
        """Acquire a free channel."""
        way = self._free_ways.get()
        try:
            yield self._alive(way)
        finally:
            self._free_ways.put(way)

    def _alive(self, way: _Channel) -> _Channel:
        if self._ended:
            raise SessionLost(f"the process of the model {self._ended}")
        return way

    def _free(self) -> None:
        for way in (self._runs, *self._others):
            way.free()

    def _kill(self) -> None:
        """Kill the process and its children. Its id is still valid, since it has not been waited for."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _ask(self, way: _Channel, message: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Send a message and wait for the answer. The caller owns the channel."""
        answer = None
        with suppress(ConnectionError):
            host.send(way.channel, message)
            found = way.poll.poll(None if timeout_s is None else timeout_s * 1000)
            if not found:
                raise TimeoutError
            if way.channel.fileno() in dict(found):
                answer = host.receive(way.channel)
        if answer is None:
            self._note_end()
            raise SessionLost(f"the process of the model {self._ended}")
        if "fault" in answer:
            raise Fault(answer["fault"], answer["where"], refused=answer.get("refused", False))
        return answer

    def _note_end(self) -> None:
        with self._ending:
            if self._ended:
                return
            self._kill()
            end = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self._attendant.ended.wait(_LAST_WORDS_S)
            assert end is not None
            if end.si_code == os.CLD_EXITED:
                self._ended = f"has ended with status {end.si_status}"
            else:
                self._ended = f"was ended by {signal.Signals(end.si_status).name}"
            logger.error("model %r: its process %s: %s", self._name, self._ended, self._said or "it said nothing")

    def _start_and_log(
        self,
        command: list[str],
        fds: tuple[int, ...],
        environ: Mapping[str, str],
        started: Future[subprocess.Popen[bytes]],
    ) -> None:
        """Start the process, and log its output until it ends."""
        try:
            process = subprocess.Popen(  # noqa: S603 - the operator names the interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                env=environ,
                start_new_session=True,
            )
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(process)
        assert process.stdout is not None
        with process.stdout as output:
            while line := output.readline(_LINE_BYTES):
                if text := line.decode("utf-8", "replace").rstrip():
                    self._said = text
                    logger.warning("%s: %s", self._name, text)  # which the configured level of a log rarely hides
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def _sent(content: Sequence[bytes]) -> tuple[str, str, Any]:
    """A request's content in the form of a tensor."""
    array = np.empty(len(content), np.object_)
    array[:] = content
    return host.CONTENT, "bytes", array
