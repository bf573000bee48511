"""A class may do anything: what it does wrong is told in one line, costs its own request, and the next one works.

All of it both in the server's process and in one of its own.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import python_models

from serve_app.backends.backend import Backend, SessionLost, StreamingBackend
from serve_app.backends.batch import run_entries
from serve_app.backends.description import describe_build
from serve_app.backends.kind import BuildSettings
from serve_app.backends.layout import NO_ROWS, Layout
from serve_app.backends.python.kind import PYTHON
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.replica.self_test import SelfTest

Load = Callable[..., Backend]

_BODY = """
    import numpy as np

    class Model:
        inputs = {"x": ("float32", [-1, 2])}
        outputs = {"y": ("float32", [-1, 2])}
        rows_independent = True

"""


@pytest.fixture(params=["in process", "own process"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Load]:
    """Loads a model of this code, whose class is completed by these methods."""
    loaded: list[Backend] = []
    environment = {"environment": {"python": sys.executable}} if request.param == "own process" else {}

    def make(methods: str, body: str = _BODY, **options: Any) -> Backend:
        code = textwrap.dedent(body) + textwrap.indent(textwrap.dedent(methods), "    ")
        file = python_models.write(tmp_path / f"{len(loaded)}", code)
        layout = describe_build(PYTHON, file, model="iris").layout
        build = BuildSettings("iris", file, layout=layout, threads=1)
        backend = PYTHON.create(build, PYTHON.options.model_validate(environment | options))
        loaded.append(backend)
        backend.load()
        return backend

    yield make
    for backend in loaded:
        backend.close()


def ones(rows: int = 3) -> dict[str, Any]:
    """A batch."""
    return {"x": np.ones((rows, 2), np.float32)}


def test_setup_is_told_how_to_run(load: Load) -> None:
    """Folder, device, threads and parameters."""
    backend = load(
        """
        def setup(self, context):
            assert (context.folder / "model.py").is_file()
            assert (context.device, context.threads) == ("cpu", 1)
            self.scale = context.parameters["scale"]

        def predict(self, batch):
            return {"y": batch["x"] * np.float32(self.scale)}
        """,
        parameters={"scale": 3},
    )
    assert backend.run(ones())["y"].tolist() == [[3, 3]] * 3


WRONG = (
    ("batch['x']", "predict returned a ndarray; it must return a dict of arrays: {'y': ...}"),
    ("{'z': batch['x']}", "predict returned no output 'y', which the model declares; it returned 'z'"),
    ("{'y': batch['x'], 'z': 1}", "predict returned output 'z', which the model does not declare"),
    ("{'y': [[1.0, 2.0]]}", "output 'y' is a list, no numpy array; the model declares float32 [-1, 2]"),
    (
        "{'y': batch['x'].astype('float64')}",
        "output 'y' is float64 [3, 2]; the model declares float32 [-1, 2]: return y.astype('float32')",
    ),
    ("{'y': batch['x'][:, :1]}", "output 'y' is float32 [3, 1]; the model declares float32 [-1, 2]"),
    ("{'y': batch['x'][0]}", "output 'y' is float32 [2]; the model declares float32 [-1, 2]"),
    (
        "{'y': batch['x'][:2]}",
        "output 'y' is float32 [2, 2] for 3 rows; the model declares float32 [-1, 2], with a row for each of",
    ),
    (
        "(each for each in [batch])",
        "predict returned a generator: to answer in parts, write yield from in predict itself",
    ),
    ("1 / 0", "the model failed on this input: ZeroDivisionError: division by zero"),
    ("open('/srv/secret/weights')", "the model failed on this input: FileNotFoundError: [Errno 2] No such file"),
    ("exit('now')", "the model failed on this input: SystemExit: now"),
    ("batch['x'].sort()", "inputs are read-only: copy an array before you change it"),
)
"""What a class returns, and what is said of it."""


def test_a_wrong_answer_fails_its_request_only(load: Load) -> None:
    """With what was declared and what came, and without a path of the server."""
    cases = "".join(f"    if case == {number}: return {returns}\n" for number, (returns, _) in enumerate(WRONG))
    backend = load(f"def predict(self, batch):\n    case = batch['x'][0, 1]\n{cases}    return {{'y': batch['x'] + 1}}")
    for number, (_, said) in enumerate(WRONG):
        with pytest.raises(InferenceFailed) as caught:
            backend.run({"x": np.array([[7, number], [3, 2], [5, 5]], np.float32)})
        assert said in caught.value.message
        assert "/srv" not in caught.value.message
        assert "\n" not in caught.value.message
        assert backend.run({"x": np.full((3, 2), -1, np.float32)})["y"].tolist() == [[0, 0]] * 3


WRONG_PARTS = (
    ("batch['x']", "predict yielded a ndarray; it must yield dicts of arrays: {'y': ...}"),
    ("{'z': batch['x']}", "predict yielded no output 'y', which the model declares; it yielded 'z'"),
    ("{'y': batch['x'], 'z': 1}", "predict yielded output 'z', which the model does not declare"),
    ("{'y': batch['x'][0]}", "output 'y' is float32 [2]; the model declares float32 [-1, 2]"),
    ("{'y': 1 / 0}", "the model failed on this input: ZeroDivisionError: division by zero"),
    ("{'y': next(iter(()))}", "the model failed on this input: RuntimeError: generator raised StopIteration"),
)
"""What a class yields as its second part, and what is said of it."""


def test_a_wrong_part_ends_its_answer_only(load: Load) -> None:
    """After the parts before it; a part may have any number of rows."""
    cases = "".join(f"    if case == {number}: yield {yields}\n" for number, (yields, _) in enumerate(WRONG_PARTS))
    backend = load(
        "def predict(self, batch):\n    case = batch['x'][0, 1]\n    yield {'y': batch['x'][:1]}\n"
        f"{cases}    yield {{'y': batch['x']}}"
    )
    assert isinstance(backend, StreamingBackend)
    for number, (_, said) in enumerate(WRONG_PARTS):
        stream = backend.stream({"x": np.array([[7, number], [3, 2]], np.float32)})
        assert next(stream)["y"].tolist() == [[7, number]]
        with pytest.raises(InferenceFailed) as caught:
            next(stream)
        assert said in caught.value.message
        assert [len(part["y"]) for part in backend.stream({"x": np.full((2, 2), -1, np.float32)})] == [1, 2]


def test_a_generator_that_does_not_end_in_peace(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    """What it raises when it is closed is told; the next request is answered."""
    backend = load(
        """
        def predict(self, batch):
            try:
                yield {"y": batch["x"]}
                yield {"y": batch["x"]}
            finally:
                if batch["x"][0, 0] == 1:
                    raise OSError("not now")
                if batch["x"][0, 0] == 2:
                    yield {"y": batch["x"]}
        """
    )
    assert isinstance(backend, StreamingBackend)
    for value in (1, 2):
        stream = backend.stream({"x": np.full((1, 2), value, np.float32)})
        next(stream)
        with pytest.raises(InferenceFailed, match="predict failed when it was closed"):
            stream.close()
    assert "OSError: not now" in caplog.text
    assert len(list(backend.stream({"x": np.zeros((1, 2), np.float32)}))) == 2


def test_a_process_that_dies_between_two_parts(tmp_path: Path) -> None:
    """Its session is lost, which the reader of the answer is told."""
    code = textwrap.dedent(_BODY) + textwrap.indent(
        "def predict(self, batch):\n    import os\n    yield {'y': batch['x']}\n    os.abort()\n", "    "
    )
    file = python_models.write(tmp_path, code)
    options = PYTHON.options.model_validate({"environment": {"python": sys.executable}})
    with closing(PYTHON.create(BuildSettings("iris", file, layout=NO_ROWS), options)) as backend:
        backend.load()
        assert isinstance(backend, StreamingBackend)
        stream = backend.stream(ones())
        next(stream)
        with pytest.raises(SessionLost):
            next(stream)


def test_neighbours_of_a_failing_request_are_answered(load: Load) -> None:
    """As of every backend: the batch is run again, request by request."""
    backend = load(
        """
        def predict(self, batch):
            if (batch["x"] < 0).any():
                raise ValueError("no such thing")
            return {"y": batch["x"] * 2}
        """
    )
    first, bad, last = run_entries(backend, [ones(1), {"x": -ones(1)["x"]}, ones(2)], 8).outcomes
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert (len(first["y"]), len(last["y"])) == (1, 2)
    assert isinstance(bad, InferenceFailed)
    assert bad.message == "the model failed on this input: ValueError: no such thing"


def test_a_request_that_predict_refuses_is_invalid_and_its_neighbours_are_answered(load: Load) -> None:
    """400 with the class's own words, and not 500."""
    backend = load(
        """
        def setup(self, context):
            self.InvalidRequest = context.InvalidRequest

        def predict(self, batch):
            if (batch["x"] < 0).any():
                raise self.InvalidRequest("x must not be negative")
            return {"y": batch["x"] * 2}
        """
    )
    first, bad = run_entries(backend, [ones(1), {"x": -ones(1)["x"]}], 8).outcomes
    assert isinstance(first, dict)
    assert (type(bad), str(bad)) == (InvalidRequest, "x must not be negative")


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ("def setup(self, context): raise KeyError('scale')", "Model.setup failed: KeyError: 'scale' (model.py:9)"),
        ("def __init__(self): self.x = 1 / 0", "Model() failed: ZeroDivisionError: division by zero (model.py:9)"),
        ("import nowhere", "model.py cannot be imported: ModuleNotFoundError: No module named 'nowhere' (model.py:9)"),
    ],
)
def test_a_class_that_cannot_be_loaded_is_a_fault_of_the_configuration(load: Load, methods: str, said: str) -> None:
    """One line, with the place in its file."""
    predict = "\ndef predict(self, batch): return batch\n"
    with pytest.raises(ConfigError) as caught:
        load(methods + predict)
    assert caught.value.problems == (f"model 'iris': {said}",)


