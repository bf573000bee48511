"""Why something does not start, out of what Serve says of it: the reason, without the way that it came."""

from __future__ import annotations

import re
from typing import Any

from serve_app.errors import ConfigError

_FAILED = frozenset({"DEPLOY_FAILED", "UNHEALTHY"})
_OUR_FAULTS = f"{ConfigError.__module__}.{ConfigError.__qualname__}: "
_OUR_ERROR = re.compile(rf"^{re.escape(ConfigError.__module__)}\.\w+: ")


def reason(message: str) -> str:
    """What went wrong, out of one message of Serve.

    Args:
        message: May hold tracebacks of several processes, each inside the next.

    Returns:
        All lines of a wrong configuration; the last line of any other traceback, which is the error itself; else the
        message in one line.
    """
    _, found, faults = message.rpartition(_OUR_FAULTS)
    if found:
        return faults.strip()
    if "Traceback (most recent call last)" in message:
        *_, error = (line.strip() for line in message.splitlines() if line.strip())
        return _OUR_ERROR.sub("", error)
    return " ".join(message.split())


def failure(application: Any) -> str | None:
    """Why an application could not be deployed; ``None`` as long as it has not failed.

    Args:
        application: Serve's overview of it.
    """
    if application.status not in _FAILED:
        return None
    failed = [
        f"{name}: {reason(deployment.message)}"
        for name, deployment in application.deployments.items()
        if deployment.status in _FAILED and deployment.message
    ]
    return "; ".join(failed) or reason(application.message)


def progress(application: Any) -> str:
    """How far its start is, and what holds it up where Serve knows: a replica that failed, one that has no room."""
    waiting = []
    for name, deployment in application.deployments.items():
        if deployment.status == "HEALTHY":
            continue
        running, wanted = deployment.replica_states.get("RUNNING", 0), sum(deployment.replica_states.values())
        held_up = f" ({reason(deployment.message)})" if deployment.message else ""
        waiting.append(f"{name} {running}/{wanted}{held_up}")
    return f"starting {', '.join(waiting)}" if waiting else f"{application.status.lower()}"
