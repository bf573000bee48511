"""Clients that ask without a pause, over HTTP and gRPC, and count how each of their requests ended.

They tell apart what a server may do while it stops from what it may not: an answer, a refusal, or no connection is
fine; a connection that was cut after the request was sent, while nobody had said that it would close, is a loss.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import grpc
import numpy as np

from serve_app.api.open_inference import inference_pb2 as pb

TIMEOUT_S = 30.0
_SERVICE = "/inference.GRPCInferenceService/"


class SteadyLoad:
    """Keeps asking one model for one row, from `__enter__` to `__exit__`. Every client asks for a number of its own.

    Args:
        model: Its name; it takes FP32 numbers as ``x``.
        size: How many.
        http_ports: On this machine.
        grpc_ports: As well.
        clients: Per port.
        timeout_ms: Of every request.
        answer: What the model makes of each number.

    Attributes:
        ended: How many requests ended how, by port and outcome: the HTTP status or the name of the gRPC status,
            ``refused`` where there was no connection to be had, ``lost`` where a request was sent and not answered,
            ``wrong`` where the answer was another one's.
    """

    def __init__(
        self,
        model: str,
        size: int = 1,
        *,
        http_ports: Sequence[int] = (),
        grpc_ports: Sequence[int] = (),
        clients: int = 4,
        timeout_ms: int = 20_000,
        answer: Callable[[float], float] = lambda number: number + 1.0,
    ) -> None:
        self.ended: Counter[tuple[int, str]] = Counter()
        self.details: Counter[str] = Counter()
        self._ports = (*http_ports, *grpc_ports)
        self._model, self._size, self._timeout_ms, self._answer = model, size, timeout_ms, answer
        self._done = threading.Event()
        self._lock = threading.Lock()
        asks = [(self._ask_http, port) for port in http_ports] + [(self._ask_grpc, port) for port in grpc_ports]
        self._threads = [
            threading.Thread(target=ask, args=(port, float(number)))
            for number, (ask, port) in enumerate(asks * clients, start=1)
        ]

    def __enter__(self) -> SteadyLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Ask no more, and wait for what is still to be answered."""
        self._done.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answers(self) -> None:
        """Wait until every port has answered something from now on."""
        before = {port: self._answers(port) for port in self._ports}
        deadline = time.monotonic() + TIMEOUT_S
        while any(self._answers(port) == number for port, number in before.items()):
            assert time.monotonic() < deadline, f"a port does not answer: {self.ended} {self.details}"
            self._done.wait(0.05)

    def _answers(self, port: int) -> int:
        return self.ended[port, "200"] + self.ended[port, "OK"]

    def outcomes(self) -> Counter[str]:
        """How many requests ended how, over all ports."""
        total: Counter[str] = Counter()
        for (_, outcome), number in self.ended.items():
            total[outcome] += number
        return total

    def losses(self) -> Counter[str]:
        """What was neither answered nor refused. One call may have met gRPC's GOAWAY, which cancels it."""
        lost = self.outcomes()
        for harmless in ("200", "OK", "refused"):
            del lost[harmless]
        lost["CANCELLED None"] -= 1
        return +lost

    def _count(self, port: int, outcome: str, detail: str = "") -> None:
        with self._lock:
            self.ended[port, outcome] += 1
            if detail:
                self.details[f"{port} {detail}"] += 1

    def _ask_http(self, port: int, number: float) -> None:
        tensor = {"name": "x", "shape": [1, self._size], "datatype": "FP32", "data": [number] * self._size}
        body = json.dumps({"inputs": [tensor]}).encode()
        path = f"/v2/models/{self._model}/infer"
        headers = {"Content-Type": "application/json", "X-Timeout-Ms": str(self._timeout_ms)}
        connection: http.client.HTTPConnection | None = None
        while not self._done.is_set():
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
                try:
                    connection.connect()
                except OSError:
                    self._count(port, "refused")
                    connection = None
                    self._done.wait(0.05)
                    continue
            try:
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._count(port, "lost", repr(error))
                connection.close()
                connection = None
                continue
            if answer.status != 200:
                self._count(port, str(answer.status), content.decode()[:200])
            else:
                given = json.loads(content)["outputs"][0]["data"]
                right = given == [self._answer(number)] * self._size
                self._count(port, "200" if right else "wrong", "" if right else f"{number}: {given}")
            if answer.will_close:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _ask_grpc(self, port: int, number: float) -> None:
        request = pb.ModelInferRequest(model_name=self._model)
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, self._size])
        tensor.contents.fp32_contents.extend([number] * self._size)
        body = request.SerializeToString()
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            infer: Any = channel.unary_unary(f"{_SERVICE}ModelInfer")
            while not self._done.is_set():
                try:
                    answer = infer(body, timeout=TIMEOUT_S, metadata=[("x-timeout-ms", str(self._timeout_ms))])
                except grpc.RpcError as error:
                    code, details = error.code().name, error.details() or ""
                    metadata: Any = error.trailing_metadata() or ()
                    known = dict(metadata).get("code")
                    if known is None and code == "UNAVAILABLE":
                        unconnected = "failed to connect" in details  # else the call was sent
                        self._count(port, "refused" if unconnected else "lost", details)
                        self._done.wait(0.05)
                    else:
                        self._count(port, f"{code} {known}", details)
                else:
                    (raw,) = pb.ModelInferResponse.FromString(answer).raw_output_contents
                    given = np.frombuffer(raw, "<f4").tolist()
                    right = given == [self._answer(number)] * self._size
                    self._count(port, "OK" if right else "wrong", "" if right else f"{number}: {given}")