def test_what_lies_beside_is_imported_from_the_folder(load: Load, tmp_path: Path) -> None:
    """Relatively, so that models have modules of their own; whoever forgets the dot is told."""
    python_models.write(tmp_path / "0", "SCALE = 2", "shared.py")
    with pytest.raises(ConfigError, match=r"shared lies beside the model's file: write from \. import shared"):
        load("import shared\ndef predict(self, batch): return batch")
    for number in (1, 2):
        python_models.write(tmp_path / str(number), f"SCALE = {number}", "shared.py")
    methods = """
        def predict(self, batch):
            from .shared import SCALE
            return {"y": batch["x"] * SCALE}
        """
    first, second = load(methods), load(methods)
    assert (first.run(ones())["y"][0, 0], second.run(ones())["y"][0, 0]) == (1, 2)
    assert not list(tmp_path.rglob("__pycache__"))


def test_an_answer_is_its_own(load: Load) -> None:
    """Though the class fills the same memory each time, or gives its input back."""
    backend = load(
        """
        def setup(self, context): self.buffer = np.zeros((3, 2), np.float32)

        def predict(self, batch):
            self.buffer[:] = batch["x"]
            return {"y": self.buffer}
        """
    )
    first = backend.run(ones())["y"]
    backend.run({"x": np.zeros((3, 2), np.float32)})
    assert first.tolist() == [[1, 1]] * 3
    assert first.flags.writeable


