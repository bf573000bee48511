"""NVIDIA's client over HTTP: tensors in binary, class and deadline as parameters of the request.

python examples/triton_http.py [URL]        needs: pip install 'tritonclient[http]' pillow
"""

import os
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from PIL import Image

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SERVE_APP_URL", "http://127.0.0.1:8000")
DATA = Path(__file__).resolve().parent.parent / "tests" / "data"


def main() -> None:
    """Read one digit."""
    client = triton.InferenceServerClient(URL.removeprefix("http://"))
    print("ready:", client.is_server_ready())
    print("inputs:", [tensor["name"] for tensor in client.get_model_metadata("digits")["inputs"]])

    with Image.open(DATA / "digits" / "8_0722_28px_dark_palette.png") as picture:
        pixels = np.asarray(picture.convert("L"), np.float32) / 127.5 - 1.0
    image = triton.InferInput("image", [1, 1, 28, 28], "FP32")
    image.set_data_from_numpy(pixels[None, None])
    answer = client.infer("digits", [image], priority=1, timeout=5_000_000)  # high; microseconds
    print("digit:", answer.as_numpy("logits").argmax(axis=1)[0])
    client.close()


if __name__ == "__main__":
    main()
