"""Settings of one model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

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

from serve_app import wings
from serve_app.config.autoscaling import AutoscalingConfig
from serve_app.config.batching import ModelBatchingConfig, fallback_problems
from serve_app.config.breaker import BreakerConfig
from serve_app.config.files import is_remote
from serve_app.config.names import checked_model_name, checked_variant_name, deployment_name
from serve_app.config.problems import Location, nearest, short_repr, validation_error
from serve_app.config.processor import PROCESSOR_OPTIONS, AudioOptions, CustomOptions, ImageOptions, installed_tasks
from serve_app.config.resources import ResourcesConfig
from serve_app.config.tensors import (
    Format,
    FormatByInput,
    Labels,
    LabelsByOutput,
    checked_format,
    checked_labels,
)
from serve_app.config.values import Positive, Seconds, Section
from serve_app.config.warm_up import WarmUpConfig
from serve_app.config.wing_sections import section
from serve_app.domain.row_sizes import row_buckets
from serve_app.payloads import TENSORS
from serve_app.scheduling.settings import COPIES, ModelScheduling

if TYPE_CHECKING:
    from serve_app.cache.config import ModelCacheConfig
    from serve_app.versions.config import Aliases, ShadowConfig, Sticky, Versions, Weights
else:
    ModelCacheConfig = section("cache", "ModelCacheConfig")
    Aliases = section("versions", "Aliases")
    ShadowConfig = section("versions", "ShadowConfig")
    Sticky = section("versions", "Sticky")
    Versions = section("versions", "Versions")
    Weights = section("versions", "Weights")

_VERSIONS = wings.find("versions", "config")

_TASKS = (TENSORS, *PROCESSOR_OPTIONS)
_AUTO_REPLICAS = 2
_NO_TARGET = 10**6
"""A queue that no model has."""
_TASK = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")
"""The names that Hugging Face gives tasks look like this."""


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

    version: Positive | None = None
    """Version to run, of a folder of versions; by default the highest, or with the model's `versions` the model's."""

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
    """`tensors`, or the Hugging Face task whose media it takes, e.g. `image-classification`.

    Another name needs a processor for it: `processor.class`, or an installed package that has one for this task.
    """

    path: str = Field(min_length=1)
    """Folder that holds `<version>/FILE`, or FILE itself, or a file: of a kind that a backend runs.

    Relative to `SERVE_APP_HOME`, absolute, or any fsspec URI.
    """

    backend: str | None = Field(default=None, min_length=1)
    """What runs the model and its variants; by default the backend that runs files of such a name."""

    file: Annotated[str, Field(pattern=r"^[^/.][^/]*(/[^/.][^/]*)*$")] | None = None
    """Name of the model's file in `path`, or in each version below it; by default as its backend calls it."""

    backend_options: dict[str, Any] = Field(default_factory=dict)
    """How the backend runs it; which keys there are depends on the backend."""

    version: Positive | None = None
    """Version to serve, of a folder of versions; by default the highest there is."""

    versions: Versions | None = None
    """Several versions to serve at once: a list, or `{latest: 2}`. Each has replicas of its own."""

    aliases: Aliases = Field(default_factory=dict)
    """Other names of versions. `stable` answers requests that name none; by default it is the newest."""

    traffic: Weights = Field(default_factory=dict)
    """Parts of the requests that name no version, by version or alias: `{stable: 90, candidate: 10}`.

    By default `stable` answers all of them.
    """

    sticky: Sticky = "request_id"
    """What always leads to the same version while `traffic` stays as it is: the API key, or without keys the client's
    address; the id of the request, so that a retry does; or nothing."""

    shadow: ShadowConfig | None = None
    """A version that runs copies of requests, in class `low`, without answering them. Answers are compared."""

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
    """How media become tensors and tensors become answers; which keys there are depends on the task.

    `class` names a class of your own that does it.
    """

    autoscaling: AutoscalingConfig = AutoscalingConfig()
    """How many replicas there are."""

    health: HealthConfig = HealthConfig()
    """How replicas are watched and stopped."""

    breaker: BreakerConfig = BreakerConfig()
    """When a model that fails is not asked any more, and a replica that fails alone gets no work."""

    pool: str | None = None
    """Name of the pool that it is a member of: its hosts run it, among others. By default it has replicas of its own.
    """

    variants: Annotated[tuple[VariantConfig, ...], Field(strict=False)] = ()
    """Other builds of the model, the most exact first."""

    fallbacks: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of variants that answer requests for the exact model where it would be too late, the most exact first.

    The answer tells in `X-Variant` which one ran. A request can forbid it, and one that names a variant gets that.
    """

    stream_timeout_s: Seconds = 300.0
    """For how long a whole answer may take, of a model that answers in parts. A request may ask for less, not for more.

    The request's deadline is for the first part.
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
        if not _TASK.fullmatch(task):
            hint = "a class belongs into processor.class" if ":" in task else f"known tasks: {', '.join(_TASKS)}"
            raise ValueError(
                f"must be lower-case letters, digits and '-', as in image-thumbnail, got {short_repr(task)}; {hint}"
            )
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
        given = {} if given is None else given
        if task not in PROCESSOR_OPTIONS or (isinstance(given, Mapping) and "class" in given):
            return CustomOptions.model_validate(given, strict=True)
        options: BaseModel = PROCESSOR_OPTIONS[task].model_validate(given, extra="forbid")
        return options

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        faults: list[tuple[Location, str]] = []
        if problem := self._task_problem():
            faults.append((("task",), problem))
        seen: set[str] = set()
        for number, variant in enumerate(self.variants):
            if variant.name in seen:
                faults.append((("variants", number, "name"), f"{short_repr(variant.name)} is used twice"))
            seen.add(variant.name)
        faults += [
            ((key,), f"is for models of task {TENSORS}; a model of pictures has {instead}")
            for key, instead in (("labels", "processor.labels"), ("format", "processor.layout"))
            if self.task != TENSORS and getattr(self, key) is not None
        ]
        faults += fallback_problems(self.fallbacks, [variant.name for variant in self.variants])
        sizes, known = self.resources.row_sizes, row_buckets(self.batching.configured_rows)
        for number, size in enumerate(sizes if isinstance(sizes, tuple) else ()):
            if size not in known:
                among = ", ".join(map(str, known))
                faults.append((("resources", "row_sizes", number), f"must be one of {among}, got {size}"))
        if self.warm_up is not None and self.task != TENSORS and not self._names_no_processor:
            faults.append((("warm_up",), f"the task {self.task} makes inputs of its own; leave this out"))
        if _VERSIONS is not None:
            faults += _VERSIONS.version_faults(self)
        if faults:
            raise validation_error(faults)
        return self

    @property
    def _names_no_processor(self) -> bool:
        """Whether only the model's file or an installed package can make tensors for its task."""
        return isinstance(self.processor, CustomOptions) and self.processor.class_ is None

    def _task_problem(self) -> str | None:
        """Why no processor exists for this task, if so."""
        custom = self.processor
        if not isinstance(custom, CustomOptions) or custom.class_ is not None:
            return None
        known = (*_TASKS, *sorted(installed_tasks()))
        if self.task in PROCESSOR_OPTIONS:
            return "processor.class is empty: name a class, or leave it out"
        if self.task in known or self.backend is not None:  # the model's file may make tensors by itself
            return None
        guess = nearest(self.task, known)
        hint = f"did you mean {guess}?" if guess else f"known tasks: {', '.join(known)}; others need processor.class"
        return f"unknown task {short_repr(self.task)}; {hint}"

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Tie the keys of ``processor`` to the task."""
        reference = super().__get_pydantic_json_schema__(core_schema, handler)
        schema = handler.resolve_ref_schema(reference)
        description = schema["properties"]["processor"]["description"]
        schema["properties"]["processor"] = {"description": description, "type": ["object", "null"]}
        batching = schema["properties"]["batching"]
        described = {key: batching.pop(key) for key in ("description", "default") if key in batching}
        schema["properties"]["batching"] = {**described, "anyOf": [batching, {"const": "none"}]}
        task = schema["properties"]["task"]
        described = {key: task.pop(key) for key in ("description", "default")}
        schema["properties"]["task"] = {**described, "anyOf": [{"enum": _TASKS}, {**task, "pattern": _TASK.pattern}]}
        template = "#/$defs/{model}"
        custom = CustomOptions.model_json_schema(ref_template=template) | {"required": ["class"]}
        schema["allOf"] = [
            {
                "if": {"properties": {"task": {"const": task}}, "required": ["task"]},
                "then": {
                    "properties": {"processor": {"anyOf": [options.model_json_schema(ref_template=template), custom]}}
                },
            }
            for task, options in PROCESSOR_OPTIONS.items()
        ]
        return reference

    def scheduling(self) -> ModelScheduling:
        """The values for the scheduler."""
        return replace(
            self.batching.scheduling(self.name, self.fallbacks),
            variants=tuple(variant.name for variant in self.variants),
            breaker=self.breaker.settings(),
            # Every replica that has a picture or a sound decodes it, before anybody knows who runs it.
            copies=1 if isinstance(self.processor, ImageOptions | AudioOptions | CustomOptions) else COPIES,
        )

    @property
    def most_versions(self) -> int:
        """Most versions served at once."""
        return 1 if self.versions is None else len(self.versions)

    @property
    def remote(self) -> bool:
        """Whether files must be fetched."""
        return any(is_remote(path) for path in (self.path, *(variant.path for variant in self.variants)))

    @property
    def deployment(self) -> str:
        """Name of its deployment."""
        return deployment_name(self.name)

    @property
    def caches(self) -> bool:
        """Whether answers are cached."""
        return self.cache is not None and self.cache.enabled

    @property
    def most_replicas(self) -> int:
        """Most replicas."""
        return self.autoscaling.most(_AUTO_REPLICAS if self.more_processes else 1)

    @property
    def more_processes(self) -> bool:
        """Whether a busy process may cause another replica.

        On a GPU the device is the busy part, and custom code may keep state.
        """
        own = self.backend == "python" or isinstance(self.processor, CustomOptions)
        return self.pool is None and not self.resources.gpus and not own

    @property
    def most_rows(self) -> int:
        """Most rows of a batch that its replicas may choose."""
        alone = self.pool is None and not self.resources.gpus
        return self.batching.most_rows if alone else self.batching.configured_rows

    @property
    def target_rows(self) -> int:
        """Autoscaling's target of queued and running rows per replica."""
        scaling = self.autoscaling
        default = _NO_TARGET if scaling.max_replicas == "auto" else 2 * self.batching.configured_rows
        return scaling.target_queue or default
