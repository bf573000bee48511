"""KServe's gRPC client, as its users use it. Takes an address; fails with a traceback."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

FIRST = np.arange(32, dtype=np.int32).reshape(2, 16)
SECOND = np.full((2, 16), 3, np.int32)


def numbers(*, raw: bool) -> list[InferInput]:
    """Inputs of the model `sum_diff`."""
    made = []
    for name, array in (("INPUT0", FIRST), ("INPUT1", SECOND)):
        each = InferInput(name, list(array.shape), "INT32")
        each.set_data_from_numpy(array, binary_data=raw)
        made.append(each)
    return made


async def main(address: str) -> None:
    """Check everything."""
    async with InferenceGRPCClient(address, timeout=30) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("sum_diff")
        assert not await client.is_model_ready("nothing")
        for raw in (True, False):
            request = InferRequest("sum_diff", numbers(raw=raw), request_id="7")
            answer = await client.infer(request, headers=(("x-priority", "high"),))
            assert (answer.model_name, answer.id) == ("sum_diff", "7")
            outputs: dict[str, Any] = {output.name: output.as_numpy() for output in answer.outputs}
            np.testing.assert_array_equal(outputs["OUTPUT0"], FIRST + SECOND)
            np.testing.assert_array_equal(outputs["OUTPUT1"], FIRST - SECOND)
            print("ok", "raw" if raw else "typed", flush=True)
        texts = InferInput("INPUT0", [1, 2], "BYTES", data=["a", "ü"])
        answer = await client.infer(InferRequest("string_identity", [texts]))
        assert answer.outputs[0].as_numpy().reshape(-1).tolist() in ([b"a", "ü".encode()], ["a", "ü"])
        print("ok strings", flush=True)
        code = grpc.StatusCode.OK
        try:
            await client.infer(InferRequest("nothing", numbers(raw=True)))
        except grpc.RpcError as error:
            code = error.code()
        assert code == grpc.StatusCode.NOT_FOUND, code
        print("ok faults", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
