"""A class that has been loaded: in the server's process, or in one of its own."""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, Protocol

import numpy as np

from serve_app.backends.backend import SessionLost
from serve_app.backends.python import host
from serve_app.backends.python.declaration import Declaration
from serve_app.backends.python.environment import clean_environ
from serve_app.backends.python.host import Context, Fault
from serve_app.errors import ConfigError
from serve_app.payloads import Tensors

logger = logging.getLogger(__name__)

_CLOSING_S: Final = 5.0
"""For how long a class may close what it has, seconds."""

_LAST_WORDS_S: Final = 1.0
"""For how long what an ended process said is waited for, seconds: one that it has started may still hold its output."""

_LINE_BYTES: Final = 4096
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")


class PythonSession(Protocol):
    """Asks one instance of a class. One thread at a time, but for `close`."""

    def predict(self, batch: Tensors, rows: int | None) -> Tensors:
        """What the class returns, checked; the caller's own.

        Args:
            batch: Every input by name.
            rows: That the outputs must have; ``None``: any number.

        Raises:
            Fault: It raised, or returned something else than it declares.
            SessionLost: Its process has ended.
        """

    def close(self) -> None:
        """Let the class free what it holds. Idempotent; a run that is under way in another thread is ended."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What to load.

    Attributes:
        model: The model's name, for messages.
        file: Its file.
        declared: What its class declares.
        rows_at: The axis of the rows by the name of an output; ``None``: they have none.
        device: ``cpu`` or ``cuda``.
        threads: Threads that one run computes with.
        parameters: For `setup`.
    """

    model: str
    file: Path
    declared: Declaration
    rows_at: Mapping[str, int] | None
    device: str
    threads: int
    parameters: Mapping[str, Any]

    def context(self) -> dict[str, Any]:
        """What `host.Context` is made of."""
        return {
            "folder": str(self.file.parent.absolute()),
            "device": self.device,
            "threads": self.threads,
            "parameters": dict(self.parameters),
        }


class InProcess:
    """In this process.

    Raises:
        Fault: The class cannot be loaded.
    """

    def __init__(self, load: LoadSettings) -> None:
        self._model_name = load.model
        file = str(load.file.absolute())
        self._model: host.Model | None = host.Model(
            file, load.declared.name, load.declared.outputs, load.rows_at, Context(**load.context())
        )

    def predict(self, batch: Tensors, rows: int | None) -> Tensors:
        """Ask it. What it returns is copied: it may be memory that it uses again."""
        if self._model is None:
            raise RuntimeError(f"model {self._model_name!r} is closed")
        seen = {name: array.view() for name, array in batch.items()}
        for array in seen.values():
            array.flags.writeable = False
        return {name: np.array(array) for name, array in self._model.predict(seen, rows).items()}

    def close(self) -> None:
        """Close it, and collect what it leaves in cycles: a module and its classes always are in some."""
        model, self._model = self._model, None
        if model is not None:
            _close(self._model_name, model)
            gc.collect()


def _close(name: str, model: host.Model) -> None:
    try:
        model.close()
    except Fault as fault:
        logger.error("model %r: %s", name, fault)  # noqa: TRY400 - the place in the model's file is told


