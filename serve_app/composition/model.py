"""Makes the parts of one model from its configuration: files, their contents, processor and samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import cast

from serve_app.backends.backend import Backend, Processing
from serve_app.backends.description import Description, describe_build
from serve_app.backends.registry import BACKENDS
from serve_app.backends.samples import Samples
from serve_app.backends.samples import make_samples as samples_of
from serve_app.composition.backend import read_options
from serve_app.composition.copies import forget
from serve_app.composition.locate import ModelLocation, resolve_model
from serve_app.config.model import ModelConfig
from serve_app.config.processor import CustomOptions
from serve_app.config.tensors import label_files
from serve_app.config.warm_up import DecodeRequest
from serve_app.errors import ConfigError
from serve_app.payloads import ModelSignature
from serve_app.processors import create_processor
from serve_app.processors.of_model import ModelProcessor
from serve_app.processors.processor import Processor

_COPIES = 2
"""Most copies of its weights in a loaded model."""


def read_builds(model: ModelConfig, locations: Mapping[str, ModelLocation]) -> dict[str, Description]:
    """Read the files of the model and of its variants, and decide whether requests may share runs.

    Raises:
        ConfigError: One cannot be served, a variant takes or gives other tensors than the model itself, or the
            configuration has options that their backend does not know.
    """
    settings, kind = model.batching.joining(), locations[""].kind
    options = read_options(model, kind)
    on_gpu = model.resources.gpus > 0
    build = partial(describe_build, kind, model=model.name, options=options, settings=settings, on_gpu=on_gpu)
    describe = partial(_describe, build)
    exact = describe(locations[""])
    described = {"": exact}
    problems = []
    for variant, location in locations.items():
        if not variant:
            continue
        other = describe(location, exact=exact)
        described[variant] = other
        if other.signature != exact.signature:
            problems.append(
                f"model {model.name!r}: variant {variant!r} takes {other.signature}, the model itself takes"
                f" {exact.signature}"
            )
    if problems:
        raise ConfigError(tuple(problems))
    return described


def _describe(
    build: Callable[..., Description], location: ModelLocation, exact: Description | None = None
) -> Description:
    try:
        return build(location.model_file, exact=exact)
    except ConfigError:
        if location.copied:  # it may have been copied while it was put there
            forget(location.root)
        raise


def find_files(model: ModelConfig, environ: Mapping[str, str] | None = None) -> dict[str, ModelLocation]:
    """Find the files of the model and of its variants, copying remote ones here.

    Returns:
        By variant; the model itself is ``""``.

    Raises:
        ConfigError: Something is missing; names the path.
    """
    exact = resolve_model(model.path, model.version, environ, _files_beside(model), model.backend, model.file)
    # One backend runs all builds, so that the model's options are those of each.
    return {"": exact} | {
        variant.name: resolve_model(variant.path, variant.version, environ, backend=exact.kind.name)
        for variant in model.variants
    }


def file_bytes(locations: Mapping[str, ModelLocation]) -> int:
    """Bytes of a model's files, over all its builds."""
    return sum(file.stat().st_size for location in locations.values() for file in location.files())


def memory_of(locations: Mapping[str, ModelLocation]) -> int:
    """Largest memory of a model, bytes: sessions hold a second copy of weights, laid out for their kernels."""
    return _COPIES * file_bytes(locations)


def named_files(model: ModelConfig) -> tuple[str, ...]:
    """Files that this configuration names, relative to the model's folder; they may lie elsewhere.

    Raises:
        ConfigError: The configuration has options that the backend does not know.
    """
    kind = BACKENDS.get(model.backend or "")
    of_backend = () if kind is None else read_options(model, kind).files()
    of_processor: tuple[str, ...] = ()
    if not isinstance(model.processor, CustomOptions):
        of_processor = label_files(getattr(model.processor, "labels", None))
    elif model.processor.file is not None:
        of_processor = (model.processor.file,)
    return (*label_files(model.labels), *of_processor, *of_backend)


def _files_beside(model: ModelConfig) -> tuple[str, ...]:
    """Those of the named files that lie beside the model."""
    return tuple(name for name in named_files(model) if not name.startswith("/") and ".." not in name.split("/"))


def processes_itself(model: ModelConfig, location: ModelLocation) -> bool:
    """Whether a model converts requests to tensors, and tensors to answers, by itself.

    Args:
        location: Its files, one of `find_files`. None of them is run.

    Raises:
        ConfigError: Its file declares that wrongly, or the configuration also names another processor.
    """
    if model.processor is None or (isinstance(model.processor, CustomOptions) and model.processor.class_ is not None):
        return False
    kind = location.kind
    if not kind.processes(location.model_file, model.name, read_options(model, kind)):
        return False
    if options := model.processor.model_dump(exclude_unset=True, exclude={"class_"}):
        problem = f"{model.file or location.file} has preprocess, which takes no options: say them in backend_options"
        raise ConfigError((f"model {model.name!r}: processor.{next(iter(options))}: {problem}",))
    return True


def make_processor(
    model: ModelConfig, signature: ModelSignature, location: ModelLocation, backend: Backend | None = None
) -> Processor | None:
    """Make the model's processor, or ``None`` for a model that takes tensors only.

    Args:
        backend: Loaded; ``None`` if requests are only priced.

    Raises:
        ConfigError: The options, the files beside the model and its tensors do not fit together.
    """
    if model.processor is None:
        return None
    if processes_itself(model, location):
        return ModelProcessor(model.task, signature, cast("Processing | None", backend))  # as its kind says
    custom = model.processor if isinstance(model.processor, CustomOptions) else None
    options = model.processor.model_dump(exclude_unset=True) if custom is None else custom.keys
    name = None if custom is None else custom.class_
    with suppress(OSError, ValueError):  # opening the file reports it
        signature = signature._replace(ends=location.kind.ends(location.model_file))
    try:
        return create_processor(model.task, signature, location.sidecars(), options, name)
    except ConfigError as error:
        hint = ""
        if name is None and custom is not None and location.kind.runs_code:
            hint = f", or write def preprocess(self, request) in {location.file}"
        raise ConfigError(tuple(f"model {model.name!r}: {problem}{hint}" for problem in error.problems)) from None


def makes_examples(processor: Processor | None) -> Processor | None:
    """The processor, if its examples are used to warm up and try the model; ``None``: `make_samples` are used."""
    return None if isinstance(processor, ModelProcessor) else processor


def make_samples(
    model: ModelConfig,
    signature: ModelSignature,
    decode: DecodeRequest,
    environ: Mapping[str, str] | None = None,
    *,
    rows: bool = True,
) -> Samples:
    """Sample inputs for a model without a processor.

    Args:
        decode: Decodes samples that are V2 infer requests.
        rows: Whether the tensors have rows.

    Raises:
        ConfigError: A configured sample or value cannot be read or does not fit the model.
    """
    settings = None if model.warm_up is None else model.warm_up.read(model.name, signature, decode, environ, rows=rows)
    return samples_of(signature, settings, model=model.name, rows=rows)
