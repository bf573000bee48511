"""The single path of all requests, for every API.

An API's `Operation` reads its requests and writes its answers. Everything else happens here, once and in this order, so
that no API can skip a stage:

wait in the order of urgency while the event loop is busy (`Turns`); admit the API key, its rate and class; look the
model and its version up, where the path names it; read the body within the deadline, and parse it but for its data;
precheck room in the queue; decode the data, large bodies in a thread; submit with what is left of the deadline; write.

At the end of a request its body is no longer counted. `Gateway.refused` counts and logs requests that never reached the
scheduler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from time import monotonic
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from serve_app.access.guard import Guard, Policy
from serve_app.access.guarded import GuardedAdministration, GuardedInference
from serve_app.api.content_type import is_form
from serve_app.domain.options import (
    BodyHints,
    QosHints,
    client_of,
    header_timeout_s,
    levels_of,
    max_header_timeout_s,
    remaining,
    request_id_of,
    request_options,
)
from serve_app.domain.priorities import PriorityLevels
from serve_app.domain.service import Administration, Answer, Inference, ModelInfo, RequestOptions, unknown_version
from serve_app.domain.versions import Asker
from serve_app.errors import PermissionDenied, RateLimited, ServeAppError, Unauthenticated
from serve_app.http.body import BodyReader
from serve_app.http.errors import code_of
from serve_app.http.turns import Turns
from serve_app.payloads import Payload, nbytes_of
from serve_app.telemetry.request_log import RequestLog

_Call = TypeVar("_Call", bound="Call")
_Parsed = TypeVar("_Parsed")
_Reply = TypeVar("_Reply")

_FROM_INSIDE: Final = {b"x-priority": b"low"}
"""Headers by which an item of a job waits for its turn."""
_BY_THE_GUARD: Final = (Unauthenticated, RateLimited, PermissionDenied)
"""These are logged whatever was asked for, which may not be known yet."""


class Call(Protocol):
    """One request over any transport.

    Attributes:
        headers: Headers or metadata, by lower-case name.
        model: The model in its path; ``None``: the body names it.
        version: The version in its path or headers.
        asked_model: The requested model, empty while unknown; ``None`` if the call runs no model.
        arrived: Whether its body is complete already.
        waited_s: How long the body had been arriving when it was taken up, seconds; part of the deadline.
        scheduled: Whether its start was scheduled before it came here.
    """

    arrived: ClassVar[bool]
    headers: dict[bytes, bytes]
    model: str | None
    version: str | None
    asked_model: str | None

    @property
    def scheduled(self) -> bool:
        """Whether its start was scheduled before it came here."""

    @property
    def waited_s(self) -> float:
        """Seconds that the body had been arriving; part of the deadline."""

    def qos(self, levels: PriorityLevels) -> QosHints:
        """The class and the deadline named outside the body.

        Raises:
            InvalidRequest: A named class or deadline is invalid.
        """

    def declared_size(self, bodies: BodyReader) -> int | None:
        """Bytes of the body, if known before reading. Raises `PayloadTooLarge` and `InvalidRequest`."""

    async def read(self, operation: Any, bodies: BodyReader, limit_s: float) -> bytes | memoryview:
        """The body, counted until `release`; ``limit_s`` bounds its arrival. Raises what `BodyReader.read` raises."""

    def release(self, bodies: BodyReader) -> None:
        """Stop counting the body, after it is decoded or dropped."""


class Operation(ABC, Generic[_Call, _Parsed, _Reply]):
    """How one API reads inference requests and writes their answers. Stateless; safe in any thread.

    Slow conversions of large bodies have a cost, in converted bytes: above `BodyReader.offload_above` they run in a
    thread. Parsing and decoding cost at most the size of the body, so their cost is not computed for smaller bodies.

    Attributes:
        names_class: Whether a body may name the request's class. Otherwise queue capacity is checked before the body is
            read.
    """

    names_class: ClassVar[bool] = False
    takes_forms: ClassVar[bool] = False

    def check(self, info: ModelInfo, call: _Call) -> None:
        """Check the model and the headers as soon as the model is known.

        Raises:
            ServeAppError: The model does not support this operation.
        """

    def parse_cost(self, call: _Call, nbytes: int) -> int:  # noqa: ARG002
        """Bytes that `parse` converts; by default the whole body."""
        return nbytes

    @abstractmethod
    def parse(self, call: _Call, info: ModelInfo | None, body: bytes | memoryview) -> _Parsed:
        """Parse a body, leaving its data undecoded as far as possible.

        Args:
            info: The model in the path; ``None``: the body names it.
            body: Complete and decompressed.

        Raises:
            ServeAppError: The body is malformed.
        """

    async def parse_form(self, call: _Call, info: ModelInfo | None, body: bytes | memoryview) -> _Parsed:
        """`parse` for a multipart form, whose parser yields to the event loop by itself."""
        raise NotImplementedError(f"{type(self).__name__} takes no forms")

    def target(self, parsed: _Parsed) -> tuple[str, str | None]:
        """Model and version that a body names; only for requests whose path names none."""
        raise NotImplementedError(f"the path of {type(self).__name__} names the model")

    @abstractmethod
    def hints(self, parsed: _Parsed) -> BodyHints:
        """The body's options beside its data."""

    def decode_cost(self, info: ModelInfo, parsed: _Parsed, nbytes: int) -> int:  # noqa: ARG002
        """Bytes that `decode` converts; by default the whole body."""
        return nbytes

    @abstractmethod
    def decode(self, info: ModelInfo, parsed: _Parsed) -> Payload:
        """Make the model's input, and check everything that can be checked before it runs.

        Raises:
            ServeAppError: The data does not fit the model.
        """

    def write_cost(self, info: ModelInfo, parsed: _Parsed, answer: Answer) -> int:  # noqa: ARG002
        """Bytes that `write` converts."""
        return 0

    @abstractmethod
    def write(self, info: ModelInfo, parsed: _Parsed, answer: Answer) -> _Reply:
        """Write an answer."""


