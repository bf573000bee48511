"""Finding models: versions, relative paths, and folders behind a URI."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import onnx
import onnx_models
import pytest

from serve_app import processors
from serve_app.backends.kind import AnyKind
from serve_app.backends.onnx.kind import ONNX
from serve_app.backends.python.kind import PYTHON
from serve_app.backends.registry import BACKENDS
from serve_app.composition.locate import ModelLocation, looking_once, missing_models, resolve_model
from serve_app.composition.model import find_files
from serve_app.config.args import parse_args
from serve_app.errors import ConfigError
from serve_app.processors.model_folder import SENTENCE_FILES, SIDECARS


@pytest.fixture(autouse=True)
def only_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind of backend, so that messages name what a test knows, whatever others there are."""
    for name in [each for each in reversed(BACKENDS) if each != ONNX.name]:  # put back in their order
        monkeypatch.delitem(BACKENDS, name)


def make_version(folder: Path, version: str, content: bytes = b"onnx") -> Path:
    """A version of a model."""
    (folder / version).mkdir(parents=True)
    (folder / version / "model.onnx").write_bytes(content)
    return folder


def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose folders are the test's own."""
    return {"SERVE_APP_HOME": str(tmp_path), "SERVE_APP_CACHE": str(tmp_path / "cache")}


def problem(path: str, version: int | None, variables: dict[str, str]) -> str:
    """The one fault of resolving."""
    with pytest.raises(ConfigError) as caught:
        resolve_model(path, version, variables)
    (line,) = caught.value.problems
    return line


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """Fsspec's filesystem in memory, empty before and after."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


def test_the_highest_version_is_the_default(tmp_path: Path) -> None:
    """Versions are numbers: 10 is above 9. Other folders and empty ones do not count."""
    folder = tmp_path / "models" / "digits"
    for version in ("9", "10", "2", "old"):
        make_version(folder, version)
    (folder / "11").mkdir()
    found = resolve_model("models/digits", None, environ(tmp_path))
    assert found == ModelLocation(folder / "10", "10", ("2", "9", "10"), "model.onnx", ONNX)
    assert found.model_file == folder / "10" / "model.onnx"


def test_a_version_can_be_chosen(tmp_path: Path) -> None:
    """A configured version wins over the highest."""
    folder = make_version(make_version(tmp_path / "m", "1"), "2")
    assert resolve_model("m", 1, environ(tmp_path)).folder == folder / "1"


def test_an_absolute_path_needs_no_home(tmp_path: Path) -> None:
    """An absolute path is taken as it is."""
    folder = make_version(tmp_path / "m", "1")
    assert resolve_model(str(folder), None, {"SERVE_APP_HOME": "/nowhere"}).folder == folder / "1"


def test_the_working_directory_is_the_default_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SERVE_APP_HOME relative paths start where the server was started."""
    make_version(tmp_path / "m", "1")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("m", None, {}).folder == tmp_path / "m" / "1"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """A missing folder, an empty one and a missing version each say what was looked for."""
    (tmp_path / "empty").mkdir()
    make_version(make_version(tmp_path / "m", "1"), "2")
    variables = environ(tmp_path)
    assert problem("none", None, variables) == f"none: no such folder (looked for {tmp_path}/none)"
    assert problem("empty", None, variables) == (
        "empty: holds no <version>/model.onnx, no model.onnx and no other file *.onnx"
    )
    assert problem("m", 3, variables) == "m: has no version '3'; there is 1, 2"


def test_missing_models_are_named_by_their_place(tmp_path: Path) -> None:
    """A configuration's models and variants are looked for together; remote ones are left alone."""
    make_version(tmp_path / "there", "1")
    args = parse_args(
        {
            "models": [
                {"name": "a", "path": "there", "variants": [{"name": "int8", "path": "gone"}]},
                {"name": "b", "path": "there", "version": 7},
                {"name": "c", "path": "s3://bucket/c"},
            ]
        }
    )
    assert missing_models(args.models, environ(tmp_path)) == (
        f"args.models[0].variants[0].path: gone: no such folder (looked for {tmp_path}/gone)",
        "args.models[1].path: there: has no version '7'; there is 1",
    )


