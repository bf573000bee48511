"""Hugging Face's client, pointed at the predict routes of this server's models.

python examples/hugging_face.py [URL]        needs: pip install huggingface_hub
"""

import os
import sys
from pathlib import Path

from huggingface_hub import InferenceClient

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SERVE_APP_URL", "http://127.0.0.1:8000")
DATA = Path(__file__).resolve().parent.parent / "tests" / "data"


def main() -> None:
    """One task after the other."""
    digits = InferenceClient(model=f"{URL}/v1/models/digits/predict")
    print("picture:", digits.image_classification(DATA / "digits" / "7_0783_320px_dark_cmyk.jpg")[0].label)

    words = InferenceClient(model=f"{URL}/v1/models/spoken-digits/predict")
    sound = DATA / "speech" / "seven_en-029_f1_80wpm_16000_8bit.wav"
    print("sound:", words.audio_classification(sound)[0].label)

    texts = InferenceClient(model=f"{URL}/v1/models/minilm/predict")
    print("embedding:", texts.feature_extraction("A cat sleeps.").shape)
    similarities = texts.sentence_similarity("A cat sleeps.", ["A kitten is asleep.", "Interest rates rise."])
    print("similarity:", [round(similarity, 2) for similarity in similarities])
    labels = texts.zero_shot_classification("The team scored in the last minute", ["cooking", "football"])
    print("text:", labels[0].label)


if __name__ == "__main__":
    main()