ALL_TYPES = """
    import numpy as np

    class Model:
        inputs = {
            "flag": ("bool", [-1]), "small": ("int8", [-1, 3]), "half": ("float16", [-1]),
            "brain": ("bfloat16", [-1, 1]), "raw": ("bytes", [-1, 2]), "text": ("str", []),
        }
        outputs = {
            "flag": ("bool", [-1]), "small": ("int8", [-1, 3]), "half": ("float16", [-1]),
            "brain": ("bfloat16", [-1, 1]), "raw": ("bytes", [-1, 2]), "text": ("str", []),
        }

"""


def test_every_type_goes_there_and_back(load: Load) -> None:
    """Also of no rows, of none at all, and not contiguous."""
    backend = load(
        """
        def predict(self, batch):
            assert batch["text"].item() == "é"
            assert all(type(value) is bytes for value in batch["raw"].ravel())
            return batch
        """,
        ALL_TYPES,
    )
    for rows in (0, 1, 5):
        request = {
            "flag": np.arange(rows) % 2 == 0,
            "small": np.arange(rows * 6, dtype=np.int8).reshape(rows, 6)[:, ::2],
            "half": np.linspace(0, 1, rows).astype(np.float16),
            "brain": np.ones((rows, 1), ml_dtypes.bfloat16),
            "raw": np.array([[b"\x00\xff", "é"]] * rows, object).reshape(rows, 2),
            "text": np.array("é".encode(), object),
        }
        answer = backend.run_whole(request)
        for name in ("flag", "small", "half", "brain"):
            assert answer[name].dtype == request[name].dtype
            np.testing.assert_array_equal(answer[name], request[name])
        assert answer["raw"].tolist() == [[b"\x00\xff", "é".encode()]] * rows
        assert answer["text"].item() == "é"
    with pytest.raises(InvalidRequest, match="input 'text': element 0 is not UTF-8"):
        backend.run_whole({**request, "text": np.array(b"\xff", object)})