class OwnProcess:
    """In a process of its own, which ends with this one.

    Args:
        load: What to load.
        python: The interpreter.

    Raises:
        Fault: The class cannot be loaded, or the process has ended meanwhile.
        ConfigError: The interpreter cannot be started.
    """

    def __init__(self, load: LoadSettings, python: Path) -> None:
        self._name = load.model
        self._kinds = {each.name: each.kind for each in load.declared.inputs}
        self._lock = Lock()
        self._ended = ""  # how the process ended, once it has
        self._closed = False
        self._said = ""
        self._channel, theirs = socket.socketpair()
        self._files = [os.memfd_create(f"serve-app-{name}", os.MFD_CLOEXEC) for name in ("requests", "answers")]
        self._requests, self._answers = host.Writer(self._files[0]), host.Reader(self._files[1])
        fds = (theirs.fileno(), *self._files)
        command = [str(python), "-I", "-u", str(Path(host.__file__).absolute()), *map(str, fds)]
        environ = clean_environ() | dict.fromkeys(_THREADS, str(load.threads))
        started: Future[subprocess.Popen[bytes]] = Future()
        # The system ends a process with the thread that started it: this one lives as long as that.
        self._attendant = Thread(target=self._attend, args=(command, fds, environ, started), daemon=True)
        self._attendant.start()
        try:
            self._process = started.result()
        except OSError as error:
            self._free()
            raise ConfigError((f"model {load.model!r}: {python} cannot be started: {error.strerror}",)) from None
        finally:
            theirs.close()
        self._pid_fd = os.pidfd_open(self._process.pid)
        self._poll = select.poll()
        for fd in (self._channel.fileno(), self._pid_fd):
            self._poll.register(fd, select.POLLIN)
        try:
            self._ask(
                {
                    "do": "load",
                    "file": str(load.file.absolute()),
                    "class": load.declared.name,
                    "outputs": load.declared.outputs,
                    "rows_at": load.rows_at,
                    "context": load.context(),
                }
            )
        except SessionLost:
            self.close()
            hint = "; its environment must have numpy" if self._said.endswith("No module named 'numpy'") else ""
            raise Fault(f"its process {self._ended}: {self._said or 'it said nothing'}{hint}") from None
        except BaseException:
            self.close()
            raise

    def predict(self, batch: Tensors, rows: int | None) -> Tensors:
        """Ask it."""
        with self._lock:
            if self._ended:
                raise SessionLost(f"the process of the model {self._ended}")
            told = self._requests.write([(name, self._kinds[name], array) for name, array in batch.items()])
            answer = self._ask({"do": "run", "rows": rows, **told})
            return {name: np.array(array) for name, array in self._answers.read(answer).items()}

    def close(self) -> None:
        """End the process: in order, unless it is inside a run or takes too long."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._ended:
                    self._ask({"do": "close"}, _CLOSING_S)
            except Fault as fault:
                logger.error("model %r: %s", self._name, fault)  # noqa: TRY400 - the place in its file is told
            except (SessionLost, TimeoutError):
                pass
            finally:
                self._lock.release()
        if not self._closed:
            self._kill()  # which ends a run that is under way in another thread
        with self._lock:
            if not self._closed:
                self._closed = True
                self._ended = self._ended or "was closed"
                self._process.wait()
                self._attendant.join(_LAST_WORDS_S)
                os.close(self._pid_fd)
                self._free()

    def _free(self) -> None:
        self._channel.close()
        for fd in self._files:
            os.close(fd)

    def _kill(self) -> None:
        """End the process and those that it has started. Nothing has waited for it yet: its id is still its own."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _ask(self, message: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Send a message and wait for the answer. The lock is held, or nobody else knows of this session yet."""
        answer = None
        with suppress(ConnectionError):
            host.send(self._channel, message)
            found = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
            if not found:
                raise TimeoutError
            if self._channel.fileno() in dict(found):
                answer = host.receive(self._channel)
        if answer is None:
            self._note_end()
            raise SessionLost(f"the process of the model {self._ended}")
        if "fault" in answer:
            raise Fault(answer["fault"], answer["where"])
        return answer

    def _note_end(self) -> None:
        self._kill()
        end = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._attendant.join(_LAST_WORDS_S)
        assert end is not None
        if end.si_code == os.CLD_EXITED:
            self._ended = f"has ended with status {end.si_status}"
        else:
            self._ended = f"was ended by {signal.Signals(end.si_status).name}"
        logger.error("model %r: its process %s: %s", self._name, self._ended, self._said or "it said nothing")

    def _attend(
        self,
        command: list[str],
        fds: tuple[int, ...],
        environ: Mapping[str, str],
        started: Future[subprocess.Popen[bytes]],
    ) -> None:
        """Start the process, and put what it says into the log until it has ended."""
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
