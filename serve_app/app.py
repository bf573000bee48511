"""What ``serve run`` imports: turns a configuration into a Ray Serve application."""

from __future__ import annotations

from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from serve_app import wings
from serve_app.composition import expand_models, model_info, read_args, read_models, read_priors, with_versions
from serve_app.composition.locate import looking_once
from serve_app.composition.references import pin_models
from serve_app.composition.revision import find_revisions
from serve_app.composition.router import encode_description
from serve_app.composition.wing_parts import check_wings
from serve_app.config.args import AppArgs
from serve_app.config.model import ModelConfig
from serve_app.config.names import ROUTER
from serve_app.deployments.model import SURGE_PERCENT, ModelDeployment
from serve_app.deployments.register import forget
from serve_app.deployments.router import RouterDeployment
from serve_app.domain.agreed import Agreed
from serve_app.domain.priority import Priority

_MORE_ROUTERS_AFTER_S, _FEWER_ROUTERS_AFTER_S = 5.0, 300.0
"""A start costs little, and an end moves connections."""


@looking_once()
def build(args: dict[str, Any]) -> serve.Application:
    """Build the application from what stands under ``args:`` of a Serve file.

    Everything that can be found wrong without starting a replica is found here: the configuration itself, missing
    files, models that cannot be read, processors that do not fit their model.

    Raises:
        ConfigError: With one readable line per fault.
    """
    config = with_versions(pin_models(expand_models(read_args(args))))
    described = read_models(config)
    infos = {model.name: model_info(model, config, described[model.name]) for model in config.models}
    revisions = find_revisions(config.models)
    infos = {name: info._replace(revision=revisions[name].name) for name, info in infos.items()}
    check_wings(config, infos)
    # Replicas that start later must not pick up a version that appeared in the meantime.
    pinned = [revision.model for revision in revisions.values()]
    known = {model.name: revisions[model.name].identities for model in pinned if model.caches}
    min_share = {priority: limits.min_share for priority, limits in config.class_settings().items()}
    models = {
        model.name: _model_deployment(model, config).bind(
            model,
            base=revisions[model.name].name,
            identities=known.get(model.name, {}),
            min_share=min_share,
            protect=config.class_settings()[Priority.HIGH].protect,
        )
        for model in pinned
        if model.pool is None
    }
    others = {
        name: deployment
        for deployments in wings.hooks("deployment", "deployments")
        for name, deployment in deployments(config, revisions, described).items()
    }
    most_routers = config.most_routers()
    router = serve.deployment(serve.ingress()(RouterDeployment)).options(
        name=ROUTER,
        autoscaling_config={
            "min_replicas": config.router.fewest,
            "max_replicas": most_routers,
            # Without the policy, in a file that does not name it, Serve would count what its proxy brings alone.
            "target_ongoing_requests": config.ongoing_requests,
            "metrics_interval_s": 1.0,
            "look_back_period_s": 5.0,
            "upscale_delay_s": _MORE_ROUTERS_AFTER_S,
            "downscale_delay_s": _FEWER_ROUTERS_AFTER_S,
        },
        max_ongoing_requests=config.ongoing_requests,
        ray_actor_options={"num_cpus": config.router.cpus},
        health_check_period_s=5.0,
        # Serve first waits for what came by its own ports, then the router closes the others.
        graceful_shutdown_timeout_s=2 * config.router.drain_timeout_s,
        max_surge_percent=SURGE_PERCENT,
    )
    priors = read_priors(pinned)
    deployed = {
        name: Agreed(
            revision.name,
            revision.version,
            executions=priors.get(name, ()),
            described=encode_description(infos[name], known.get(name, {})),
        )
        for name, revision in revisions.items()
    }
    forget({name: agreed.revision for name, agreed in deployed.items()})
    application: serve.Application = router.bind(
        config, infos, models | others, priors=priors, identities=known, deployed=deployed
    )
    return application


def _model_deployment(model: ModelConfig, config: AppArgs) -> Any:
    scaling = model.autoscaling
    more_after_s, fewer_after_s = scaling.delays_s
    actor_options: dict[str, Any] = {"num_cpus": model.resources.cpus}
    if model.resources.gpus and (model.resources.device == "cuda" or ray.cluster_resources().get("GPU", 0) > 0):
        actor_options["num_gpus"] = model.resources.gpus
    return serve.deployment(ModelDeployment).options(
        name=model.deployment,
        ray_actor_options=actor_options,
        # The scheduler's slots keep every router to its window; Serve must never be the one to say no.
        max_ongoing_requests=3 * model.batching.window * model.batching.configured_rows * config.most_routers(),
        autoscaling_config={
            "min_replicas": scaling.min_replicas,
            "initial_replicas": scaling.start_replicas,
            "max_replicas": model.most_replicas,
            "target_ongoing_requests": model.target_rows,
            "metrics_interval_s": scaling.metrics_interval_s,
            "look_back_period_s": scaling.look_back_period_s,
            "upscale_delay_s": more_after_s,
            "downscale_delay_s": fewer_after_s,
            "downscale_to_zero_delay_s": scaling.downscale_to_zero_delay_s,
        },
        request_router_config=RequestRouterConfig(request_router_class="serve_app.deployments.slot_router:SlotRouter"),
        health_check_period_s=model.health.check_period_s,
        health_check_timeout_s=model.health.check_timeout_s,
        graceful_shutdown_timeout_s=model.health.drain_timeout_s,
        max_surge_percent=SURGE_PERCENT,
    )
