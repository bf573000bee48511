"""What the simulator says becomes of the very workload that the real server was given."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.calibration_cases import Case
from benchmarks.calibration_measure import Around, Group, Predicted
from serve_app.config import ServeFile
from serve_app.config.profile import Profile
from serve_app.simulation.ours import ServeApp
from serve_app.simulation.results import Tally
from serve_app.simulation.run import simulate
from serve_app.simulation.scenario import Scenario, SimulatedModel
from serve_app.simulation.workloads import Arrivals

_SAME_MOMENT_S = 1e-9


def scenario_of(case: Case, file: ServeFile, profile: Profile, around: Around) -> Scenario:
    """The scenario of a case, with the server's own settings and what was measured.

    Args:
        case: The workload.
        file: What the server serves.
        profile: Of the model.
        around: Of the model.
    """
    curve, slowdown = profile.curve(), around.slowdown

    def slowed(rows: int, bucket: int) -> float:
        return curve(rows, bucket) * slowdown

    return Scenario(
        name=case.title,
        models=(SimulatedModel(scheduling=file.args.model_scheduling()[case.load.model], curve=slowed),),
        workload=(case.stream,),
        duration_s=case.seconds,
        classes=file.args.class_settings(),
        overheads=replace(around.overheads, between_s=around.between_s),
        noise=profile.noise(),
        routers=case.routers,
    )


def predict(case: Case, file: ServeFile, profile: Profile, around: Around, arrivals: Arrivals, seed: int) -> Predicted:
    """Simulate serve_app.

    Args:
        case: The workload.
        file: What the server serves.
        profile: Of the model, measured just before.
        around: Of the model, measured just before.
        arrivals: As they were sent.
        seed: Of the noise.

    Raises:
        ConfigError: The scenario is impossible.
    """
    # What travels is the time left, so the real router counts a deadline from when a request reaches it. A simulated
    # one knows the client's deadline, which is earlier by the way there.
    network_s = max(0.0, file.args.process_limits().network_s - around.overheads.request_s)
    # The kernel picks a router for every connection.
    system = partial(ServeApp, network_s=network_s, spread="random")
    result = simulate(scenario_of(case, file, profile, around), system, seed, arrivals=arrivals)
    groups = {"all": _group(result.total), **{name: _group(tally) for name, tally in result.classes.items()}}
    return Predicted(groups=groups, batch_rows=result.batch_rows, utilisation=result.utilisation)


def _group(tally: Tally) -> Group:
    return Group(tally.offered, tally.in_time, tally.p50_s, tally.p99_s)
