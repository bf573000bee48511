"""Settings of circuit breakers and ejections."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from serve_app.config.values import Positive, Seconds, Section
from serve_app.scheduling.settings import BreakerSettings

_Part = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class BreakerConfig(Section):
    """The circuit breakers of one model, one per variant, and the ejection of replicas that fail alone.

    What counts are bundles of which no request was answered because the model failed. A bad input is not the model's
    failure: after one, the replica runs an input that is known to be good.
    """

    enabled: bool = True
    """Enables circuit breakers and the ejection of replicas. If off, failing models and replicas still get requests."""

    consecutive_failures: Positive = 3
    """So many failures in a row open the breaker; one fewer eject a replica, if there are others."""

    failure_ratio: _Part = 0.5
    """The breaker also opens when this fraction of the answers within `window_s` are failures."""

    window_s: Seconds = 10.0
    """The time that `failure_ratio` looks back. Also: how long nothing at all may be answered, whoever is to blame."""

    min_samples: Positive = 20
    """Minimum number of answers within `window_s` before `failure_ratio` applies.

    Also: this many failures without any answer over `window_s` open the breaker.
    """

    reset_s: Seconds = 60.0
    """How long an open breaker refuses requests, with 503, or sends them to a fallback, before it tries again."""

    probes: Positive = 3
    """Concurrent probe requests while half-open. The breaker closes after this many answers, reopens on a failure.

    Failures that the input may have caused reopen it only after this many in a row.
    """

    ejection_s: Seconds = 30.0
    """How long a replica that fails alone gets no work; each time again for that much longer, up to ten times."""

    max_ejected: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """Part of the replicas that may be ejected at once; 0 ejects none. The last one never is."""

    def settings(self) -> BreakerSettings | None:
        """The values for the scheduler; ``None`` if disabled."""
        return BreakerSettings(**self.model_dump(exclude={"enabled"})) if self.enabled else None
