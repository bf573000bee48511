"""What the simulator says becomes of the very workload that the real server was given."""

from __future__ import annotations

from functools import partial

from benchmarks.calibration_cases import Case
from benchmarks.calibration_measure import Around, Predicted
from benchmarks.groups import simulated_groups
from serve_app.config.file import ServeFile
from serve_app.config.profile import Profile
from serve_app_simulator.measured_curve import MeasuredCurve
from serve_app_simulator.ours import ServeApp
from serve_app_simulator.run import simulate
from serve_app_simulator.scenario import Noise, Scenario, SimulatedModel
from serve_app_simulator.workloads import Arrivals

_SAME_MOMENT_S = 1e-9


def scenario_of(case: Case, file: ServeFile, profile: Profile, around: Around, slowdown: float = 1.0) -> Scenario:
    """The scenario of a case, with the server's own settings and what was measured.

    Args:
        case: The workload.
        file: What the server serves.
        profile: Of the model.
        around: Of the model. The pause after a batch is part of the batch, in proportion to its rows.
        slowdown: Time of executions as a multiple of the profile's.
    """
    curve, pause_s = MeasuredCurve.of(profile), around.between_s / case.load.max_rows

    def slowed(rows: int, bucket: int) -> float:
        return curve(rows, bucket) * slowdown + pause_s * rows

    return Scenario(
        name=case.title,
        models=(SimulatedModel(scheduling=file.args.model_scheduling()[case.load.model], curve=slowed),),
        workload=(case.stream,),
        duration_s=case.seconds,
        classes=file.args.class_settings(),
        overheads=around.overheads,
        noise=Noise("lognormal", profile.spread()),
        routers=case.routers,
    )


def predict(
    case: Case,
    file: ServeFile,
    profile: Profile,
    around: Around,
    arrivals: Arrivals,
    seed: int,
    slowdown: float = 1.0,
) -> Predicted:
    """Simulate serve_app.

    Args:
        case: The workload.
        file: What the server serves.
        profile: Of the model, measured just before.
        around: Of the model, measured just before.
        arrivals: As they were sent.
        seed: Of the noise.
        slowdown: Of the executions in the real run.

    Raises:
        ConfigError: The scenario is impossible.
    """
    # What travels is the time left, so the real router counts a deadline from when a request reaches it. A simulated
    # one knows the client's deadline, which is earlier by the way there.
    network_s = max(0.0, file.args.process_limits().network_s - around.overheads.request_s)
    # The kernel picks a router for every connection.
    system = partial(ServeApp, network_s=network_s, spread="random")
    result = simulate(scenario_of(case, file, profile, around, slowdown), system, seed, arrivals=arrivals)
    # The pauses are no part of the real executions.
    pause_s = around.between_s * result.batch_rows / case.load.max_rows
    executing_s = slowdown * MeasuredCurve.of(profile)(max(1, round(result.batch_rows)), case.load.bucket)
    utilisation = result.utilisation * executing_s / (executing_s + pause_s)
    return Predicted(groups=simulated_groups(result), batch_rows=result.batch_rows, utilisation=utilisation)
