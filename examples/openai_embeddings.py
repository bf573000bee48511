"""OpenAI's client, pointed at this server: models and embeddings.

python examples/openai_embeddings.py [URL]        needs: pip install openai
"""

import os
import sys

import numpy as np
import openai

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SERVE_APP_URL", "http://127.0.0.1:8000")


def main() -> None:
    """Compare three sentences."""
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")
    print("models:", ", ".join(sorted(model.id for model in client.models.list())))

    answer = client.embeddings.create(
        model="minilm",
        input=["A cat sleeps.", "A kitten is asleep.", "Interest rates rise."],
        extra_headers={"X-Priority": "high", "X-Timeout-Ms": "5000"},
    )
    one, two, three = (np.array(item.embedding) for item in answer.data)
    print(f"similarity: {one @ two:.2f} and {one @ three:.2f}")
    print("tokens:", answer.usage.total_tokens)


if __name__ == "__main__":
    main()
