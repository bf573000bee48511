"""What a person reads of Serve's messages when something does not start."""

from __future__ import annotations

from ray.serve._private.common import DeploymentStatusTrigger
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatus, DeploymentStatusOverview

from serve_app.cli.reasons import failure, progress, reason

TRACEBACK = """The deployment failed to start 3 times in a row. Error:
Traceback (most recent call last):
  File "actor.py", line 1, in initialize
    raise RuntimeError(traceback.format_exc()) from None
RuntimeError: Traceback (most recent call last):
  File "model.py", line 7, in __init__
    self.load()
{error}
"""
NO_ROOM = "Deployment 'big' has 1 replicas that have taken\nmore than 30s to be scheduled."


def overview(status: str, **deployments: tuple[str, str]) -> ApplicationStatusOverview:
    """Serve's picture of an application, with deployments by name: their status and message."""
    return ApplicationStatusOverview(
        status=ApplicationStatus(status),
        message="The deployments are not well.",
        last_deployed_time_s=0.0,
        deployments={
            name: DeploymentStatusOverview(
                status=DeploymentStatus(state),
                status_trigger=DeploymentStatusTrigger.UNSPECIFIED,
                replica_states={"STARTING": 1},
                message=message,
            )
            for name, (state, message) in deployments.items()
        },
    )


def test_the_reason_is_the_innermost_error() -> None:
    """Without its traceback; errors of ours without their class, and a wrong configuration with all its lines."""
    assert reason(TRACEBACK.format(error="ValueError: no such file")) == "ValueError: no such file"
    assert reason(TRACEBACK.format(error="serve_app.errors.InferenceFailed: it failed")) == "it failed"
    faults = "serve_app.errors.ConfigError: args.a: unknown key\nargs.b: unknown key"
    assert reason(TRACEBACK.format(error=faults)) == "args.a: unknown key\nargs.b: unknown key"
    assert reason("nothing\nto  trace") == "nothing to trace"


def test_a_failed_application_names_the_deployments_that_failed() -> None:
    """And what Serve says of the whole only where it says nothing of them."""
    broken = TRACEBACK.format(error="ValueError: no")
    application = overview("DEPLOY_FAILED", model=("DEPLOY_FAILED", broken), router=("UPDATING", ""))
    assert failure(application) == "model: ValueError: no"
    assert failure(overview("DEPLOY_FAILED")) == "The deployments are not well."
    assert failure(overview("DEPLOYING", model=("UPDATING", broken))) is None


def test_a_start_tells_what_holds_it_up() -> None:
    """A failed attempt while there are more, or a lack of room."""
    application = overview("DEPLOYING", big=("UPDATING", NO_ROOM), ready=("HEALTHY", ""), other=("UPDATING", ""))
    assert progress(application) == f"starting big 0/1 ({' '.join(NO_ROOM.split())}), other 0/1"
    assert progress(overview("RUNNING")) == "running"
