"""Loads, runs and checks a class that answers requests; also the program that does so in another process.

The server imports this file to run a class in its own process. An interpreter without serve_app runs it as a program,
so it needs only Python 3.8 and numpy of any version:

    python -I -u host.py SOCKET REQUESTS ANSWERS [SOCKET REQUESTS ANSWERS]...

Messages are JSON on a Unix socket, one answer for each; the server asks for each part of a streamed answer. Tensors are
in shared memory: the server writes those of requests, the program those of answers, and each side reads the other's.
The first three arguments serve runs of the model. Each further three have a thread of their own, for `preprocess` and
`postprocess` beside the runs.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import json
import math
import mmap
import os
import socket
import struct
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from typing import Any

    Spec = tuple[str, str, tuple[int, ...]]
    """Name, type and shape of a tensor, as a class declares it; the shape of a text is that of the array."""
    _Checked = tuple[str, str, "np.dtype[Any]", tuple[int, ...]]

TEXT = ("str", "bytes")
"""Types whose arrays hold objects."""

CONTENT = ""
"""Name of what a client sent, among the tensors of a message: no tensor has it."""

_LENGTH = struct.Struct("<I")
_LENGTHS = "<u4"
_ALIGNMENT = 64
_GRAIN = 1 << 20
_CODE_SUFFIXES = importlib.machinery.SOURCE_SUFFIXES
_numbers = itertools.count(1)
_END = object()


class Fault(Exception):
    """A fault of a class, in one line.

    Args:
        message: Without paths.
        where: File and line of the class's code, if known.
        refused: Whether the class refuses the client's input: the client's fault.
    """

    def __init__(self, message: str, where: str = "", *, refused: bool = False) -> None:
        super().__init__(message, where)
        self.message = message
        self.where = where
        self.refused = refused

    def __str__(self) -> str:
        return f"{self.message} ({self.where})" if self.where else self.message


class InvalidRequest(Exception):
    """A request cannot be answered. Classes use `context.InvalidRequest`; clients see its message."""


class Request:
    """One client's request, for `preprocess` and `postprocess`.

    Attributes:
        inputs: For JSON, the value of ``inputs``; for an image or audio, its bytes; otherwise a list of texts.
        parameters: The request's ``parameters`` by name: text, numbers, booleans, and lists of them.
        content_type: Media type of an image or audio; empty if the client named none.
    """

    def __init__(self, inputs: Any, parameters: Mapping[str, Any], content_type: str = "") -> None:
        self.inputs = inputs
        self.parameters = dict(parameters)
        self.content_type = content_type

    def __repr__(self) -> str:
        return f"<Request {type(self.inputs).__name__} {self.content_type}>"


def make_request(
    content: Sequence[bytes],
    kind: str,
    content_type: str = "",
    parameters: Mapping[str, Any] = types.MappingProxyType({}),
) -> Request:
    """Make the class's view of a request.

    Args:
        content: One file, one JSON value, or UTF-8 texts.
        kind: ``json``, ``text``, or a file's kind.

    Raises:
        Fault: The content is no JSON; the client's fault.
    """
    if kind == "text":
        return Request([text.decode() for text in content], parameters)
    if kind != "json":
        return Request(content[0], parameters, content_type)
    try:
        return Request(json.loads(content[0]), parameters)
    except RecursionError:
        raise Fault("inputs: nested too deeply", refused=True) from None
    except ValueError as error:
        raise Fault(f"inputs: no JSON: {error}", refused=True) from None


class Context:
    """The argument of `setup`.

    Attributes:
        InvalidRequest: Raised by `preprocess` and `postprocess` for a request that cannot be answered.
        folder: Of the model's file.
        device: ``cpu`` or ``cuda``.
        threads: Threads of one run.
        parameters: ``backend_options.parameters``.
    """

    InvalidRequest = InvalidRequest

    def __init__(self, folder: str, device: str, threads: int, parameters: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.device = device
        self.threads = threads
        self.parameters = dict(parameters)

    def __repr__(self) -> str:
        return f"<Context {self.folder} {self.device}>"


def dtype_of(kind: str) -> np.dtype[Any]:
    """The numpy dtype of a declared type.

    Raises:
        Fault: This interpreter has no such dtype.
    """
    if kind in TEXT:
        return np.dtype(object)
    if kind == "bfloat16":
        try:
            import ml_dtypes  # noqa: PLC0415 - the interpreter of a model need not have it
        except ImportError:
            raise Fault("bfloat16 needs the package ml_dtypes in the model's environment") from None
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(kind)


# --- The class --------------------------------------------------------------------------------------------------------


class _Source(importlib.machinery.SourceFileLoader):
    """Leaves no ``__pycache__`` in a model's folder, whose files identify the model's state."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing."""


