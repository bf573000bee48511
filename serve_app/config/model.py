"""Settings of one model: what it is, what it runs on, how it is batched, scaled and watched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from serve_app.backends.description import Description, describe_build
from serve_app.backends.onnx.backend import OnnxSettings
from serve_app.backends.onnx.signature import ROWS_FIRST, Layout
from serve_app.backends.samples import Samples, make_samples
from serve_app.backends.warm_up import row_buckets, spaced_rows
from serve_app.config.autoscaling import AutoscalingConfig
from serve_app.config.batching import ModelBatchingConfig, fallback_faults
from serve_app.config.breaker import BreakerConfig
from serve_app.config.cache import ModelCacheConfig
from serve_app.config.faults import Location, misfit, nearest, shown
from serve_app.config.locate import ModelLocation, home, resolve_model
from serve_app.config.names import checked_model_name, checked_variant_name, deployment_name
from serve_app.config.profile import Profile, check_profile, read_profile
from serve_app.config.resources import ResourcesConfig
from serve_app.config.tensors import (
    Format,
    FormatByInput,
    Labels,
    LabelsByOutput,
    checked_format,
    checked_labels,
    label_files,
)
from serve_app.config.values import Positive, Seconds, Section
from serve_app.config.warm_up import DecodeRequest, WarmUpConfig
from serve_app.errors import ConfigError
from serve_app.payloads import TENSORS, ModelSignature
from serve_app.processors import PROCESSOR_OPTIONS, create_processor
from serve_app.processors.options import AudioOptions, ImageOptions
from serve_app.processors.processor import Processor
from serve_app.scheduling.settings import COPIES, ModelScheduling


class HealthConfig(Section):
    """How replicas of a model are watched and stopped."""

    check_period_s: Seconds = 5.0
    """How often a replica's health is checked."""

    check_timeout_s: Seconds = 5.0
    """How long a health check may take. Ray Serve replaces a replica after three in a row that took longer."""

    warm_up_s: Seconds = 5.0
    """Time that a starting replica spends on running every batch shape once; what does not fit is left out."""

    stall_timeout_s: Seconds = 60.0
    """A single run of the session that takes longer fails the health check, and the replica is replaced."""

    refuse_non_finite: bool = False
    """Fail a request with 500 whose output holds NaN or infinity, alone of its batch.

    Off, since models of plain tensors may mean them (a masked logit, the logarithm of 0). What answers media and
    embeddings refuses them in any case.
    """

    drain_timeout_s: Seconds = 20.0
    """How long a replica that is being stopped may take to finish its work."""


