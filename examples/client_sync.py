"""The project's own client: a picture, a sound, text, embeddings, tensors, and several models at once.

python examples/client_sync.py [URL]        needs: pip install ./client pillow
"""

import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from serve_app_client import Client, DeadlineExceeded

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SERVE_APP_URL", "http://127.0.0.1:8000")
DATA = Path(__file__).resolve().parent.parent / "tests" / "data"


def main() -> None:
    """Ask each of the demo's models something."""
    with Client(URL, timeout=30.0) as client:
        client.wait_until_ready(60.0)
        for model in client.models():
            print(f"{model.name} (version {model.version}, {model.task})")

        picture = DATA / "digits" / "7_0783_320px_dark_cmyk.jpg"
        sound = DATA / "speech" / "seven_en-029_f1_80wpm_16000_8bit.wav"
        digit = client.predict("digits", picture, parameters={"top_k": 2})
        print("picture:", digit.labels[0].label, f"{digit.labels[0].score:.2f}")

        word = client.predict("spoken-digits", sound)
        print("sound:", word.labels[0].label)

        topic = client.predict(
            "minilm",
            "The team scored in the last minute",
            parameters={"candidate_labels": ["cooking", "football", "politics"]},
        )
        print("text:", topic.labels[0].label)

        one, two, three = client.embed(["A cat sleeps.", "A kitten is asleep.", "Interest rates rise."], "minilm")
        print(f"similarity: {one @ two:.2f} and {one @ three:.2f}")

        with Image.open(DATA / "digits" / "8_0722_28px_dark_palette.png") as image:
            pixels = np.asarray(image.convert("L"), np.float32) / 127.5 - 1.0
        result = client.infer("digits", {"image": pixels[None, None]}, priority="high")
        print("tensor:", result["logits"].argmax(axis=1), "in class", result.served.priority)

        same = client.run_pipeline(
            "same-digit", {"picture": picture, "sound": sound, "text": "Snow White and the dwarfs"}
        )
        print("all three:", same["picture"], same["sound"], same["text"], same["agree"])

        try:
            client.embed("too urgent", "minilm", timeout=0.001)
        except DeadlineExceeded as error:
            print("1 ms is not enough:", error.code)


if __name__ == "__main__":
    main()
