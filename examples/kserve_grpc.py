"""KServe's client over gRPC, with the Open Inference Protocol V2.

python examples/kserve_grpc.py [HOST:PORT]        needs: pip install kserve pillow
"""

import asyncio
import os
import sys
from pathlib import Path

import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest
from PIL import Image

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SERVE_APP_GRPC", "127.0.0.1:9000")
DATA = Path(__file__).resolve().parent.parent / "tests" / "data"


async def main() -> None:
    """Read one digit."""
    async with InferenceGRPCClient(ADDRESS, timeout=30.0) as client:
        print("ready:", await client.is_server_ready(), await client.is_model_ready("digits"))

        with Image.open(DATA / "digits" / "8_0722_28px_dark_palette.png") as picture:
            pixels = np.asarray(picture.convert("L"), np.float32) / 127.5 - 1.0
        image = InferInput("image", [1, 1, 28, 28], "FP32")
        image.set_data_from_numpy(pixels[None, None], binary_data=True)
        request = InferRequest("digits", [image], request_id="1", parameters={"priority": 1})
        answer = await client.infer(request, headers=[("x-timeout-ms", "5000")])
        print("digit:", answer.outputs[0].as_numpy().argmax(axis=1)[0])


if __name__ == "__main__":
    asyncio.run(main())
