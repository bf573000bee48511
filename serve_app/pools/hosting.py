"""Members of pools: their configuration, and how a host loads one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from serve_app.backends.description import Description
from serve_app.composition.locate import ModelLocation
from serve_app.composition.model import file_bytes
from serve_app.composition.replica import AsMember, MadeReplica
from serve_app.composition.revision import Revision, open_revision
from serve_app.config.model import ModelConfig
from serve_app.config.values import size
from serve_app.domain.agreed import Told
from serve_app.errors import ConfigError
from serve_app.payloads import Execution
from serve_app.pools.config import PoolConfig
from serve_app.pools.host import LoadedMember
from serve_app.replica.turn import Turn


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A member as deployed.

    Attributes:
        revision: The state of its files.
        builds: Their contents, by variant; ``None``: a host reads them at the first load.
    """

    revision: Revision
    builds: Mapping[str, Description] | None = None


class MemberLoader:
    """Loads members in a host's process, and remembers the results of first loads. Thread-safe.

    Args:
        plans: By member.
        make: `serve_app.composition.replica.make_replica`, with the arguments common to all members.
    """

    def __init__(self, plans: Mapping[str, MemberPlan], make: Callable[..., MadeReplica]) -> None:
        self._plans = dict(plans)
        self._make = make
        self._turn = Turn()
        self._executions: dict[str, Sequence[Execution]] = {}

    def load(self, name: str) -> LoadedMember:
        """Load a member from the files that it was deployed with.

        Raises:
            ConfigError: They are not there any more, or cannot be loaded.
        """
        plan = self._plans.get(name)
        if plan is None:
            raise ConfigError((f"model {name!r}: is no member of this pool",))
        revision = plan.revision
        if revision.changed():  # changed, or this is another machine
            revision = open_revision(revision.model, revision.name, revision.version)
        builds = plan.builds or revision.builds
        self._plans[name] = MemberPlan(revision, builds)
        member = AsMember(self._turn, revision.identities, self._executions.get(name, ()))
        replica = self._make(revision.model, builds, locations=revision.locations, member=member)
        if revision.changed():
            replica.worker.close()
            raise ConfigError((f"model {name!r}: its files changed while they were loaded; deploy it again",))
        warm_up = replica.warm_up
        self._executions[name] = warm_up.executions
        told = Told(warm_up.executions, dict(replica.joining.verdicts), warm_up.reason, replica.compute)
        return LoadedMember(replica.worker, told, revision.nbytes)


def member_problems(model: ModelConfig, pool: PoolConfig, locations: Mapping[str, ModelLocation]) -> tuple[str, ...]:
    """Why a model cannot be a member of its pool, one line each."""
    if locations[""].kind.runs_code:
        return (f"model {model.name!r}: is code, which a pool does not run; give it replicas of its own",)
    nbytes = file_bytes(locations)
    if nbytes <= pool.memory:
        return ()
    problem = (
        f"model {model.name!r}: its files have {size(nbytes)}, and a host of pool {pool.name!r} has memory for"
        f" {size(pool.memory)}; raise the pool's memory, or give the model replicas of its own"
    )
    return (problem,)
