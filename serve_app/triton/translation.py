"""One model of a Triton repository as an entry of `models`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, NoReturn

from serve_app.backends.description import describe_build
from serve_app.backends.kind import AnyKind, BackendOptions
from serve_app.backends.registry import BACKENDS, kinds_of
from serve_app.composition.locate import ModelLocation, resolve_model
from serve_app.config.problems import short_repr
from serve_app.domain.settings import JoinSettings
from serve_app.errors import ConfigError
from serve_app.payloads import DATATYPES, ModelSignature, TensorSpec
from serve_app.triton.fields import Fields, TritonDocument
from serve_app.triton.instances import TritonInstances, read_instances, read_optimization, read_parameters
from serve_app.triton.queues import QueueSettings, read_queues
from serve_app.triton.tensors import read_tensors, triton_type

_UNSUPPORTED: Final = {
    "sequence_batching": (
        "models that keep a state between requests are not served; the client sends the state as tensors"
    ),
    "model_operations": "libraries of custom operators are not loaded",
    "model_repository_agents": "nothing here changes a model's files before they are loaded",
}
_UNSUPPORTED_LISTS: Final = {
    "batch_input": "inputs that describe a batch are not made",
    "batch_output": "outputs that describe a batch are not split",
}
_ZEROS: Final[Mapping[str, Any]] = {"BYTES": "", "BOOL": False}
_DTYPES: Final[Mapping[str, str]] = {f"TYPE_{datatype}": name for name, datatype in DATATYPES.items()}
NO_TYPE: Final = "TYPE_INVALID"
_WARM_UP_FOLDER: Final = "warmup"
_PYTHON_BACKEND: Final = "python"
_PYTHON_FILE: Final = "model.py"
_PYTHON: Final = (
    "code for Triton's Python backend does not run here; write a class with predict() in place of execute(),"
    " and an entry of models with backend: python"
)
_ONNX_INSTEAD: Final = "export the model to ONNX"
_INSTEAD: Final = {
    "openvino": _ONNX_INSTEAD,
    "tensorflow": _ONNX_INSTEAD,
    "tensorflow_graphdef": _ONNX_INSTEAD,
    "tensorflow_savedmodel": _ONNX_INSTEAD,
    "tensorrt": "serve the ONNX file that the engine was built from",
    "tensorrt_plan": "serve the ONNX file that the engine was built from",
}
"""What to do with models of backends and platforms that are not here."""


class Translated(NamedTuple):
    """A model as it is configured here, as far as that does not depend on other models.

    Attributes:
        keys: An entry of `models`.
        instances: How often it runs, and on what.
        queues: What it asks of the classes.
    """

    keys: dict[str, Any]
    instances: TritonInstances
    queues: QueueSettings


def translate(
    document: TritonDocument | None, name: str, path: str, folder: Path, environ: Mapping[str, str]
) -> Translated | None:
    """Translate one model. What is followed otherwise, or not at all, is told by the document.

    Args:
        document: Its `config.pbtxt`; ``None`` where there is none, and all is known from the model's file.
        name: The folder's name, which is the model's.
        path: The folder, as a configuration names it.
        folder: The folder on this machine.
        environ: Environment variables.

    Returns:
        ``None`` where the document holds the reason why the model is not served.

    Raises:
        ConfigError: Its files are not there or cannot be read.
    """
    if document is None:
        if _is_for_python_backend(folder):
            raise ConfigError((f"{path}: {_PYTHON}",))
        resolve_model(path, environ=environ)
        return Translated({"name": name, "path": path}, TritonInstances(), QueueSettings())
    found = _Translation(document, name, path, folder, environ).run()
    if found is not None:
        document.tell_rest()
    return found if document.has_only_notes() else None


def check_name(fields: Fields, folder: str) -> None:
    """Compare the name that a `config.pbtxt` gives with that of its folder."""
    if (given := fields.value("name")) not in {"", folder}:
        fields.fault("name", f"is {short_repr(given)}, but the folder is {short_repr(folder)}")


def refuse_unsupported(fields: Fields) -> None:
    """Say which parts of a configuration keep it from being served."""
    for name, why in _UNSUPPORTED.items():
        if fields.has(name):
            fields.refuse(name, why)
    for name, why in _UNSUPPORTED_LISTS.items():
        for each in fields.each(name)[:1]:
            each.refuse("", why)


class _Translation:
    def __init__(
        self, document: TritonDocument, name: str, path: str, folder: Path, environ: Mapping[str, str]
    ) -> None:
        self._document, self._fields = document, document.fields
        self._name, self._path, self._folder, self._environ = name, path, folder, environ
        self._keys: dict[str, Any] = {"name": name, "path": path}
        self._options: dict[str, Any] = {}

    def run(self) -> Translated | None:
        fields = self._fields
        refuse_unsupported(fields)
        kind = self._backend()
        if not self._document.has_only_notes():
            return None
        location = self._locate(kind)
        self._options = self._declared(location.kind)
        if not self._document.has_only_notes():
            return None
        signature = location.kind.inspect(location.model_file, self._name, self._read_options(location.kind)).signature
        check_name(fields, self._name)
        batched = self._batching(signature)
        self._keys |= read_tensors(fields, signature, location.sidecars(), batched=batched)
        if not self._document.has_only_notes():
            return None
        instances = read_instances(fields)
        resources = {"device": instances.device} if instances.device != "auto" else {}
        resources |= read_parameters(fields, on_gpu=instances.device != "cpu")
        if resources:
            self._keys["resources"] = resources
        read_optimization(fields, location.kind)
        if self._options:
            self._keys["backend_options"] = self._options
        if instances.replicas > 1:
            self._keys["autoscaling"] = {"min_replicas": instances.replicas, "max_replicas": instances.replicas}
        self._warm_up(location, signature, batched=batched)
        cache = fields.below("response_cache")
        if cache is not None and cache.value("enable"):
            self._keys["cache"] = {}
        policy = fields.below("model_transaction_policy")
        if policy is not None and policy.value("decoupled"):
            policy.note("decoupled", "every request has exactly one answer")
        batching = fields.below("dynamic_batching")
        return Translated(self._keys, instances, QueueSettings() if batching is None else read_queues(batching))

    def _backend(self) -> AnyKind | None:
        """What runs the model; ``None``: its file tells."""
        fields = self._fields
        for key in ("backend", "platform"):
            given = fields.value(key)
            if not given:
                continue
            if given == _PYTHON_BACKEND:
                fields.refuse(key, _PYTHON)
                return None
            fitting = [
                kind
                for kind in BACKENDS.values()
                if given in ({kind.triton_name or kind.name} if key == "backend" else {kind.platform})
            ]
            if not fitting:
                known = ", ".join(dict.fromkeys(kind.triton_name or kind.name for kind in kinds_of(None)))
                instead = _INSTEAD.get(given, f"there is {known}")
                fields.refuse(key, f"no backend here runs {short_repr(given)}; {instead}")
                return None
            file = fields.value("default_model_filename")
            kind = next((each for each in fitting if file and each.recognises(file)), fitting[0])
            if key == "backend" and fields.value("platform") not in {"", kind.platform}:
                fields.fault("platform", f"must be {kind.platform} with backend {given}, or be left out")
            self._keys["backend"] = kind.name
            return kind
        if _is_for_python_backend(self._folder):
            fields.refuse("", _PYTHON)
        return None

    def _raise_faults(self) -> NoReturn:
        """Raise what is wrong with the file so far."""
        faults = tuple(remark.line() for remark in self._document.remarks if remark.level == "fault")
        raise ConfigError(faults) from None

    def _locate(self, kind: AnyKind | None) -> ModelLocation:
        """Find the model's files, of the version that is served.

        Raises:
            ConfigError: They are not there.
        """
        fields = self._fields
        file = fields.value("default_model_filename")
        folder_of_file = None if kind is None else kind.file
        if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
            fields.fault("default_model_filename", f"{short_repr(file)} is outside the folder of a version")
            self._raise_faults()
        if file and file != folder_of_file:
            self._keys["file"] = file
        policy = fields.below("version_policy")
        specific = None if policy is None else policy.below("specific")
        listed = [] if specific is None else sorted(set(specific.value("versions")))
        version = listed[-1] if listed else None
        backend, named = self._keys.get("backend"), self._keys.get("file")
        try:
            location = resolve_model(self._path, version, self._environ, backend=backend, file=named)
        except ConfigError as error:
            if specific is None or version is None:
                raise
            for problem in error.problems:
                specific.fault("versions", problem)
            self._raise_faults()
        if specific is not None:
            if missing := [each for each in listed if str(each) not in location.versions]:
                specific.fault("versions", f"{self._path} has no version {', '.join(map(str, missing))}")
            if len(listed) > 1:
                self._keys["versions"] = listed
            elif listed:
                self._keys["version"] = version
        elif policy is not None:
            latest = policy.below("latest")
            several = len(location.versions) > 1
            if latest is not None and (most := latest.value("num_versions")) > 1 and several:
                self._keys["versions"] = {"latest": most}
            if policy.below("all") is not None and several:
                self._keys["versions"] = [int(each) for each in location.versions]
        return location

    def _batching(self, signature: ModelSignature) -> bool:
        """Read how requests are batched. Returns whether tensors have rows, which the configuration leaves out."""
        fields = self._fields
        most: int = fields.value("max_batch_size")
        if most < 0:
            fields.fault("max_batch_size", f"must be at least 0, got {most}")
        keys: dict[str, Any] = {"max_rows": most} if most > 0 else {}
        batching = fields.below("dynamic_batching")
        if batching is not None:
            if sizes := batching.value("preferred_batch_size"):
                batching.note(
                    "preferred_batch_size", f"{sizes}: batches have the sizes that measured execution times suggest"
                )
            delay = batching.value("max_queue_delay_microseconds")
            if delay:
                batching.note(
                    "max_queue_delay_microseconds",
                    "a batch waits as long as that is predicted to save time, and not for a fixed delay",
                )
            elif batching.has("max_queue_delay_microseconds"):
                keys["policy"] = "eager"
            if batching.value("preserve_ordering"):
                batching.note("preserve_ordering", "answers are sent as they are ready")
        if most == 0 and fields.each("input") and fields.each("output"):
            self._keys["batching"] = "none"
            return False
        if keys:
            self._keys["batching"] = keys
        # Where inputs or outputs are left out, Triton completes the rest, and batches what can be batched.
        return most > 0 or all(spec.shape and spec.shape[0] < 0 for spec in (*signature.inputs, *signature.outputs))

    def _warm_up(self, location: ModelLocation, signature: ModelSignature, *, batched: bool) -> None:
        samples = self._fields.each("model_warmup")
        specs = {spec.name: spec for spec in signature.inputs}
        leads = batched and bool(samples) and self._has_rows(location)
        first: dict[str, dict[str, Any]] = {}
        for number, sample in enumerate(samples):
            sample.value("name")  # a name changes nothing, there or here
            sample.value("batch_size")  # every size is run
            if sample.value("count") > 1:
                sample.note("count", "each size of a batch is run as often as the time for warm-up lets it")
            rules = {}
            for name, each in sample.entries("inputs").items():
                spec = specs.get(name)
                if spec is None:
                    each.fault("", f"the file has no input {name!r}; there is {', '.join(specs)}")
                elif rule := self._rule(each, spec, batched=batched, leads=leads):
                    rules[name] = rule
            if number == 0:
                first = rules
            elif rules != first:
                sample.note("", "each model has one sample of inputs here: the first")
        if first:
            self._keys["warm_up"] = {"inputs": first}

    def _has_rows(self, location: ModelLocation) -> bool:
        """Whether the tensors of the model have rows as it is served."""
        join = self._keys.get("batching") != "none"
        build = describe_build(
            location.kind,
            location.model_file,
            model=self._name,
            options=self._read_options(location.kind),
            settings=JoinSettings(join=join),
        )
        return build.joinable.rows

    def _declared(self, kind: AnyKind) -> dict[str, Any]:
        """The options that say what a model's tensors are, of a kind whose files do not."""
        if not kind.options.model_fields.keys() >= {"inputs", "outputs"}:
            return {}
        leading = [-1] if self._fields.value("max_batch_size") > 0 else []
        found: dict[str, Any] = {}
        for key, side in (("inputs", "input"), ("outputs", "output")):
            tensors = {}
            for each in self._fields.each(side):
                dtype = _DTYPES.get(each.word("data_type"))
                if dtype is None:
                    each.fault("data_type", f"is none that {kind.name} has; there is {', '.join(_DTYPES)}")
                else:
                    tensors[each.value("name")] = {"dtype": dtype, "shape": [*leading, *each.value("dims")]}
            found[key] = tensors
        return found

    def _read_options(self, kind: AnyKind) -> BackendOptions:
        options: BackendOptions = kind.options.model_validate(self._options)
        return options

    def _rule(self, each: Fields, spec: TensorSpec, *, batched: bool, leads: bool) -> dict[str, Any]:
        """What an input holds, as `warm_up.inputs` says it."""
        rule: dict[str, Any] = {}
        dims, data_type = each.value("dims"), each.word("data_type")
        if data_type not in {NO_TYPE, triton_type(spec)}:
            each.fault("data_type", f"is {data_type}, and the file has {triton_type(spec)}")
        shape = spec.shape[1:] if batched else spec.shape
        if len(dims) != len(shape) or any(size not in {-1, dim} for dim, size in zip(dims, shape, strict=True)):
            each.fault("dims", f"are {dims}, and the file has {list(shape)}")
        elif any(dim < 1 for dim in dims):
            each.fault("dims", f"must be at least 1 each, got {dims}")
        elif any(size < 0 for size in shape):
            # A model whose requests do not share runs takes its first dimension as any other.
            rule["shape"] = [1, *dims] if batched and not leads else dims
        if each.value("zero_data"):
            rule["values"] = [_ZEROS.get(spec.datatype, 0)]
        each.value("random_data")  # values of our own are as good
        if file := each.value("input_data_file"):
            if (self._folder / _WARM_UP_FOLDER / file).is_file():
                rule["file"] = f"{self._path}/{_WARM_UP_FOLDER}/{file}"
            else:
                each.fault("input_data_file", f"there is no file {_WARM_UP_FOLDER}/{file} in the model's folder")
        return rule


def _is_for_python_backend(folder: Path) -> bool:
    """Whether a model whose backend is not named is one of Triton's Python backend."""
    names = {file.name for file in folder.glob("*/*")}
    return _PYTHON_FILE in names and not any(kind.recognises(name) for kind in kinds_of(None) for name in names)