def test_memory_grows_with_requests(load: Load) -> None:
    """There and back."""
    backend = load("def predict(self, batch): return {'y': batch['x'] + 1}")
    for rows in (1, 500_000, 3):
        assert (backend.run(ones(rows))["y"] == 2).all()


def test_rows_need_not_be_in_front(tmp_path: Path) -> None:
    """Where the configuration says so, the class sees them where it declared them."""
    predict = "    def predict(self, batch): return {'y': batch['x'] * np.array([[1], [2]], np.float32)}"
    file = python_models.write(tmp_path, textwrap.dedent(_BODY.replace("[-1, 2]", "[2, -1]")) + predict)
    build = BuildSettings("m", file, layout=Layout(axes={"x": 1, "y": 1}))
    with closing(PYTHON.create(build, PYTHON.options())) as backend:
        backend.load()
        assert backend.run(ones())["y"].tolist() == [[1, 2]] * 3


# --- Its own process --------------------------------------------------------------------------------------------------


def own_process(folder: Path, methods: str) -> Backend:
    """A model in its own process, loaded."""
    code = textwrap.dedent(_BODY) + textwrap.indent(textwrap.dedent(methods), "    ")
    options = PYTHON.options.model_validate({"environment": {"python": sys.executable}})
    backend = PYTHON.create(BuildSettings("iris", python_models.write(folder, code), layout=NO_ROWS), options)
    backend.load()
    return backend


_TELLS_ITS_PROCESS = """
def predict(self, batch):
    import os
    if (batch["x"] == 9).any():
        os.kill(os.getpid(), 9)
    if (batch["x"] == 8).any():
        os._exit(3)
    if (batch["x"] == 7).any():
        open(self.folder / "inside", "w").close()
        import time
        time.sleep(1000)
    return {"y": np.full(batch["x"].shape, os.getpid(), np.float32)}

def setup(self, context):
    self.folder = context.folder
"""


def process_of(backend: Backend) -> int:
    """The id of its process."""
    return int(backend.run_whole(ones())["y"][0, 0])


@pytest.mark.parametrize(("value", "how"), [(9, "was ended by SIGKILL"), (8, "has ended with status 3")])
def test_a_process_that_ends_is_a_lost_session(value: int, how: str, tmp_path: Path) -> None:
    """Its replica is replaced without another test, and a backend that is loaded again has another one."""
    with closing(own_process(tmp_path, _TELLS_ITS_PROCESS)) as backend:
        test = SelfTest("iris", {"": backend}, {})
        before = process_of(backend)
        ran = run_entries(backend, [{"x": np.full((1, 2), value, np.float32)}], 8, whole=[1])
        (outcome,) = ran.outcomes
        assert isinstance(outcome, SessionLost)
        assert outcome.message == f"the process of the model {how}"
        with pytest.raises(SessionLost):
            backend.run_whole(ones())
        assert (ran.lost, test.failing) == (True, False)
        test.give_up()
        assert test.failing
        backend.close()
        backend.load()
        assert process_of(backend) != before


def test_closing_ends_a_run_that_hangs(tmp_path: Path) -> None:
    """From another thread, and no process is left."""
    backend = own_process(tmp_path, _TELLS_ITS_PROCESS)
    pid = process_of(backend)
    found: list[Exception] = []

    def hang() -> None:
        try:
            backend.run_whole({"x": np.full((1, 2), 7, np.float32)})
        except InferenceFailed as error:
            found.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    while not (tmp_path / "inside").exists():
        assert thread.is_alive()
    backend.close()
    thread.join()
    assert isinstance(found[0], SessionLost)
    assert not Path(f"/proc/{pid}").exists()


