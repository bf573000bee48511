"""A server that answers as the Hugging Face Hub does, of repositories in memory."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Hub:
    """Repositories, and what was asked for.

    Attributes:
        commits: Files of each commit, by repository and commit.
        branches: The commit of each branch, by repository and branch.
        asked: Paths of requests, in order.
    """

    url: str = ""
    commits: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def push(self, repository: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Add a commit. Returns its name."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[repository, commit] = files
        self.branches[repository, branch] = commit
        return commit

    def commit_of(self, repository: str, revision: str) -> str | None:
        """The commit that a revision names."""
        if (repository, revision) in self.commits:
            return revision
        return self.branches.get((repository, revision))


def _entries(files: dict[str, bytes], folder: str, *, recursive: bool) -> list[dict[str, object]]:
    """As the Hub lists files and folders."""
    found: dict[str, dict[str, object]] = {}
    prefix = f"{folder}/" if folder else ""
    for path, content in files.items():
        if not path.startswith(prefix):
            continue
        inside = path.removeprefix(prefix).split("/")
        for depth in range(1, len(inside)):
            name = prefix + "/".join(inside[:depth])
            if recursive or depth == 1:
                found[name] = {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
        if recursive or len(inside) == 1:
            oid = hashlib.sha1(content).hexdigest()
            found[path] = {"type": "file", "path": path, "oid": oid, "size": len(content)}
    return list(found.values())


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _json(self, value: object) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _missing(self, code: str) -> None:
            self._send(404, b'{"error": "not found"}', {"X-Error-Code": code, "X-Error-Message": "not found"})

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            hub.asked.append(url.path)
            parts = [unquote(part) for part in url.path.strip("/").split("/")]
            if parts[:2] == ["api", "models"]:
                repository, rest = "/".join(parts[2:4]), parts[4:]
                action, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
                commit = hub.commit_of(repository, revision)
                if commit is None:
                    known = any(name == repository for name, _ in hub.commits)
                    self._missing("RevisionNotFound" if known else "RepoNotFound")
                elif action == "revision":
                    files = [{"rfilename": path} for path in hub.commits[repository, commit]]
                    self._json({"id": repository, "sha": commit, "siblings": files})
                elif action == "tree":
                    recursive = parse_qs(url.query).get("recursive", [""])[0].lower() == "true"
                    self._json(_entries(hub.commits[repository, commit], "/".join(rest[2:]), recursive=recursive))
                else:
                    self._missing("EntryNotFound")
                return
            if parts[2:3] != ["resolve"]:
                self._missing("EntryNotFound")
                return
            repository, revision, path = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
            commit = hub.commit_of(repository, revision)
            content = hub.commits.get((repository, commit or ""), {}).get(path)
            if content is None:
                self._missing("EntryNotFound")
                return
            self._send(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit or ""})

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            hub.asked.append(self.path)
            parts = [unquote(part) for part in self.path.strip("/").split("/")]
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            repository, revision = "/".join(parts[2:4]), parts[5]
            commit = hub.commit_of(repository, revision)
            if commit is None:
                self._missing("RevisionNotFound")
                return
            entries = _entries(hub.commits[repository, commit], "", recursive=True)
            self._json([entry for entry in entries if entry["path"] in body["paths"]])

    return Handler


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free port of this machine. Gives the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving_hub() -> Iterator[Hub]:
    """Serve a hub without repositories."""
    hub = Hub()
    with serving(_handler(hub)) as hub.url:
        yield hub
