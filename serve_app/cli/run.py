"""``serve-app run``: checks, starts, reports readiness, and cleans up.

Runs Ray's ``serve run`` in this process, on a Ray cluster of its own. A second thread polls Serve for the deployments'
state and reports it in one line; a failed deployment ends the run. Every process that Ray starts inherits an
environment variable with this run's number, so that exactly those can be checked and ended. `shutdown` handles signals.
"""

from __future__ import annotations

import http.client
import os
import resource
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from rich.console import Console

from serve_app.cli import start_worker
from serve_app.cli.fork_server import fork_server
from serve_app.cli.gpus import gpu_memories, gpu_memory_problems, gpu_problem, has_gpu
from serve_app.cli.joinable import joinable_lines
from serve_app.cli.limits import run_limits
from serve_app.cli.ports import busy, holder, listened_at
from serve_app.cli.processes import Process, end, end_marked, wait
from serve_app.cli.reasons import failure, progress
from serve_app.cli.run_folder import FOLDER_VARIABLE
from serve_app.cli.shutdown import ForcedShutdown, GracefulShutdown
from serve_app.cli.start_worker import SOCKET_VARIABLE
from serve_app.cli.watchdog import watch
from serve_app.config.file import ServeFile
from serve_app.config.files import HOME_VARIABLE, home
from serve_app.config.names import RUN_VARIABLE

_HAPROXY_PORTS = {"RAY_SERVE_HAPROXY_STATS_PORT": "8404", "RAY_SERVE_HAPROXY_METRICS_PORT": "9101"}
# The first of the ports that HAProxy reaches the routers at, and where it goes while there is no router. Serve shares
# them with an existing listener: two servers on one machine would answer each other's requests.
_DIRECT_PORTS = {
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": "8500",
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": "9500",
    "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": "30000",
    "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": "40000",
}
_SERVE_NAMESPACE = "serve"  # where Serve's actors live
_POLL_INTERVAL_S = 0.5
_END_WITHIN_S = 5.0
_LOWEST_PRIORITY = 19