def test_closing_lets_the_class_close(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it says then and before is in the log, with the model's name; so is what its close raises."""
    caplog.set_level(logging.INFO, "serve_app")
    backend = own_process(
        tmp_path,
        """
        def setup(self, context):
            print("loading")

        def predict(self, batch):
            return batch

        def close(self):
            print("closing")
            raise OSError("busy")
        """,
    )
    backend.close()
    assert "iris: loading" in caplog.messages
    assert "iris: closing" in caplog.messages
    assert "model 'iris': close failed: OSError: busy (model.py:18)" in caplog.messages


def test_a_process_ends_with_the_server(tmp_path: Path) -> None:
    """However that ends, and whatever the class is doing: here the server is killed inside a run."""
    code = textwrap.dedent(_BODY) + textwrap.indent(textwrap.dedent(_TELLS_ITS_PROCESS), "    ")
    file = python_models.write(tmp_path, code)
    server = f"""
        import sys
        from pathlib import Path
        import numpy as np
        from serve_app.backends.kind import BuildSettings
        from serve_app.backends.python.kind import PYTHON

        options = PYTHON.options.model_validate({{"environment": {{"python": sys.executable}}}})
        backend = PYTHON.create(BuildSettings("m", Path({str(file)!r})), options)
        backend.load()
        print(int(backend.run({{"x": np.ones((1, 2), np.float32)}})["y"][0, 0]), flush=True)
        backend.run({{"x": np.full((1, 2), 7, np.float32)}})
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(server)], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        watched = os.pidfd_open(pid)
        while not (tmp_path / "inside").exists():
            assert started.poll() is None
        started.kill()
    assert select.select([watched], [], [], 60)[0]
    os.close(watched)


def test_an_interpreter_that_cannot_run_it_is_told(tmp_path: Path) -> None:
    """That there is none, that it does not start, and that it has no numpy."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    script = tmp_path / "fails"
    script.write_text("#!/bin/sh\necho no licence\nexit 4\n")
    script.chmod(0o755)
    file = python_models.make(tmp_path / "m", "linear")
    for python, said in (
        ("no-such-python", "no-such-python is no program that can be run"),
        (str(script), "its process has ended with status 4: no licence"),
        (str(bare / "bin/python"), "No module named 'numpy'"),
    ):
        options = PYTHON.options.model_validate({"environment": {"python": python}})
        with pytest.raises(ConfigError, match=said) as caught:
            PYTHON.create(BuildSettings("iris", file), options).load()
        assert str(caught.value).startswith("model 'iris': ")


def test_what_a_module_holds_goes_when_it_is_closed(load: Load) -> None:
    """Modules are in cycles with what they define, and would stay until Python looks for those."""
    body = _BODY.replace("class Model", "WEIGHTS = np.ones(4, np.float32)\n\n    class Model")
    before = _classes()
    gc.disable()
    try:
        backend = load("def predict(self, batch): return {'y': batch['x'] * WEIGHTS[0]}", body)
        np.testing.assert_array_equal(backend.run(ones())["y"], ones()["x"])
        backend.close()
        assert [each for each in _classes() if each not in before] == []
    finally:
        gc.enable()


def test_a_setup_that_ends_too_late_leaves_nothing(tmp_path: Path) -> None:
    """Nobody waits for it any more: the class is closed, and its modules are forgotten."""
    going, closed = threading.Event(), threading.Event()
    methods = """
        def setup(self, context):
            self.parameters = context.parameters
            self.parameters["going"].wait()

        def predict(self, batch):
            return {"y": batch["x"]}

        def close(self):
            self.parameters["closed"].set()
    """
    code = textwrap.dedent(_BODY) + textwrap.indent(textwrap.dedent(methods), "    ")
    parameters = {"going": going, "closed": closed}
    options = PYTHON.options.model_validate({"parameters": parameters, "setup_timeout_s": 0.01})
    backend = PYTHON.create(BuildSettings("iris", python_models.write(tmp_path, code), layout=NO_ROWS), options)
    before = _modules()
    with pytest.raises(ConfigError, match=r"have not ended within 0.01 s; see backend_options.setup_timeout_s"):
        backend.load()
    going.set()
    assert closed.wait(60)
    while _modules() - before:  # a moment
        pass


def _modules() -> set[str]:
    """Those of models."""
    return {name for name in list(sys.modules) if name.startswith("served_model_")}


def _classes() -> list[type]:
    """Those of models. The ``__module__`` of a few classes is no text."""
    classes = [each for each in gc.get_objects() if isinstance(each, type)]
    return [each for each in classes if str(each.__module__).startswith("served_model_")]