class VariantConfig(Section):
    """Another build of a model: cheaper and less exact. It lives in the same replicas."""

    name: str
    """Its name, unique within the model: printable ASCII without `/` and `,`, as it travels in `X-Variant`."""

    path: str = Field(min_length=1)
    """Its folder, as in the model's `path`."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_variant_name(name)


class ModelConfig(Section):
    """One model."""

    name: str
    """Its name for clients, in URLs, metrics and logs: any printable characters but `/`, up to 255 bytes.

    `serve status` shows the name of its deployment: the same where that is letters, digits, `-`, `_` and `.`.
    """

    task: str = TENSORS
    """`tensors`, or the Hugging Face task whose media it takes, e.g. `image-classification`."""

    path: str = Field(min_length=1)
    """Folder that holds `<version>/model.onnx`, or `model.onnx` itself, or an `.onnx` file.

    Relative to `SERVE_APP_HOME`, absolute, or any fsspec URI.
    """

    version: Positive | None = None
    """Version to serve, of a folder of versions; by default the highest there is."""

    labels: Labels | LabelsByOutput | None = None
    """Names for the values of an output, of a model of plain tensors: a list, or a file beside the model.

    By output, or for the one that they fit. Requests for classes then get `value:index:label`. By default `labels.txt`
    where it lies beside the model. Models of media have `processor.labels`.
    """

    format: Format | FormatByInput | None = None
    """Order of the axes of inputs that hold pictures, of a model of plain tensors, for clients that ask for it.

    By input, or for the one that can be a picture. Models of media have `processor.layout`.
    """

    batching: ModelBatchingConfig = ModelBatchingConfig()
    """How rows are put into batches, and when they may be. `none`: never."""

    resources: ResourcesConfig = ResourcesConfig()
    """What each replica runs on."""

    processor: SerializeAsAny[BaseModel] | None = Field(default=None, validate_default=True)
    """How media become tensors and tensors become answers; which keys there are depends on the task."""

    autoscaling: AutoscalingConfig = AutoscalingConfig()
    """How many replicas there are."""

    health: HealthConfig = HealthConfig()
    """How replicas are watched and stopped."""

    breaker: BreakerConfig = BreakerConfig()
    """When a model that fails is not asked any more, and a replica that fails alone gets no work."""

    variants: Annotated[tuple[VariantConfig, ...], Field(strict=False)] = ()
    """Other builds of the model, the most exact first."""

    fallbacks: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of variants that answer requests for the exact model where it would be too late, the most exact first.

    The answer tells in `X-Variant` which one ran. A request can forbid it, and one that names a variant gets that.
    """

    cache: ModelCacheConfig | None = None
    """Give answers again to the same request. By default every request is executed."""

    warm_up: WarmUpConfig | None = None
    """Inputs that the model runs, for the warm-up, profiles and the self-test. By default values of our own."""

    profile: str | None = Field(default=None, min_length=1)
    """File written by `serve-app profile`: what batches cost, until replicas have measured it. Located as `path` is."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return checked_model_name(name)

    @field_validator("task")
    @classmethod
    def _check_task(cls, task: str) -> str:
        known = (TENSORS, *PROCESSOR_OPTIONS)
        if task not in known:
            guess = nearest(task, known)
            hint = f"did you mean {guess}?" if guess else f"known tasks: {', '.join(known)}"
            raise ValueError(f"unknown task {shown(task)}; {hint}")
        return task

    @field_validator("batching", mode="before")
    @classmethod
    def _read_batching(cls, given: Any) -> Any:
        return {"join": "never"} if given == "none" else given

    @field_validator("labels", mode="before")
    @classmethod
    def _check_labels(cls, given: Any) -> Any:
        return None if given is None else checked_labels(given)

    @field_validator("format", mode="before")
    @classmethod
    def _check_format(cls, given: Any) -> Any:
        return None if given is None else checked_format(given)

    @field_validator("processor", mode="before")
    @classmethod
    def _check_processor(cls, given: Any, info: ValidationInfo) -> BaseModel | None:
        task = info.data.get("task")
        if isinstance(given, BaseModel) or task is None:  # already checked, or the task itself is a fault
            return given if isinstance(given, BaseModel) else None
        if task == TENSORS:
            if given is not None:
                raise ValueError(f"a model of task {TENSORS} has no processor; name the task it is for")
            return None
        options: BaseModel = PROCESSOR_OPTIONS[task].model_validate({} if given is None else given, extra="forbid")
        return options

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        faults: list[tuple[Location, str]] = []
        seen: set[str] = set()
        for number, variant in enumerate(self.variants):
            if variant.name in seen:
                faults.append((("variants", number, "name"), f"{shown(variant.name)} is used twice"))
            seen.add(variant.name)
        faults += [
            ((key,), f"is for models of task {TENSORS}; a model of pictures has {instead}")
            for key, instead in (("labels", "processor.labels"), ("format", "processor.layout"))
            if self.task != TENSORS and getattr(self, key) is not None
        ]
        faults += fallback_faults(self.fallbacks, [variant.name for variant in self.variants])
        sizes, known = self.resources.row_sizes, row_buckets(self.batching.max_rows)
        for number, size in enumerate(sizes if isinstance(sizes, tuple) else ()):
            if size not in known:
                among = ", ".join(map(str, known))
                faults.append((("resources", "row_sizes", number), f"must be one of {among}, got {size}"))
        if self.warm_up is not None and self.task != TENSORS:
            faults.append((("warm_up",), f"the task {self.task} makes inputs of its own; leave this out"))
        if faults:
            raise misfit(faults)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Tie the keys of ``processor`` to the task."""
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        description = schema["properties"]["processor"]["description"]
        schema["properties"]["processor"] = {"description": description, "type": ["object", "null"]}
        batching = schema["properties"]["batching"]
        described = {key: batching.pop(key) for key in ("description", "default") if key in batching}
        schema["properties"]["batching"] = {**described, "anyOf": [batching, {"const": "none"}]}
        schema["properties"]["task"]["enum"] = [TENSORS, *PROCESSOR_OPTIONS]
        schema["allOf"] = [
            {
                "if": {"properties": {"task": {"const": task}}, "required": ["task"]},
                "then": {"properties": {"processor": options.model_json_schema(ref_template="#/$defs/{model}")}},
            }
            for task, options in PROCESSOR_OPTIONS.items()
        ]
        return reference

    def scheduling(self) -> ModelScheduling:
        """The values for the scheduler."""
        return replace(
            self.batching.scheduling(self.name, self.fallbacks),
            resident_bytes=self.resident_bytes,
            bytes_per_row=int(self.resources.memory_per_row or 0),
            variants=tuple(variant.name for variant in self.variants),
            breaker=self.breaker.settings(),
            # Every replica that has a picture or a sound decodes it, before anybody knows who runs it.
            copies=1 if isinstance(self.processor, ImageOptions | AudioOptions) else COPIES,
        )

    def onnx_settings(self, model_file: Path, *, gpu_available: bool, layout: Layout = ROWS_FIRST) -> OnnxSettings:
        """The values for one session of a replica: the model's own or that of a variant, which share the GPU memory.

        Args:
            model_file: The ONNX file, from `serve_app.config.resolve_model`.
            gpu_available: Whether the cluster gave this replica a GPU, whole or in part.
            layout: Where its rows are, from `describe`.
        """
        memory = self.resources.gpu_memory
        cache = self.resources.tensorrt_cache
        row_sizes = self.resources.row_sizes
        sizes = spaced_rows(self.batching.max_rows) if row_sizes == "auto" else row_sizes
        return OnnxSettings(
            model=self.name,
            model_file=model_file,
            device=self.resources.device,
            gpu_available=gpu_available,
            gpu_memory_bytes=None if memory is None else max(1, int(memory) // (1 + len(self.variants))),
            row_sizes=() if sizes == "any" else sizes,
            only_for_convolutions=row_sizes == "auto",
            intra_op_threads=self.resources.threads,
            max_rows=self.batching.max_rows,
            tensorrt=self.resources.tensorrt,
            tensorrt_fp16=self.resources.tensorrt_fp16,
            tensorrt_cache=None if cache is None else home(os.environ) / cache,
            layout=layout,
        )

    def describe(self, locations: Mapping[str, ModelLocation]) -> dict[str, Description]:
        """Read the files of the model and of its variants, and decide by their graphs what may share runs.

        Args:
            locations: The model's files, from `locations`.

        Raises:
            ConfigError: One cannot be served, or a variant takes or gives other tensors than the model itself.
        """
        settings = self.batching.joining()
        exact = describe_build(locations[""].model_file, model=self.name, settings=settings)
        described = {"": exact}
        problems = []
        for variant, location in locations.items():
            if not variant:
                continue
            other = describe_build(location.model_file, model=self.name, settings=settings, exact=exact)
            described[variant] = other
            if other.signature != exact.signature:
                problems.append(
                    f"model {self.name!r}: variant {variant!r} takes {other.signature}, the model itself takes"
                    f" {exact.signature}"
                )
        if problems:
            raise ConfigError(tuple(problems))
        return described

    def locations(self, environ: Mapping[str, str] | None = None) -> dict[str, ModelLocation]:
        """Find the files of the model and of its variants, copying remote ones here.

        Args:
            environ: Environment variables; by default those of this process.

        Returns:
            By variant; the model itself is ``""``.

        Raises:
            ConfigError: Something is not there; names the path.
        """
        exact = resolve_model(self.path, self.version, environ, self._named_files())
        return {"": exact} | {variant.name: resolve_model(variant.path, None, environ) for variant in self.variants}

    def _named_files(self) -> tuple[str, ...]:
        """Files beside the model that this configuration names, relative to the model's folder."""
        names = (*label_files(self.labels), *label_files(getattr(self.processor, "labels", None)))
        return tuple(name for name in names if not name.startswith("/") and ".." not in name.split("/"))

    def make_processor(self, signature: ModelSignature, location: ModelLocation) -> Processor | None:
        """Make the model's processor, or ``None`` for a model that takes tensors only.

        Args:
            signature: The model's tensors.
            location: The model's files, one of `locations`.

        Raises:
            ConfigError: The options, the files beside the model and its tensors do not fit together.
        """
        if self.processor is None:
            return None
        options = self.processor.model_dump(exclude_unset=True)
        try:
            return create_processor(self.task, signature, location.sidecars(), options)
        except ConfigError as error:
            raise ConfigError(tuple(f"model {self.name!r}: {problem}" for problem in error.problems)) from None

    def make_samples(
        self,
        signature: ModelSignature,
        decode: DecodeRequest,
        environ: Mapping[str, str] | None = None,
        *,
        rows: bool = True,
    ) -> Samples:
        """Inputs to run the model with, where it has no processor.

        Args:
            signature: The model's tensors.
            decode: Decodes samples that are V2 infer requests.
            environ: Environment variables; by default those of this process.
            rows: Whether the tensors have rows.

        Raises:
            ConfigError: A configured sample or value cannot be read or does not fit the model.
        """
        settings = None if self.warm_up is None else self.warm_up.read(self.name, signature, decode, environ)
        return make_samples(signature, settings, model=self.name, rows=rows)

    def read_profile(
        self, locations: Mapping[str, ModelLocation], environ: Mapping[str, str] | None = None
    ) -> Profile | None:
        """Read the model's profile, or ``None`` where none is configured.

        Args:
            locations: The model's files, from `locations`.
            environ: Environment variables; by default those of this process.

        Raises:
            ConfigError: It is missing, not a profile, or that of another model.
        """
        if self.profile is None:
            return None
        try:
            profile = read_profile(self.profile, environ)
            problems = tuple(f"{self.profile}: {problem}" for problem in check_profile(profile, self.name, locations))
        except ConfigError as error:
            problems = error.problems
        if problems:
            raise ConfigError(tuple(f"model {self.name!r}: profile: {problem}" for problem in problems))
        return profile

    def profile_notes(self, profile: Profile) -> tuple[str, ...]:
        """Say where replicas of this configuration differ from what was measured, one line per difference."""
        notes = []
        resources = self.resources
        if resources.device == "cuda" or resources.gpus == 0:  # otherwise the cluster decides
            device = "cuda" if resources.device == "cuda" else "cpu"
            if profile.device != device:
                notes.append(f"was measured on {profile.device}, replicas run on {device}")
        if profile.device == "cpu" and profile.threads != resources.threads:
            notes.append(f"was measured with threads: {profile.threads}, replicas have {resources.threads}")
        largest = max(shape.rows for shape in profile.shapes)
        if largest < self.batching.max_rows:
            notes.append(f"was measured up to {largest} rows, batches have up to {self.batching.max_rows}")
        notes += [
            f"does not have the variant {shown(variant.name)}"
            for variant in self.variants
            if variant.name not in profile.variants
        ]
        return tuple(f"model {self.name!r}: profile: {self.profile} {note}" for note in notes)

    @property
    def deployment(self) -> str:
        """Name of its deployment."""
        return deployment_name(self.name)

    @property
    def caches(self) -> bool:
        """Whether answers are given again."""
        return self.cache is not None and self.cache.enabled

    @property
    def resident_bytes(self) -> int:
        """Memory that all its replicas may hold on a GPU; 0 where it is not limited."""
        return int(self.resources.gpu_memory or 0) * self.autoscaling.max_replicas

    @property
    def target_rows(self) -> int:
        """Rows queued and running per replica that autoscaling aims for."""
        return self.autoscaling.target_queue or 2 * self.batching.max_rows
