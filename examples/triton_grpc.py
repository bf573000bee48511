"""NVIDIA's client over gRPC: one request, and a stream of them.

python examples/triton_grpc.py [HOST:PORT]        needs: pip install 'tritonclient[grpc]' pillow
"""

import os
import queue
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from PIL import Image

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SERVE_APP_GRPC", "127.0.0.1:9000")
DATA = Path(__file__).resolve().parent.parent / "tests" / "data"


def picture(name: str) -> triton.InferInput:
    """The input of one digit."""
    with Image.open(DATA / "digits" / name) as opened:
        pixels = np.asarray(opened.convert("L"), np.float32) / 127.5 - 1.0
    tensor = triton.InferInput("image", [1, 1, 28, 28], "FP32")
    tensor.set_data_from_numpy(pixels[None, None])
    return tensor


def main() -> None:
    """Read one digit, then three over a stream."""
    client = triton.InferenceServerClient(ADDRESS)
    print("ready:", client.is_server_ready())

    eight = picture("8_0722_28px_dark_palette.png")
    answer = client.infer(
        "digits", [eight], priority=1, timeout=5_000_000, client_timeout=10.0
    )  # microseconds; seconds
    print("digit:", answer.as_numpy("logits").argmax(axis=1)[0])

    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    names = ("0_1258_28px_dark_palette.png", "1_0731_28px_dark_palette.png", "8_0722_28px_dark_palette.png")
    for name in names:
        client.async_stream_infer("digits", [picture(name)], request_id=name[0])
    for _ in names:  # each as soon as it is there
        result, error = answers.get(timeout=30.0)
        if error is not None:
            raise error
        print(f"stream: request {result.get_response().id} is", result.as_numpy("logits").argmax(axis=1)[0])
    client.stop_stream()
    client.close()


if __name__ == "__main__":
    main()
