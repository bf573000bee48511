"""Extracts the reason of a failed start from Serve's messages."""

from __future__ import annotations

import re
from typing import Any

from serve_app.errors import ConfigError

_FAILED = frozenset({"DEPLOY_FAILED", "UNHEALTHY"})
_OUR_FAULTS = f"{ConfigError.__module__}.{ConfigError.__qualname__}: "
_OUR_ERROR = re.compile(rf"^{re.escape(ConfigError.__module__)}\.\w+: ")


def reason(message: str) -> str:
    """The reason in one message of Serve.

    Args:
        message: May nest tracebacks of several processes.

    Returns:
        All lines of a configuration error; the last line of any other traceback, i.e. the error; else the message in
        one line.
    """
    _, found, faults = message.rpartition(_OUR_FAULTS)
    if found:
        return faults.strip()
    if "Traceback (most recent call last)" in message:
        *_, error = (line.strip() for line in message.splitlines() if line.strip())
        return _OUR_ERROR.sub("", error)
    return " ".join(message.split())


def failure(application: Any) -> str | None:
    """Why an application could not be deployed; ``None`` unless it has failed.

    Args:
        application: From Serve's overview.
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
    """An application's progress, and its obstacle if known: a failed replica, missing resources."""
    waiting = []
    for name, deployment in application.deployments.items():
        if deployment.status == "HEALTHY":
            continue
        running, wanted = deployment.replica_states.get("RUNNING", 0), sum(deployment.replica_states.values())
        held_up = f" ({reason(deployment.message)})" if deployment.message else ""
        waiting.append(f"{name} {running}/{wanted}{held_up}")
    return f"starting {', '.join(waiting)}" if waiting else f"{application.status.lower()}"