class Model:
    """An instance of a class, set up.

    Its file is a module of a package that is the model's folder: `from .features import scale` imports a file beside
    it, and two models may have modules of one name.

    Args:
        class_name: Its name in the file.
        inputs: Tensors that `preprocess` returns, if defined.
        outputs: Declared.
        rows_at: Row axis of each tensor; ``None``: no rows.

    Raises:
        Fault: The file cannot be imported, or the class cannot be made or set up.
    """

    def __init__(
        self,
        file: str,
        class_name: str,
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        rows_at: Mapping[str, int] | None,
        context: Context,
    ) -> None:
        self._file = Path(file)
        self._folder = str(self._file.parent)
        self._package = f"served_model_{next(_numbers)}"
        self._inputs, self._outputs = (
            [(name, kind, dtype_of(kind), tuple(shape)) for name, kind, shape in side] for side in (inputs, outputs)
        )
        self._rows_at = rows_at
        try:
            self._instance = self._set_up(self._import(class_name), context)
        except BaseException:
            self._forget()
            raise

    def predict(self, batch: dict[str, Any], rows: int | None) -> dict[str, Any]:
        """Run the class and check its result, which may be memory that it reuses.

        Args:
            batch: By name; read-only.
            rows: Rows that the outputs must have; ``None``: any number.

        Raises:
            Fault: The class raised, or returned other tensors than it declares.
        """
        returned = self._call_guarded(lambda: self._instance.predict(batch), "the model failed on this input")
        return self._all_checked("predict", "output", self._outputs, returned, rows)

    def stream(self, batch: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Run a class whose `predict` is a generator. Each part is checked; it may have any number of rows.

        Closing the generator closes the class's at once.

        Args:
            batch: By name; read-only.

        Raises:
            Fault: The class raised, or yielded other tensors than it declares.
        """
        what = "the model failed on this input"
        made = self._call_guarded(lambda: self._instance.predict(batch), what)
        if not isinstance(made, types.GeneratorType):
            raise Fault(f"predict returned {_article(made)}; it was read as a generator, which yields parts")
        try:
            while True:
                part = self._call_guarded(lambda: next(made, _END), what)
                if part is _END:
                    return
                yield self._all_checked("predict", "output", self._outputs, part, None, "yielded")
        finally:
            self._call_guarded(made.close, "predict failed when it was closed")

    def preprocess(self, request: Request) -> dict[str, Any]:
        """Make and check the inputs of one request. Thread-safe.

        Raises:
            Fault: The class raised, refused the request, or returned other tensors than it declares.
        """
        returned = self._call_guarded(lambda: self._instance.preprocess(request), "preprocess failed on this request")
        made = self._all_checked("preprocess", "input", self._inputs, returned, None)
        rows = {name: self._rows(name, array) for name, array in made.items()}
        if len(set(rows.values())) > 1:
            listed = ", ".join(f"{name!r} with {count}" for name, count in rows.items())
            raise Fault(f"preprocess returned inputs of different numbers of rows: {listed}")
        if 0 in rows.values():
            raise Fault("preprocess returned no rows: refuse such a request by context.InvalidRequest")
        return made

    def postprocess(self, request: Request, outputs: dict[str, Any]) -> Any:
        """Make the answer to one request as a JSON value. Thread-safe.

        Without `postprocess`, the answer is the outputs by name.

        Args:
            outputs: Of this request's rows; read-only.

        Raises:
            Fault: The class raised, refused the request, or returned a value without a JSON form.
        """
        returned: Any = outputs
        if hasattr(self._instance, "postprocess"):
            call = self._instance.postprocess
            returned = self._call_guarded(lambda: call(request, outputs), "postprocess failed on this request")
        try:
            return _plain(returned)
        except RecursionError:
            raise Fault("postprocess returned something that holds itself, or is nested too deeply for JSON") from None

    def close(self) -> None:
        """Let the class free its resources, and unload its modules. Idempotent.

        Raises:
            Fault: Its `close` raised.
        """
        instance, self._instance = self._instance, None
        try:
            if hasattr(instance, "close"):
                self._call_guarded(instance.close, "close failed")
        finally:
            self._forget()

    def _import(self, class_name: str) -> type:
        package = types.ModuleType(self._package)
        package.__path__ = [self._folder]
        sys.modules[self._package] = package
        sys.path_importer_cache[self._folder] = importlib.machinery.FileFinder(
            self._folder,
            (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
            (_Source, _CODE_SUFFIXES),
        )
        stem = self._file.stem if self._file.stem.isidentifier() else "model"
        name = f"{self._package}.{stem}"
        spec = importlib.util.spec_from_file_location(name, self._file, loader=_Source(name, str(self._file)))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        execute = spec.loader.exec_module
        self._call_guarded(lambda: execute(module), f"{self._file.name} cannot be imported")
        found = getattr(module, class_name, None)
        if not isinstance(found, type):
            raise Fault(f"{self._file.name} has no class {class_name}")
        return found

    def _set_up(self, found: type, context: Context) -> Any:
        if not callable(getattr(found, "predict", None)):
            raise Fault(f"class {found.__name__} has no method predict: write def predict(self, batch)")
        instance = self._call_guarded(found, f"{found.__name__}() failed")
        if hasattr(instance, "setup"):
            self._call_guarded(lambda: instance.setup(context), f"{found.__name__}.setup failed")
        return instance

    def _call_guarded(self, call: Any, what: str) -> Any:
        try:
            return call()
        except InvalidRequest as error:
            raise Fault(
                _first_line(error) or "the model refuses this request", self._where(error), refused=True
            ) from None
        except (Exception, SystemExit) as error:
            raise Fault(f"{what}: {_described(error)}{self._advice(error)}", self._where(error)) from None

    def _advice(self, error: BaseException) -> str:
        """The remedy for a common error."""
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            beside = error.name.partition(".")[0]
            if any(Path(self._folder, beside + end).exists() for end in (".py", "/__init__.py")):
                return f"; {beside} lies beside the model's file: write from . import {beside}"
        if isinstance(error, ValueError) and "read-only" in str(error):
            return "; inputs are read-only: copy an array before you change it"
        return ""

    def _where(self, error: BaseException) -> str:
        """The last line of the model's own code in an error's traceback."""
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(self._folder)
        ]
        return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""

    def _all_checked(
        self,
        method: str,
        what: str,
        declared: Sequence[_Checked],
        returned: Any,
        rows: int | None,
        gave: str = "returned",
    ) -> dict[str, Any]:
        names = [name for name, *_ in declared]
        if not isinstance(returned, dict):
            listed = ", ".join(f"{name!r}: ..." for name in names)
            if isinstance(returned, types.GeneratorType):
                raise Fault(f"{method} {gave} a generator: to answer in parts, write yield from in predict itself")
            must = "yield dicts" if gave == "yielded" else "return a dict"
            raise Fault(f"{method} {gave} {_article(returned)}; it must {must} of arrays: {{{listed}}}")
        if missing := [name for name in names if name not in returned]:
            raise Fault(
                f"{method} {gave} no {what} {missing[0]!r}, which the model declares; {_listed(returned, gave)}"
            )
        if len(returned) > len(names):
            extra = next(name for name in returned if name not in names)
            raise Fault(f"{method} {gave} {what} {extra!r}, which the model does not declare")
        return {
            name: self._checked(f"{what} {name!r}", name, kind, dtype, shape, returned[name], rows)
            for name, kind, dtype, shape in declared
        }

    def _rows(self, name: str, array: Any) -> int:
        """Rows of an input; 1 for inputs without rows."""
        return 1 if self._rows_at is None else int(array.shape[self._rows_at[name]])

    def _checked(
        self,
        what: str,
        name: str,
        kind: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        value: Any,
        rows: int | None,
    ) -> Any:
        declared = f"the model declares {kind} {list(shape)}"
        if not isinstance(value, (np.ndarray, np.generic)):
            raise Fault(f"{what} is {_article(value)}, no numpy array; {declared}")
        array = np.asarray(value)
        found = f"{what} is {array.dtype.name} {list(array.shape)}"
        if kind in TEXT:
            array = _texts(what, array)
        elif array.dtype != dtype and array.dtype.name != dtype.name:  # another order of bytes is another dtype
            raise Fault(f"{found}; {declared}: return {name}.astype({kind!r})")
        if array.ndim != len(shape) or any(size not in (-1, here) for size, here in zip(shape, array.shape)):  # noqa: B905 - Python 3.8
            raise Fault(f"{found}; {declared}")
        axis = 0 if self._rows_at is None else self._rows_at[name]
        if rows is not None and array.shape[axis : axis + 1] != (rows,):
            raise Fault(f"{found} for {rows} rows; {declared}, with a row for each of the inputs")
        return array

    def _forget(self) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == self._package]:
            del sys.modules[name]


def _texts(what: str, array: Any) -> Any:
    if array.dtype.kind in "US":
        return array.astype(object)
    if array.dtype.kind != "O" or not all(isinstance(value, (str, bytes)) for value in array.ravel().tolist()):
        raise Fault(f"{what} is {array.dtype.name}, not text; return an array of str or of bytes")
    return array


def _plain(value: Any, place: str = "") -> Any:
    """A value as JSON can hold it: arrays become lists.

    Raises:
        Fault: A value has no JSON form; names its place.
    """
    where = f" at {place}" if place else ""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.name == "bfloat16":
            value = value.astype(np.float32)
        kind = value.dtype.kind
        plain = kind in "biu" or (kind == "f" and value.dtype.itemsize <= 8 and np.isfinite(value).all())
        value = value.tolist()
        if plain:
            return value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Fault(f"postprocess returned {value}{where}, which JSON does not have")
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{place}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise Fault(f"postprocess returned a dict{where} with {_article(key)} as a key; JSON has texts only")
        return {key: _plain(each, f"{place}.{key}" if place else key) for key, each in value.items()}
    hint = "; write value.decode()" if isinstance(value, bytes) else ""
    raise Fault(f"postprocess returned {_article(value)}{where}, which has no form in JSON{hint}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _described(error: BaseException) -> str:
    first = _first_line(error)
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _article(value: Any) -> str:
    kind = type(value).__name__
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _listed(returned: Mapping[Any, Any], gave: str) -> str:
    return f"it {gave} {', '.join(map(repr, returned))}" if returned else f"it {gave} none"


# --- What travels -----------------------------------------------------------------------------------------------------


class Writer:
    """Shared memory that this side writes and the other reads.

    Args:
        fd: A file in memory, which grows as needed.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = 0
        self._memory: mmap.mmap | bytes = b""

    def write(self, tensors: Sequence[tuple[str, str, Any]]) -> dict[str, Any]:
        """Write tensors over the previous ones. Returns their places.

        Args:
            tensors: Name, type and array of each.
        """
        parts = []
        told = []
        end = 0
        for name, kind, array in tensors:
            shape = list(array.shape)
            if kind in TEXT:
                values = [value.encode() if isinstance(value, str) else value for value in array.ravel().tolist()]
                lengths = np.array([len(value) for value in values], _LENGTHS)
                array = np.frombuffer(lengths.tobytes() + b"".join(values), np.uint8)  # noqa: PLW2901
            told.append([name, kind, shape, end, array.nbytes])
            parts.append((end, np.dtype(np.uint8) if kind in TEXT else dtype_of(kind), array))
            end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        if end > self._size:
            self._size = -(-end // _GRAIN) * _GRAIN
            os.ftruncate(self._fd, self._size)
            self._memory = mmap.mmap(self._fd, self._size)
        for start, dtype, array in parts:
            if array.nbytes:
                place = np.frombuffer(self._memory, dtype, array.size, start)
                np.copyto(place.reshape(array.shape), array)
        return {"tensors": told, "size": self._size}


class Reader:
    """Shared memory that the other side writes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size = 0
        self._memory: mmap.mmap | bytes = b""

    def read(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """The written tensors: read-only views, which the next write overwrites.

        Raises:
            ValueError: They are outside the memory.
        """
        if told["size"] > self._size:
            self._size = told["size"]
            self._memory = mmap.mmap(self._fd, self._size, prot=mmap.PROT_READ)
        found = {}
        for name, kind, shape, start, nbytes in told["tensors"]:
            if kind in TEXT:
                found[name] = self._text(kind, shape, start, nbytes)
                continue
            dtype = dtype_of(kind)
            count = nbytes // dtype.itemsize
            flat = np.frombuffer(self._memory, dtype, count, start) if nbytes else np.empty(0, dtype)
            found[name] = flat.reshape(shape)
        return found

    def _text(self, kind: str, shape: Sequence[int], start: int, nbytes: int) -> Any:
        raw = np.frombuffer(self._memory, np.uint8, nbytes, start).tobytes() if nbytes else b""
        count = 1
        for size in shape:
            count *= size
        texts = np.empty(count, object)
        at = 4 * count
        for index, length in enumerate(np.frombuffer(raw, _LENGTHS, count).tolist()):
            value = raw[at : at + length]
            texts[index] = value.decode() if kind == "str" else value
            at += length
        return texts.reshape(shape)


def send(channel: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message."""
    body = json.dumps(message).encode()
    channel.sendall(_LENGTH.pack(len(body)) + body)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message; ``None`` if the other side has closed."""
    received = b""
    wanted = _LENGTH.size
    while len(received) < wanted:
        part = channel.recv(max(65536, wanted - len(received)))
        if not part:
            return None
        received += part
        if wanted == _LENGTH.size and len(received) >= wanted:
            wanted += _LENGTH.unpack_from(received)[0]
    message: dict[str, Any] = json.loads(received[_LENGTH.size : wanted])
    return message


# --- The program ------------------------------------------------------------------------------------------------------


def _end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies."""
    try:
        import ctypes  # noqa: PLC0415 - left out of some builds of Python
    except ImportError:
        return  # the end of the socket tells, too, between two runs
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


class _Channel:
    """A socket with its shared memory; messages are answered in order."""

    def __init__(self, channel_fd: int, requests_fd: int, answers_fd: int) -> None:
        for fd in (channel_fd, requests_fd, answers_fd):
            os.set_inheritable(fd, False)
        self._channel = socket.socket(fileno=channel_fd)
        self._requests, self._answers = Reader(requests_fd), Writer(answers_fd)

    def serve(self, program: _Program) -> None:
        """Answer until the other side has closed."""
        while (message := receive(self._channel)) is not None:
            try:
                tensors = self._requests.read(message) if "tensors" in message else {}
                answer = program.answer(message, tensors, self._answers)
            except Fault as fault:
                answer = {"fault": fault.message, "where": fault.where, "refused": fault.refused}
            except Exception as error:  # of ours, such as no memory for an answer: the next request may fit
                answer = {"fault": _described(error), "where": ""}
            send(self._channel, answer)


class _Program:
    """The model of this process."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._kinds: dict[str, dict[str, str]] = {}
        self._parts: Generator[dict[str, Any], None, None] | None = None  # of the answer that is being given

    def answer(self, message: dict[str, Any], tensors: dict[str, Any], answers: Writer) -> dict[str, Any]:
        """Execute a message."""
        do = message["do"]
        if do == "load":
            inputs, outputs = message["inputs"], message["outputs"]
            for side in ("inputs", "outputs"):
                self._kinds[side] = {name: kind for name, kind, _ in message[side]}
            context = Context(**message["context"])
            self._model = Model(message["file"], message["class"], inputs, outputs, message["rows_at"], context)
            return {}
        model = self._model
        if model is None:
            return {}
        if do == "close":
            self._model = None
            model.close()
            return {}
        if do == "run":
            return self._write_answer(model.predict(tensors, message["rows"]), "outputs", answers)
        if do == "stream":
            self._parts = model.stream(tensors)
        if do in ("stream", "next"):
            part = None if self._parts is None else next(self._parts, None)
            return {} if part is None else self._write_answer(part, "outputs", answers)
        if do == "stop":
            parts, self._parts = self._parts, None
            if parts is not None:
                parts.close()
            return {}
        request = make_request(tensors.pop(CONTENT).ravel().tolist(), **message["request"])
        if do == "preprocess":
            return self._write_answer(model.preprocess(request), "inputs", answers)
        return {"answer": model.postprocess(request, tensors)}

    def _write_answer(self, made: dict[str, Any], side: str, answers: Writer) -> dict[str, Any]:
        return answers.write([(name, self._kinds[side][name], array) for name, array in made.items()])


def _main(fds: Sequence[int]) -> None:
    _end_with_parent()
    program = _Program()
    first, *others = [_Channel(*fds[start : start + 3]) for start in range(0, len(fds), 3)]
    for way in others:
        threading.Thread(target=way.serve, args=(program,), daemon=True).start()
    first.serve(program)


if __name__ == "__main__":
    _main(list(map(int, sys.argv[1:])))
