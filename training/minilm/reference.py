"""Compute the reference embeddings that the tests compare our ONNX graph with.

Runs in a throw-away environment of its own, never in the server's or the models' one, because it needs torch::

    python3.11 -m venv /tmp/reference && /tmp/reference/bin/pip install torch transformers
    /tmp/reference/bin/python -m training.minilm.reference

The weights are those that `training.minilm.build` installed under ``build/minilm-weights``. Pooling follows the
model's own ``modules.json``: mean over the tokens that the attention mask keeps, then L2 normalisation. The result is
committed (``reference.npy``), beside the versions that made it (``reference.json``).
"""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version

import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]
from transformers import AutoModel, AutoTokenizer

from training.minilm.weights import MODEL_DIR
from training.paths import TEST_DATA

DATA = TEST_DATA / "minilm"


def main() -> None:
    """Embed every sentence of ``sentences.json`` alone, unpadded and in float32, and write the vectors."""
    torch.set_num_threads(1)
    sentences = [row["text"] for row in json.loads((DATA / "sentences.json").read_text("utf-8"))]
    max_tokens = json.loads((MODEL_DIR / "sentence_bert_config.json").read_text("utf-8"))["max_seq_length"]
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR, local_files_only=True)
    model = AutoModel.from_pretrained(MODEL_DIR, local_files_only=True, dtype=torch.float32).eval()

    vectors, tokens = [], []
    with torch.inference_mode():
        for sentence in sentences:
            encoded = tokenizer(sentence, truncation=True, max_length=max_tokens, padding=False, return_tensors="pt")
            hidden = model(**encoded).last_hidden_state
            mask = encoded["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            vectors.append(torch.nn.functional.normalize(mean, p=2, dim=1)[0].numpy())
            tokens.append(int(mask.sum()))

    np.save(DATA / "reference.npy", np.stack(vectors).astype(np.float32))
    made_by = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "weights_sha256": hashlib.sha256((MODEL_DIR / "model.safetensors").read_bytes()).hexdigest(),
        "max_seq_length": max_tokens,
        "pooling": "mean over unmasked tokens, then L2 normalisation",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy")},
        "tokens": tokens,
    }
    (DATA / "reference.json").write_text(json.dumps(made_by) + "\n", "utf-8")
    print(f"{len(vectors)} vectors, {sum(t == max_tokens for t in tokens)} sentences truncated to {max_tokens} tokens")


if __name__ == "__main__":
    main()
