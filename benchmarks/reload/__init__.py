"""Loading a model's files anew under load: failed and wrong answers, latency, and memory over many swaps."""