def test_a_remote_model_is_copied_once(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    """A version behind a URI is copied whole, with what lies beside it, and then used from the cache."""
    memory.pipe(
        {"/bucket/m/1/model.onnx": b"one", "/bucket/m/2/model.onnx": b"two", "/bucket/m/2/labels.txt": b"a\nb\n"}
    )
    variables = environ(tmp_path)
    found = resolve_model("memory://bucket/m", None, variables)
    assert (found.version, found.versions) == ("2", ("1", "2"))
    assert {path.name: path.read_bytes() for path in found.folder.iterdir()} == {
        "model.onnx": b"two",
        "labels.txt": b"a\nb\n",
    }
    memory.pipe("/bucket/m/2/model.onnx", b"changed")
    assert resolve_model("memory://bucket/m", 2, variables).model_file.read_bytes() == b"two"
    assert sorted(path.name for path in found.folder.parent.parent.iterdir()) == [found.folder.parent.name]
    assert [path.name for path in found.folder.parent.iterdir()] == ["2"]


def test_files_above_the_versions_are_copied_too(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    """Labels and tokenizers may lie beside the versions instead of inside one."""
    memory.pipe({"/bucket/m/1/model.onnx": b"one", "/bucket/m/labels.txt": b"a\n", "/bucket/m/sub/config.json": b"{}"})
    found = resolve_model("memory://bucket/m", None, environ(tmp_path))
    assert (found.folder.parent / "labels.txt").read_bytes() == b"a\n"
    assert (found.folder.parent / "sub" / "config.json").read_bytes() == b"{}"


def test_a_remote_model_that_is_missing_is_named(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    """Missing folders, missing versions and unknown protocols name the URI."""
    memory.pipe("/bucket/m/1/model.onnx", b"one")
    variables = environ(tmp_path)
    assert problem("memory://bucket/none", None, variables) == "memory://bucket/none: no such folder"
    assert problem("memory://bucket/m", 2, variables) == "memory://bucket/m: has no version '2'; there is 1"
    assert problem("nonsense://m", None, variables) == (
        "nonsense://m: cannot be read: ValueError: Protocol not known: nonsense"
    )


# --- Without versions -----------------------------------------------------------------------------------------------


def make_outside(file: Path, weights: str) -> Path:
    """A model that keeps its weights in another file."""
    model = onnx.load(onnx_models.make(file, "image_logits"))
    onnx.save(model, file, save_as_external_data=True, location=weights, size_threshold=0)
    return file


def test_a_file_may_have_another_name(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    """In every version, in a flat folder, and behind a URI. Of several suffixes, that of the name counts."""
    for folder in ("1", "2"):
        (tmp_path / "m" / folder).mkdir(parents=True)
        (tmp_path / "m" / folder / "net.onnx").write_bytes(b"")
    (tmp_path / "m" / "3").mkdir()
    (tmp_path / "m" / "3" / "model.onnx").write_bytes(b"")
    found = resolve_model("m", None, environ(tmp_path), file="net.onnx")
    assert (found.version, found.versions, found.model_file.name) == ("2", ("1", "2"), "net.onnx")
    flat = resolve_model("m/1", None, environ(tmp_path), file="net.onnx")
    assert (flat.numbered, flat.model_file) == (False, tmp_path / "m" / "1" / "net.onnx")
    memory.pipe("/m/7/net.onnx", b"")
    remote = resolve_model("memory://m", None, environ(tmp_path), file="net.onnx")
    assert (remote.version, remote.file, remote.model_file.is_file()) == ("7", "net.onnx", True)
    with pytest.raises(ConfigError, match=r"m: holds no <version>/other\.onnx"):
        resolve_model("m", None, environ(tmp_path), file="other.onnx")


@pytest.mark.parametrize("name", ["model.onnx", "resnet50.onnx", "ResNet 50.ONNX"])
def test_a_flat_folder_is_version_1(tmp_path: Path, name: str) -> None:
    """It holds the model itself, whatever its file is called where there is no other."""
    file = onnx_models.make(tmp_path / "m" / name, "add_one")
    found = resolve_model("m", None, environ(tmp_path))
    assert (found.model_file, found.version, found.versions, found.numbered) == (file, "1", ("1",), False)


def test_model_onnx_is_the_model_of_a_flat_folder(tmp_path: Path) -> None:
    """Whatever other models lie beside it."""
    for name in ("a.onnx", "model.onnx", "z.onnx"):
        onnx_models.make(tmp_path / "m" / name, "add_one")
    assert resolve_model("m", None, environ(tmp_path)).file == "model.onnx"


def test_a_file_is_a_model(tmp_path: Path) -> None:
    """Also one among others, and one in a folder of versions."""
    for name in ("a.onnx", "b.onnx", "1/model.onnx"):
        onnx_models.make(tmp_path / "m" / name, "add_one")
    for name in ("a.onnx", "1/model.onnx"):
        found = resolve_model(f"m/{name}", None, environ(tmp_path))
        assert (found.model_file, found.version, found.versions) == (tmp_path / "m" / name, "1", ("1",))


def test_versions_count_more_than_what_lies_above_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model beside versions is not used, and that is told."""
    make_version(tmp_path / "m", "3")
    onnx_models.make(tmp_path / "m" / "other.onnx", "add_one")
    assert resolve_model("m", None, environ(tmp_path)).version == "3"
    assert caplog.messages == ["m: is a folder of versions; not used: other.onnx"]


def test_what_is_no_model_without_versions_is_named(tmp_path: Path) -> None:
    """Several models, another kind of file, no file, and a version of what has none."""
    for name in ("two/a.onnx", "two/b.onnx", "flat/model.onnx"):
        onnx_models.make(tmp_path / name, "add_one")
    (tmp_path / "two" / "labels.txt").touch()
    variables = environ(tmp_path)
    assert problem("two", None, variables) == (
        "two: holds several models and no model.onnx: name one in the path (a.onnx, b.onnx)"
    )
    assert problem("two/labels.txt", None, variables) == "two/labels.txt: is a file, and not a model (*.onnx)"
    assert problem("two/c.onnx", None, variables) == f"two/c.onnx: no such file (looked for {tmp_path}/two/c.onnx)"
    for path, file in (("flat", "model.onnx"), ("two/a.onnx", "a.onnx")):
        assert problem(path, 2, variables) == (
            f"{path}: has no versions, only {file}; leave version out, or put the file into 2/model.onnx"
        )


def test_what_belongs_to_a_file_is_not_what_lies_around_it(tmp_path: Path) -> None:
    """Its weights, what processors look for, and what the configuration names: no other model, nor anything else."""
    file = make_outside(tmp_path / "m" / "a.onnx", "a.weights")
    onnx_models.make(tmp_path / "m" / "b.onnx", "add_one")
    for name in ("b.weights", "labels.txt", "names.txt", "photo.jpg"):
        (tmp_path / "m" / name).write_bytes(b"x")
    (tmp_path / "m" / "1_Pooling").mkdir()
    (tmp_path / "m" / "1_Pooling" / "config.json").write_bytes(b"{}")
    found = resolve_model(str(file), None, environ(tmp_path), ["names.txt"])
    assert sorted(str(each.relative_to(tmp_path / "m")) for each in found.files()) == [
        "1_Pooling/config.json",
        "a.onnx",
        "a.weights",
        "labels.txt",
        "names.txt",
    ]


def test_every_file_that_processors_look_for_belongs_to_a_model() -> None:
    """By the names that they write down."""
    sources = (Path(processors.__file__).parent).glob("*.py")
    looked_for = re.compile(r'"((?:\w+/)?\w+\.(?:json|txt))"')
    found = {name for source in sources for name in looked_for.findall(source.read_text())}
    assert found | set(SENTENCE_FILES) == set(SIDECARS)


def test_a_flat_folder_called_by_a_number_has_no_files_above_it(tmp_path: Path) -> None:
    """What lies beside a folder of versions belongs to it; what lies beside a flat folder does not."""
    onnx_models.make(tmp_path / "2024" / "model.onnx", "add_one")
    make_version(tmp_path / "m", "1")
    for folder in (tmp_path, tmp_path / "m"):
        (folder / "labels.txt").write_bytes(b"a\n")
    flat, numbered = (resolve_model(path, None, environ(tmp_path)) for path in ("2024", "m"))
    assert (flat.sidecars().lines("labels.txt"), numbered.sidecars().lines("labels.txt")) == (None, ["a"])


@pytest.mark.parametrize(("path", "file"), [("m/a.onnx", "a.onnx"), ("m", "model.onnx")])
def test_a_remote_model_without_versions_is_copied(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, path: str, file: str
) -> None:
    """With its weights and what belongs to it, and without what lies around it; again when it has changed."""
    made = make_outside(tmp_path / "made" / file, "w.bin")
    others = {} if file == "model.onnx" else {"/bucket/m/b.onnx": b"b"}
    memory.pipe(
        {
            f"/bucket/m/{file}": made.read_bytes(),
            "/bucket/m/w.bin": (made.parent / "w.bin").read_bytes(),
            "/bucket/m/labels.txt": b"a\n",
            "/bucket/m/1_Pooling/config.json": b"{}",
            "/bucket/m/photo.jpg": b"x",
            **others,
        }
    )
    found = resolve_model(f"memory://bucket/{path}", None, environ(tmp_path))
    assert (found.file, found.version, found.numbered) == (file, "1", False)
    assert sorted(str(each.relative_to(found.folder)) for each in found.folder.rglob("*") if each.is_file()) == sorted(
        [file, "1_Pooling/config.json", "labels.txt", "w.bin"]
    )
    assert resolve_model(f"memory://bucket/{path}", None, environ(tmp_path)) == found
    memory.pipe(f"/bucket/m/{file}", onnx_models.make(tmp_path / "other.onnx", "add_one").read_bytes())
    again = resolve_model(f"memory://bucket/{path}", None, environ(tmp_path))
    assert again.model_file.read_bytes() == (tmp_path / "other.onnx").read_bytes()


def test_a_remote_file_that_is_missing_is_named(tmp_path: Path, memory: fsspec.AbstractFileSystem) -> None:
    """As a folder is, and a version of what has none."""
    memory.pipe({"/bucket/m/a.onnx": b"", "/bucket/m/b.onnx": b""})
    variables = environ(tmp_path)
    assert problem("memory://bucket/c.onnx", None, variables) == "memory://bucket/c.onnx: no such file"
    assert problem("memory://bucket/m", None, variables) == (
        "memory://bucket/m: holds several models and no model.onnx: name one in the path (a.onnx, b.onnx)"
    )
    assert problem("memory://bucket/m/a.onnx", 1, variables) == (
        "memory://bucket/m/a.onnx: has no versions, only a.onnx; leave version out, or put the file into 1/model.onnx"
    )


# --- Several backends -------------------------------------------------------------------------------------------------


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> AnyKind:
    """Another kind, of two suffixes, which is registered."""
    kind = replace(ONNX, name="torch", file="model.pt", suffixes=(".pt", ".pth"), further_files=lambda _: ())
    monkeypatch.setitem(BACKENDS, kind.name, kind)
    return kind


def touch(*files: Path) -> None:
    """Files that nobody reads."""
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_the_name_of_a_file_says_what_runs_it(tmp_path: Path, torch: AnyKind) -> None:
    """In a version, in a flat folder, and of a file; each version by itself."""
    touch(tmp_path / "m" / "1" / "model.onnx", tmp_path / "m" / "2" / "model.pt", tmp_path / "flat" / "net.pth")
    found = [
        resolve_model(path, version, environ(tmp_path))
        for path, version in (("m", None), ("m", 1), ("flat", None), ("flat/net.pth", None))
    ]
    assert [(each.file, each.kind) for each in found] == [
        ("model.pt", torch),
        ("model.onnx", ONNX),
        ("net.pth", torch),
        ("net.pth", torch),
    ]
    assert found[0].versions == ("1", "2")


def test_files_beside_a_model_are_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind whose file is called `model.json` takes no other JSON for a model, of which much lies beside models."""
    trees = replace(ONNX, name="trees", file="model.json", suffixes=(".trees.json",))
    monkeypatch.setitem(BACKENDS, trees.name, trees)
    touch(*(tmp_path / "net" / name for name in ("a.onnx", "labels.json", *SIDECARS)), tmp_path / "flat" / "model.json")
    found = [resolve_model(path, None, environ(tmp_path)) for path in ("net", "flat", "flat/model.json")]
    assert [(each.file, each.kind) for each in found] == [("a.onnx", ONNX), *[("model.json", trees)] * 2]
    assert problem("net/labels.json", None, environ(tmp_path)) == (
        "net/labels.json: is a file, and not a model (model.json or *.onnx or *.trees.json)"
    )


def test_a_backend_that_is_named_sees_its_own_files(tmp_path: Path, torch: AnyKind) -> None:
    """Others beside them are nobody's."""
    touch(*(tmp_path / "m" / "1" / kind.file for kind in (ONNX, torch)), tmp_path / "flat" / "a.pt")
    onnx_models.make(tmp_path / "flat" / "b.onnx", "add_one")
    variables = environ(tmp_path)
    for path in ("m", "flat"):
        found = [resolve_model(path, None, variables, backend=name).kind for name in ("onnx", "torch")]
        assert found == [ONNX, torch]
    assert problem("m", None, variables) == "m, version 1: onnx and torch could run it: say which of them by backend"
    assert problem("flat", None, variables) == (
        "flat: holds several models and no model.onnx or model.pt: name one in the path (a.pt, b.onnx)"
    )


def test_faults_name_what_all_backends_look_for(tmp_path: Path, torch: AnyKind) -> None:
    """Or the one that was named."""
    touch(tmp_path / "m" / "labels.txt")
    variables = environ(tmp_path)
    assert problem("m", None, variables) == (
        "m: holds no <version>/model.onnx or <version>/model.pt, no model.onnx or model.pt and no other file"
        " *.onnx or *.pt or *.pth"
    )
    args = parse_args(
        {"models": [{"name": "a", "path": "m", "backend": "torch"}, {"name": "b", "path": "m", "backend": "x"}]}
    )
    assert missing_models(args.models, variables) == (
        "args.models[0].path: m: holds no <version>/model.pt, no model.pt and no other file *.pt or *.pth",
        "args.models[1].backend: unknown backend 'x'; there is onnx, torch",
    )


def test_a_remote_model_of_another_backend_is_copied(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, torch: AnyKind
) -> None:
    """With what its backend says that it needs."""
    torch = replace(torch, further_files=lambda file: (file.read_text(),))
    BACKENDS["torch"] = torch
    memory.pipe({"/bucket/m/net.pt": b"w.bin", "/bucket/m/w.bin": b"x"})
    memory.pipe({"/bucket/v/1/model.pt": b"w.bin", "/bucket/v/1/w.bin": b"x"})
    flat, numbered = (resolve_model(f"memory://bucket/{name}", None, environ(tmp_path)) for name in "mv")
    assert [each.kind for each in (flat, numbered)] == [torch, torch]
    assert sorted(file.name for file in flat.files()) == ["net.pt", "w.bin"]
    assert sorted(file.name for file in numbered.files()) == ["model.pt", "w.bin"]


def test_variants_are_run_by_the_backend_of_the_model(tmp_path: Path, torch: AnyKind) -> None:
    """So that its options are those of all builds."""
    touch(tmp_path / "m" / "model.pt", *(tmp_path / "light" / kind.file for kind in (ONNX, torch)))
    model = {"name": "m", "path": "m", "variants": [{"name": "light", "path": "light"}]}
    (config,) = parse_args({"models": [model]}).models
    assert missing_models([config], environ(tmp_path)) == ()
    assert {location.kind.name for location in find_files(config, environ(tmp_path)).values()} == {"torch"}


def test_code_runs_only_where_the_configuration_names_its_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies in a model's folder; what to write is told."""
    monkeypatch.setitem(BACKENDS, PYTHON.name, PYTHON)
    variables = environ(tmp_path)
    touch(tmp_path / "flat" / "model.py", tmp_path / "m" / "1" / "model.py", tmp_path / "both" / "model.py")
    onnx_models.make(tmp_path / "both" / "net.onnx", "add_one")
    assert resolve_model("both", None, variables).kind is ONNX
    for path in ("flat", "m"):
        assert problem(path, None, variables).endswith(" *.onnx; model.py runs with backend: python")
    assert problem("flat/model.py", None, variables) == (
        "flat/model.py: is a file, and not a model (*.onnx); model.py runs with backend: python"
    )
    found = [resolve_model(path, None, variables, backend="python") for path in ("flat", "m", "both", "flat/model.py")]
    assert [(each.file, each.kind, each.version) for each in found] == [("model.py", PYTHON, "1")] * 4


def test_remote_code_runs_only_where_the_configuration_names_its_backend(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of local files, what to write is told."""
    monkeypatch.setitem(BACKENDS, PYTHON.name, PYTHON)
    variables = environ(tmp_path)
    code = (
        b"class Model:\n    inputs = outputs = {'x': ('float32', [-1])}\n    def predict(self, batch):\n        ...\n"
    )
    for path in ("/flat/model.py", "/m/1/model.py"):
        memory.pipe(path, code)
    for path in ("memory://flat", "memory://m"):
        assert problem(path, None, variables).endswith(" *.onnx; model.py runs with backend: python")
    assert problem("memory://flat/model.py", None, variables) == (
        "memory://flat/model.py: is a file, and not a model (*.onnx); model.py runs with backend: python"
    )
    for path in ("memory://flat", "memory://m", "memory://flat/model.py"):
        found = resolve_model(path, None, variables, backend="python")
        assert (found.file, found.kind, found.version) == ("model.py", PYTHON, "1")


# --- Mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1e3", "01", " 1", "0", "+1", "1 ", "-1", "²", "٣", "9" * 30, "v1", "1.0"])
def test_only_plain_numbers_are_versions(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """As a configuration writes them, so that each can be named: the others are told of, here and behind a URI."""
    make_version(make_version(tmp_path / "m", "1"), name)
    found = resolve_model("m", None, environ(tmp_path))
    assert (found.version, found.versions) == ("1", ("1",))
    assert caplog.messages == [f"m: is a folder of versions; not used: {name}"]
    memory.pipe({"/m/1/model.onnx": b"one", f"/m/{name}/model.onnx": b"other"})
    remote = resolve_model("memory://m", None, environ(tmp_path))
    assert (remote.version, remote.versions) == ("1", ("1",))
    make_version(tmp_path / "alone", name)
    with pytest.raises(ConfigError, match="alone: holds no <version>"):
        resolve_model("alone", None, environ(tmp_path))


def test_a_folder_that_cannot_be_read_or_vanishes_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks at it, too."""
    make_version(tmp_path / "m", "1")

    def gone(folder: Path) -> Iterator[Path]:
        raise FileNotFoundError(2, "No such file or directory", str(folder))

    monkeypatch.setattr(Path, "iterdir", gone)
    assert problem("m", None, environ(tmp_path)) == "m: cannot be read: No such file or directory"


def test_a_configuration_is_made_of_the_files_that_were_found_first(tmp_path: Path) -> None:
    """A version or a file that comes in between belongs to the next configuration; what was missing is looked for."""
    folder = make_version(tmp_path / "m", "1")
    path = str(tmp_path / "m")
    with looking_once():
        with pytest.raises(ConfigError, match="has no version"):
            resolve_model(path, 2)
        first = resolve_model(path)
        files = list(first.files())
        make_version(tmp_path / "m", "2")
        (folder / "labels.txt").write_text("a")
        again = resolve_model(path)
        assert (again.version, list(again.files())) == ("1", files)
        assert resolve_model(path, 2).version == "2"
    assert resolve_model(path).version == "2"
    assert folder / "labels.txt" in list(first.files())