def run_file(
    path: Path,
    file: ServeFile,
    console: Console,
    *,
    read: Sequence[Path] = (),
    dashboard: bool = True,
    fork: bool = True,
) -> int:
    """Serve a checked file in the foreground until a signal. The process needs the `environment` of a run.

    Args:
        file: Its content.
        console: For messages.
        read: Files of its models.
        dashboard: Whether Ray's dashboard runs, too. `serve status` and `serve deploy` need it; it costs memory and CPU
            time, and a client with its token can run code.
        fork: Whether workers are forked from one that has imported everything, which is faster and saves memory.

    Returns:
        The exit code: 0 after Ctrl-C or ``serve-app stop``, 1 if serving failed.
    """
    given, file = file, file.scaled()
    if not given.names_host:
        file = file.on_loopback()
    cores, files = len(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limits = run_limits(file, os.environ, files=files if files != resource.RLIM_INFINITY else sys.maxsize, cores=cores)
    obstacles = [*unusable_folder(), *busy_ports(file), *limits.problems]
    if (problem := gpu_problem(file.args, has_gpu=has_gpu())) is not None:
        obstacles.append(problem)
    obstacles += gpu_memory_problems(file.args, gpu_memories(os.environ))
    if obstacles:
        for line in obstacles:
            _say_error(console, line)
        return 1
    # All workers get one environment: `fork_server` starts those of its own.
    os.environ.update({**file.env_vars, **limits.variables})
    os.environ.setdefault("RAY_worker_maximum_startup_concurrency", str(cores))  # regardless of Ray's CPUs
    fork = fork and FOLDER_VARIABLE in os.environ
    if fork:
        os.environ[SOCKET_VARIABLE] = str(Path(os.environ[FOLDER_VARIABLE]) / "fork.sock")
    watchdog = watch(RUN_VARIABLE, os.environ.get(FOLDER_VARIABLE))
    shutdown = GracefulShutdown(file, RUN_VARIABLE, console)
    watcher = _Watcher(file, console, shutdown)
    with _noted(pid_file(file.http_address[1], os.environ)), shutdown.handle_signals():
        try:
            console.print(f"serving {path} on Ray")
            for line in given.open_ports():
                _say_warning(console, line)
            for line in limits.notes:
                console.print(f"[dim]note:[/] {line}", highlight=False, soft_wrap=True)
            watcher.start()
            _read_in_advance(read)
            _serve_run(
                path if file is given else _written(file), shutdown, dashboard=dashboard, cpus=limits.cpus, fork=fork
            )
        except (KeyboardInterrupt, SystemExit):
            pass  # `serve run` has shut Serve down already; what is left of Ray goes below
        except ForcedShutdown:
            pass
        except Exception as error:  # whatever stops Ray from starting is said in one line
            if not shutdown.asked:
                watcher.failure = f"Ray could not be started: {str(error) or type(error).__name__}"
        shutdown.asked = True  # from here on, one signal is enough to end at once
        try:
            watcher.stop()
            if not shutdown.forced:
                _leave_nothing(console)
        except ForcedShutdown:
            pass
        if shutdown.forced:
            shutdown.kill()
    watchdog.communicate()  # it finds nothing to end, and ends
    if shutdown.forced:
        sys.stderr.flush()
        os._exit(1)  # Ray would wait at the interpreter's exit for processes that are gone
    if watcher.failure is not None:
        _say_error(console, watcher.failure)
        return 1
    console.print("stopped")
    return 0


def stop(environ: Mapping[str, str], console: Console, timeout_s: float = 90.0) -> int:
    """End every run started from this folder, and wait for the end.

    Returns:
        The exit code: 0 if none is left.
    """
    runs = [process for note in _pid_files(environ) if (process := Process.read(note)) is not None]
    if not runs:
        console.print("nothing is running")
        return 0
    for process in runs:
        end(process, signal.SIGINT)
    remaining = wait(runs, timeout_s)
    for process in remaining:
        _say_error(console, f"process {process.pid} has not ended within {timeout_s:.0f} s")
    if not remaining:
        console.print("stopped")
    return 1 if remaining else 0


def unusable_folder(prefix: str = sys.prefix) -> list[str]:
    """A line if Ray cannot start its processes from this environment's folder."""
    if len(prefix.split()) == 1:
        return []
    return [f"Ray cannot run from a folder with spaces in its path, and this environment is in {prefix!r}; move it"]


def busy_ports(file: ServeFile) -> list[str]:
    """A line per occupied port of the file, with its holder."""
    host, port = file.http_address
    wanted = [(host, port, "http_options.port")]
    if file.grpc_port is not None:
        wanted.append((host, file.grpc_port, "grpc_options.port"))
    variables = file.env_vars
    direct: list[tuple[int, str]] = []
    if variables.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        wanted += [("0.0.0.0", int(variables.get(name, port)), name) for name, port in _HAPROXY_PORTS.items()]  # noqa: S104
        kinds = {"HTTP"} if file.grpc_port is None else {"HTTP", "GRPC"}
        direct += [
            (int(variables.get(name, port)), name)
            for name, port in _DIRECT_PORTS.items()
            if kinds & set(name.split("_"))
        ]
    router = file.args.router
    # Shared with routers of this user, who would answer each other's requests.
    wanted += [(router.host, number, f"args.{setting}") for setting, number in router.own_ports]
    taken = [(port, setting) for host, port, setting in wanted if busy(host, port)]
    taken += [(port, setting) for port, setting in direct if listened_at(port)]
    return [
        f"port {port} ({setting}) is in use by {holder(port) or 'another process'}; stop that process, or choose"
        " another port"
        for port, setting in taken
    ]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Additions of a run to the environment, below the user's own. Ray reads it when imported.

    Ray protects a local cluster with a token by default, but only explicitly configured commands present it. This sets
    the mode for all processes of the run.
    """
    return {
        "RAY_USAGE_STATS_ENABLED": environ.get("RAY_USAGE_STATS_ENABLED", "0"),
        "RAY_AUTH_MODE": environ.get("RAY_AUTH_MODE", "token"),
        # The cluster is this machine's alone. Where Ray makes none over several machines (by default on Windows and
        # macOS, whence the name), its own servers listen on the loopback interface only.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"),
        # Ray lowers the priority of its workers, which suits batch jobs. These answer people.
        "RAY_worker_niceness": environ.get("RAY_worker_niceness", "0"),
        # Idle workers started in advance are of no use to replicas, and the driver would wait for them.
        "RAY_prestart_worker_first_driver": environ.get("RAY_prestart_worker_first_driver", "0"),
        # Official builds of ONNX Runtime send telemetry by default: a thread and a file per process.
        "ORT_DISABLE_TELEMETRY": environ.get("ORT_DISABLE_TELEMETRY", "1"),
        HOME_VARIABLE: str(home(environ).resolve()),
        RUN_VARIABLE: uuid.uuid4().hex,
    }


def pid_file(port: int, environ: Mapping[str, str]) -> Path:
    """The PID file of a run with this HTTP port."""
    return home(environ) / "build" / f"serve-app-{port}.pid"


def _pid_files(environ: Mapping[str, str]) -> Iterator[Path]:
    return (home(environ) / "build").glob("serve-app-*.pid")


def _read_in_advance(files: Sequence[Path]) -> None:
    """Read files that the application will digest while Ray starts, at lower priority.

    The application begins with the first: here the last come first, so that few are read twice.
    """
    from serve_app.composition.digests import Digests  # noqa: PLC0415 - keeps `serve-app stop` quick

    def read() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        digests = Digests()
        for file in reversed(files):
            digests.read(file)

    threading.Thread(target=read, name="read files in advance", daemon=True).start()


def _written(file: ServeFile) -> Path:
    """Write a file for Serve, in the run's folder, with explicit defaults."""
    path = Path(os.environ[FOLDER_VARIABLE]) / "serve.yaml"
    path.write_text(yaml.safe_dump(dict(file.document), sort_keys=False), "utf-8")
    return path


def _serve_run(path: Path, shutdown: GracefulShutdown, *, dashboard: bool, cpus: int, fork: bool) -> None:
    import ray  # noqa: PLC0415 - after the environment is complete
    from ray._private import ray_constants  # noqa: PLC0415
    from ray._private.worker import global_worker  # noqa: PLC0415
    from ray.serve.scripts import run  # noqa: PLC0415

    if fork:
        # Ray joins this name to its own folder, which an absolute path replaces.
        ray_constants.SETUP_WORKER_FILENAME = start_worker.__file__
    # `local` makes a cluster of its own even where another one runs: ending this run must not end that. `serve run`
    # takes the cluster that it finds its process connected to.
    ray.init(
        address="local",
        namespace=_SERVE_NAMESPACE,
        num_cpus=cpus,
        include_dashboard=dashboard,
        dashboard_host="127.0.0.1",
    )
    shutdown.take_signals()  # Ray has put a handler of its own for SIGTERM in their place, which ends Serve in mid-work
    with ExitStack() as stack:
        if fork:
            raylet = global_worker.node.all_processes["raylet"][0].process.pid
            job = ray.get_runtime_context().get_job_id()
            stack.enter_context(fork_server(os.environ[SOCKET_VARIABLE], _worker_environment(os.environ, raylet, job)))
        run.main(args=[str(path)], prog_name="serve run", standalone_mode=False)


def _worker_environment(environ: Mapping[str, str], raylet: int, job: str) -> dict[str, str]:
    """The environment of this run's workers: the raylet's additions, read once when Ray is imported."""
    added = {"RAY_RAYLET_PID": str(raylet), "RAY_JOB_ID": job, "RAY_LD_PRELOAD_ON_WORKERS": "0", "SPT_NOENV": "1"}
    return {**environ, **added}


def _leave_nothing(console: Console) -> None:
    """Let Ray end its processes, then end the others."""
    import ray  # noqa: PLC0415 - already imported by `_serve_run`

    ray.shutdown()
    left_over = end_marked(RUN_VARIABLE, os.environ[RUN_VARIABLE], _END_WITHIN_S)
    if left_over:
        console.print(f"ended {len(left_over)} processes that Ray had left running")


def _say_warning(console: Console, message: str) -> None:
    console.print("[yellow]warning:[/] ", end="")
    console.print(message, highlight=False, markup=False, soft_wrap=True)


def _say_error(console: Console, message: str) -> None:
    console.print("[red]error:[/] ", end="")
    console.print(message, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _noted(note: Path) -> Iterator[None]:
    me = Process.of(os.getpid())
    assert me is not None
    me.write(note)
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


class _Watcher:
    """Reports the start in a thread of its own, until the server answers or a deployment has failed."""

    def __init__(self, file: ServeFile, console: Console, shutdown: GracefulShutdown) -> None:
        self._file = file
        self._console = console
        self._shutdown = shutdown
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch start-up", daemon=True)
        self.failure: str | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        began = time.monotonic()
        said = ""
        host, port = self._file.http_address
        host = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104 - compared, not bound
        url = f"http://{host}:{port}{self._file.route_prefix}"
        while not self._stopped.wait(_POLL_INTERVAL_S):
            state, failed = _application_state(self._file.name)
            if failed:
                self.failure = state
                self._shutdown.interrupt()
                return
            if state != said:
                self._console.print(
                    f"[dim]{time.monotonic() - began:5.1f} s[/]  {state}", highlight=False, soft_wrap=True
                )
                said = state
            if _answers(host, port, f"{self._file.route_prefix}/v2/health/ready"):
                self._console.print(f"[green]ready:[/] {url}  [dim]after {time.monotonic() - began:.1f} s[/]")
                for line in _more_ways_in(self._file, host):
                    self._console.print(line)
                for line in joinable_lines(host, port, self._file.route_prefix.rstrip("/")):
                    self._console.print(line, highlight=False, soft_wrap=True)
                self._console.print(
                    "[dim]Ctrl-C ends it. In another shell: `serve-app stop`,"
                    f" `RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']} serve status`[/]",
                    highlight=False,
                    soft_wrap=True,
                )
                return


def _more_ways_in(file: ServeFile, host: str) -> Iterator[str]:
    """A line with rich's markup per port other than Serve's HTTP."""
    router = file.args.router
    direct = f"[{router.host}]" if ":" in router.host else router.host
    if file.grpc_port is not None:
        yield f"[green]gRPC:[/] {host}:{file.grpc_port}"
    if router.http.port is not None:
        yield f"[green]direct:[/] http://{direct}:{router.http.port}  [dim]the routers' own port[/]"
    if router.grpc.port is not None:
        yield f"[green]direct gRPC:[/] {direct}:{router.grpc.port}  [dim]the routers' own port[/]"


def _application_state(name: str) -> tuple[str, bool]:
    """An application's state in one line, and whether its deployment has failed."""
    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", lambda: False)():
        return "starting Ray", False
    from ray import serve  # noqa: PLC0415 - only once `_serve_run` has imported it

    try:
        application = serve.status().applications.get(name)
    except Exception:  # it does not answer yet, or goes down: asked again until the watcher stops
        return "starting Serve", False
    if application is None:
        return "starting Serve", False
    failed = failure(application)
    if failed is not None:
        return f"the application could not be deployed: {failed}", True
    return progress(application), False


def _answers(host: str, port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
