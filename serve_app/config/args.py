"""The application's arguments in a Serve file, and their checks.

Sizes are written as ``32MiB`` or a number of bytes. Names ending in ``_ms`` are milliseconds, in ``_s`` seconds.
Unknown keys are faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from serve_app import wings
from serve_app.config.budget import DEFAULT_MAXCONN, DEFAULT_ONGOING, HAPROXY_VARIABLE, MAXCONN_VARIABLE, Budget
from serve_app.config.logging import LoggingConfig
from serve_app.config.model import ModelConfig
from serve_app.config.names import deployment_name
from serve_app.config.problems import Location, problems_of, short_repr, validation_error
from serve_app.config.repository import RepositoryConfig
from serve_app.config.router import ClassesConfig, RouterConfig
from serve_app.config.values import Section, size
from serve_app.config.wing_sections import section
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits

if TYPE_CHECKING:
    from serve_app.pipelines.config import PipelineConfig
    from serve_app.pools.config import PoolConfig
else:
    PoolConfig = section("pools", "PoolConfig")
    PipelineConfig = section("pipelines", "PipelineConfig")


def _models_from_somewhere(schema: dict[str, Any]) -> None:
    schema["required"].remove("models")
    named = {"properties": {"repository": {"required": ["path"]}}, "required": ["repository"]}  # or it is a text
    schema["anyOf"] = [{"required": ["models"]}, {"required": ["pools"]}, named]
    repository = schema["properties"]["repository"]
    repository["anyOf"] = [{"$ref": repository.pop("$ref")}, {"type": "string"}]


class AppArgs(Section):
    """Everything of ours in a Serve file: the application's ``args``."""

    model_config = ConfigDict(json_schema_extra=_models_from_somewhere)

    router: RouterConfig = RouterConfig()
    """The router."""

    classes: ClassesConfig = ClassesConfig()
    """Queues and deadlines per class."""

    pools: Annotated[tuple[PoolConfig, ...], Field(strict=False)] = ()
    """Many models that share few processes, which have memory for some of them at a time."""

    models: Annotated[tuple[ModelConfig, ...], Field(strict=False, json_schema_extra={"minItems": 1})]
    """The models, each in a deployment of its own or in a pool."""

    pipelines: Annotated[tuple[PipelineConfig, ...], Field(strict=False)] = ()
    """Models that answer one request together."""

    repository: RepositoryConfig = RepositoryConfig()
    """A Triton model repository, and how models are loaded while the server runs."""

    logging: LoggingConfig = LoggingConfig()
    """The log of requests."""

    @model_validator(mode="before")
    @classmethod
    def _add_models(cls, given: Any) -> Any:
        return (
            {**given, "models": ()}
            if isinstance(given, Mapping) and given.get("pools") and "models" not in given
            else given
        )

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: tuple[ModelConfig, ...], info: ValidationInfo) -> tuple[ModelConfig, ...]:
        # Not min_length: pydantic would not count the models that have faults. Pools that have some are not there.
        if not models and not info.data.get("pools", True):
            raise ValueError("needs at least one model")
        return models

    @model_validator(mode="after")
    def _check(self) -> AppArgs:
        faults: list[tuple[Location, str]] = []
        if self.repository.path is not None:
            faults.append((("repository", "path"), "is read by serve_app.composition.read_args only"))
        seen: dict[str, int] = {}
        for number, model in enumerate(self.models):
            if model.name in seen:
                faults.append(
                    (
                        ("models", number, "name"),
                        f"{short_repr(model.name)} is also the name of models[{seen[model.name]}]",
                    )
                )
            seen.setdefault(model.name, number)
        deployments = {name: deployment_name(name) for name in seen}
        called = Counter(deployments.values())
        faults.extend(  # two hashes begin alike once in a million million pairs; Serve would mix the two models up
            (
                ("models", seen[name], "name"),
                f"its deployment would be called {short_repr(deployment)} as another's; rename",
            )
            for name, deployment in deployments.items()
            if called[deployment] > 1
        )
        body = self.router.limits.max_body
        faults.extend(
            (
                ("classes", priority.label, "queue_bytes"),
                f"{size(limits.queue_bytes)} cannot hold one body of router.limits.max_body {size(body)}",
            )
            for priority, limits in self.classes.by_priority().items()
            if limits.queue_bytes < body
        )
        problem = self.budget().problem(self.ongoing_requests)
        if problem is not None:
            faults.append((("router", "limits", "max_ongoing_requests"), problem))
        for problems in wings.hooks("config", "problems"):
            faults.extend(problems(self))
        if faults:
            raise validation_error(faults)
        return self

    @property
    def ongoing_requests(self) -> int:
        """Requests admitted to one router process at once: as configured, or its budget."""
        given = self.router.limits.max_ongoing_requests
        return max(DEFAULT_ONGOING, self.budget().requests) if given is None else given

    def most_routers(self, cores: int | None = None) -> int:
        """Most router processes, on nodes with this many cores; ``None``: depends on the nodes."""
        # One router decides what the hosts of pools load.
        return self.router.fewest if self.pools else self.router.most(cores)

    def haproxy_problem(self, environ: Mapping[str, str]) -> str | None:
        """Why HAProxy's connection limit is too small, if it is.

        Args:
            environ: Of Serve's processes, including HAProxy's.
        """
        given = environ.get(MAXCONN_VARIABLE, str(DEFAULT_MAXCONN))
        if environ.get(HAPROXY_VARIABLE) != "1" or not given.isdecimal():
            return None
        problem = self.budget().problem(int(given), self.router.fewest)
        return None if problem is None else f"{MAXCONN_VARIABLE}: {problem}"

    def budget(self) -> Budget:
        """What one router process may have to hold."""
        return Budget(
            queues={priority.label: limits.queue for priority, limits in self.classes.by_priority().items()},
            # Of replicas that `auto` may add the first alone: they come to few models, while there are idle cores.
            in_flight={
                model.name: model.most_versions
                * model.autoscaling.most()
                * model.batching.window
                * model.batching.configured_rows
                for model in self.models
                if model.pool is None
            }
            | {
                name: most for in_flight in wings.hooks("config", "in_flight") for name, most in in_flight(self).items()
            },
            headroom=self.router.limits.headroom,
        )

    def class_settings(self) -> Mapping[Priority, ClassSettings]:
        """Limits of each class, for one router's scheduler."""
        return {priority: limits.settings() for priority, limits in self.classes.by_priority().items()}

    def model_scheduling(self) -> Mapping[str, ModelScheduling]:
        """Batching of every model by name, for the scheduler."""
        return {model.name: model.scheduling() for model in self.models}

    def process_limits(self) -> ProcessLimits:
        """Limits of one router process over all classes."""
        return ProcessLimits(
            total_bytes=int(self.router.limits.max_bytes),
            high_headroom=self.router.limits.high_headroom,
            network_s=self.router.network_ms / 1000,
        )


def parse_args(data: Any, prefix: str = "args") -> AppArgs:
    """Check the ``args:``.

    Args:
        data: From YAML.
        prefix: Precedes each place in messages.

    Raises:
        ConfigError: One line per fault.
    """
    given = {} if data is None else data
    try:
        return AppArgs.model_validate(given)
    except ValidationError as error:
        problems = problems_of(error, given, AppArgs.model_json_schema(), prefix)
    raise ConfigError(problems)