class Asked(Struct, Generic[_Call, _Parsed, _Reply]):
    """A request that has been read, to be answered once by `Gateway.answer` or `Gateway.parts`.

    Attributes:
        version: As named, if any.
        parsed: The operation's result of parsing the body.
        payload: The model's input; ``None`` after it was handed to `Inference`.
    """

    operation: Operation[_Call, _Parsed, _Reply]
    info: ModelInfo
    version: str | None
    parsed: _Parsed
    payload: Payload | None
    options: RequestOptions

    def take_payload(self) -> Payload:
        """Hand over the model's input, which is dropped here."""
        payload, self.payload = self.payload, None
        assert payload is not None
        return payload


class Gateway:
    """The path of every request.

    Args:
        administration: What operators see and change.
        bodies: Reads bodies within limits, and runs long conversions in threads.
        guard: Checks API keys; ``None``: every request is allowed.
        log: Logs requests that are refused before they reach a model.
        open_administration: Whether any client may change the server if there are no API keys.
        turns: Schedules the start of requests that are not scheduled already; ``None``: nothing does.

    Attributes:
        inference: The models visible to the current request's key.
        administration: The server, likewise.
    """

    def __init__(
        self,
        inference: Inference,
        administration: Administration,
        bodies: BodyReader,
        guard: Guard | None = None,
        log: RequestLog | None = None,
        *,
        open_administration: bool = False,
        turns: Turns | None = None,
    ) -> None:
        self._turns = turns
        self.inference: Inference = inference
        self.administration: Administration = administration
        if guard is not None:
            self.inference = guarded = GuardedInference(inference, guard)
            self.administration = GuardedAdministration(administration, guarded, guard)
        self.bodies = bodies
        self._whole = inference
        self._guard = guard
        self._log = log
        self._open_administration = open_administration

    def authorize(self, policy: Policy, headers: Mapping[bytes, bytes], model: str | None = None) -> None:
        """Admit a request that runs no model, and count it against its key's rate.

        Args:
            headers: By lower-case name.

        Raises:
            ServeAppError: As `Guard.authorize`, and where it would change the server also as `require_admin`, or as
                `Inference.find` where there is no such model.
        """
        if self._guard is not None:
            self._guard.authorize(policy, headers)
        if policy == "administration":
            if model is not None and model not in self.inference.unloaded:
                self.inference.find(model)
            self.require_admin()

    def require_admin(self) -> None:
        """Allow the current request to change the server.

        Raises:
            PermissionDenied: The key is not allowed to.
            Unauthenticated: The request has no key, and keys are configured.
        """
        if self._guard is not None:
            self._guard.require_admin()
        elif not self._open_administration:
            raise PermissionDenied(
                "this changes the server for all clients: use an API key with admin: true (router.access.keys_file), or"
                " set router.access.open_administration: true"
            )

    def is_open(self, policy: Policy) -> bool:
        """Whether requests with this policy need no key."""
        return self._guard is None or self._guard.is_open(policy)

    @property
    def has_keys(self) -> bool:
        """Whether there are API keys."""
        return self._guard is not None

    def is_anonymous(self) -> bool:
        """Whether the current request has no key while keys are configured."""
        return self._guard is not None and self._guard.is_anonymous()

    @property
    def caller(self) -> str:
        """Name of the current request's API key; empty without keys."""
        return "" if self._guard is None else self._guard.name

    async def run(
        self, operation: Operation[_Call, _Parsed, _Reply], call: _Call, owner: str | None = None
    ) -> tuple[Answer, _Reply]:
        """Answer one inference request: `read` and `answer`. Cancelling it cancels its work."""
        return await self.answer(await self.read(operation, call, owner))

    async def read(
        self, operation: Operation[_Call, _Parsed, _Reply], call: _Call, owner: str | None = None
    ) -> Asked[_Call, _Parsed, _Reply]:
        """Read one inference request, and check everything that can be checked before its model runs.

        Args:
            owner: Name of the API key to charge for an internal request; ``None``: the request's own.

        Raises:
            ClientGone: The client disconnected before its request was complete.
        """
        arrived = monotonic() - call.waited_s
        service, bodies, named = self.inference, self.bodies, call.model
        call.asked_model = named or ""
        if self._turns is not None and not call.scheduled:
            await self._turns.turn(call.headers if owner is None else _FROM_INSIDE)
        if self._guard is not None:
            if owner is None:
                self._guard.admit(call.headers)
            else:
                self._guard.act_for(owner)
        info, version, roomy, limit_s = None, call.version, False, 0.0
        if named is not None:
            info = service.find(named, call.version)
            if info.key and call.version is None:
                info = self._chosen(info.name, call.headers)
            operation.check(info, call)
            qos = call.qos(info.levels)
            limit_s = header_timeout_s(info, qos)
            if not operation.names_class and (declared := call.declared_size(bodies)) is not None:
                service.precheck(info.key or named, qos[0], declared, client_of(call.headers))
                roomy = True
        elif not call.arrived:
            models = service.models.values()
            limit_s = max_header_timeout_s(models, call.qos(levels_of(models)))
        body = await call.read(operation, bodies, limit_s)
        try:
            nbytes = len(body)
            large = nbytes > bodies.offload_above
            if operation.takes_forms and is_form(call.headers):
                parsed = await operation.parse_form(call, info, body)
            elif large and operation.parse_cost(call, nbytes) > bodies.offload_above:
                parsed = await bodies.offload(operation.parse, call, info, body)
            else:
                parsed = operation.parse(call, info, body)
            if info is None:
                call.asked_model, version = operation.target(parsed)
                version = version or call.version
                info = service.find(call.asked_model, version)
                if info.key and version is None:
                    info = self._chosen(info.name, call.headers)
                operation.check(info, call)
                qos = call.qos(info.levels)
            options = request_options(info, call.headers, nbytes, operation.hints(parsed), qos)
            if not roomy:  # most of the work is still to be done
                service.precheck(info.key or info.name, options.priority, nbytes, options.attributes.tenant)
            if large and operation.decode_cost(info, parsed, nbytes) > bodies.offload_above:
                payload, held = await bodies.offload(_decoded, operation, info, parsed)
            else:
                payload = operation.decode(info, parsed)
                held = nbytes_of(payload) if isinstance(payload, dict) else 0
        finally:
            call.release(bodies)
        options = remaining(options, monotonic() - arrived, max(nbytes, held))
        return Asked(operation, info, version, parsed, payload, options)

    async def answer(self, asked: Asked[_Call, _Parsed, _Reply]) -> tuple[Answer, _Reply]:
        """Answer a request as a whole. Cancelling it cancels its work.

        Raises:
            ServeAppError: As `Inference.submit`.
        """
        info = asked.info
        answer = await self.inference.submit(info.key or info.name, asked.take_payload(), asked.options)
        return await self._written(asked, answer)

    async def parts(self, asked: Asked[_Call, _Parsed, _Reply]) -> AsyncGenerator[tuple[Answer, _Reply], None]:
        """Answer a request in parts, or one without streaming. Must be closed, which ends its work.

        Raises:
            ServeAppError: As `Inference.stream`.
        """
        info = asked.info
        answers = self.inference.stream(info.key or info.name, asked.take_payload(), asked.options)
        async with aclosing(answers):
            async for answer in answers:
                yield await self._written(asked, answer)

    async def _written(self, asked: Asked[_Call, _Parsed, _Reply], answer: Answer) -> tuple[Answer, _Reply]:
        """Write an answer, or one of its parts. Every answer of every API passes here."""
        operation, info, version, parsed = asked.operation, asked.info, asked.version, asked.parsed
        if answer.info is not None:  # the model was loaded anew meanwhile
            info = answer.info
            # One of several versions stays that version, whatever its files.
            if version is not None and not info.key and version not in info.versions:
                raise unknown_version(info, version)
        if operation.write_cost(info, parsed, answer) > self.bodies.offload_above:
            return answer, await self.bodies.offload(operation.write, info, parsed, answer)
        return answer, operation.write(info, parsed, answer)

    def _chosen(self, model: str, headers: Mapping[bytes, bytes]) -> ModelInfo:
        """The version of a model for the current request, which names none."""
        return self.inference.choose(model, Asker(client_of(headers), request_id_of(headers)))

    def refused(self, error: Exception, model: str | None, headers: Mapping[bytes, bytes]) -> None:
        """Count and log the failed end of the current request, unless that has been done.

        Args:
            model: The requested model; ``None`` for calls that run none.
            headers: Of the request, by lower-case name.
        """
        counted, logged = (error.counted, error.logged) if isinstance(error, ServeAppError) else (False, False)
        code = code_of(error)
        if model is not None and not counted:
            self._whole.refused(model, code)
        if self._log is not None and not logged and (model is not None or isinstance(error, _BY_THE_GUARD)):
            # Who was refused need not be allowed to see the model.
            known = model if model is not None and model in self._whole.models else ""
            self._log.refused(known, code, headers, "" if self._guard is None else self._guard.name)


def _decoded(operation: Operation[Any, _Parsed, Any], info: ModelInfo, parsed: _Parsed) -> tuple[Payload, int]:
    """The model's input and the bytes of its tensors: numbers can be larger decoded than written."""
    payload = operation.decode(info, parsed)
    return payload, nbytes_of(payload) if isinstance(payload, dict) else 0
