"""The client stands on its own."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_client_imports_nothing_of_the_server() -> None:
    """Neither the server nor what it runs on, nor libraries that only some calls need."""
    program = "import sys, serve_app.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    ours = {name for name in loaded if name.startswith("serve_app")}
    assert {name for name in ours if not name.startswith("serve_app.client")} == {"serve_app"}
    heavy = {"ray", "onnxruntime", "starlette", "pydantic", "PIL", "soundfile", "ml_dtypes", "tokenizers", "msgspec"}
    assert heavy.isdisjoint(loaded)
