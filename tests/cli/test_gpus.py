"""Whether a configuration's replicas fit on the GPUs of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx_models
import pytest
from typer.testing import CliRunner

from serve_app.cli.commands import app
from serve_app.cli.gpus import gpu_memories, gpu_memory_problems, gpu_problem, unchecked_memory
from serve_app.config.args import AppArgs, parse_args

GIB = 1 << 30
H100 = 80 * GIB


def args(*models: dict[str, Any], **autoscaling: Any) -> AppArgs:
    """Models with these resources, called m0, m1 and so on."""
    return parse_args(
        {
            "models": [
                {"name": f"m{number}", "path": "m", "resources": resources, "autoscaling": autoscaling}
                for number, resources in enumerate(models)
            ]
        }
    )


def on(gpus: float, memory: str | None = None) -> dict[str, Any]:
    """Resources of a model on a part of a GPU."""
    return {"gpus": gpus} if memory is None else {"gpus": gpus, "gpu_memory": memory}


def test_models_that_need_a_gpu_are_told_where_there_is_none() -> None:
    """Ray would wait for one for ever. A model with device `auto` needs none."""
    models = args(*({"device": device, "gpus": 1} for device in ("cuda", "auto", "cuda")))
    assert gpu_problem(models, has_gpu=True) is None
    assert gpu_problem(args({}), has_gpu=False) is None
    problem = gpu_problem(models, has_gpu=False)
    assert problem is not None
    assert problem.startswith("this machine has no GPU, which is asked for by m0, m2: set resources.device to auto")


@pytest.mark.parametrize(
    ("models", "memories"),
    [
        ([{}], [H100]),
        ([on(0.3, "40GiB"), on(0.3, "40GiB")], [H100]),
        ([on(0.5, "60GiB"), on(0.5, "20GiB")] * 2, [H100, H100]),
        ([on(0.3, "40GiB")] * 3, []),
        ([on(0.5), on(0.5, "80GiB")], [H100]),
    ],
)
def test_what_fits_is_no_problem(models: list[dict[str, Any]], memories: list[int]) -> None:
    """Nor is what cannot be known: GPUs that nvidia-smi does not tell of, and models without a limit."""
    assert gpu_memory_problems(args(*models), memories) == ()


def test_memory_of_all_replicas_is_added_up() -> None:
    """By GPU, with the numbers that exceed it and what to change."""
    (problem,) = gpu_memory_problems(args(on(0.3, "40GiB"), on(0.3, "50GiB"), on(0.3, "40GiB")), [H100])
    assert problem == (
        "GPU 0 has 80 GiB, and the resources.gpu_memory of replicas that would share it add up to 130 GiB (m1 50, m0"
        " 40, m2 40): lower it, or raise resources.gpus, so that fewer share a GPU"
    )


def test_replicas_are_packed_as_ray_does() -> None:
    """On the GPU with the least left of what suffices: both of 0.5 share the first, and the third has another."""
    models = args(on(0.5, "50GiB"), on(0.5, "40GiB"), on(0.6, "70GiB"))
    (problem,) = gpu_memory_problems(models, [H100, H100])
    assert problem.startswith("GPU 0 has 80 GiB, and the ")
    assert "add up to 90 GiB (m0 50, m1 40)" in problem
    assert gpu_memory_problems(args(on(0.5, "50GiB"), on(0.6, "70GiB")), [H100, H100]) == ()


@pytest.mark.parametrize(("most", "found"), [(2, 0), (3, 1), (9, 1)])
def test_replicas_that_autoscaling_adds_count_where_they_have_room(most: int, found: int) -> None:
    """Three of 0.3 have room on a GPU, a fourth would wait until another ends."""
    assert len(gpu_memory_problems(args(on(0.3, "30GiB"), max_replicas=most), [H100])) == found


def test_shares_that_no_gpu_has_left() -> None:
    """The replica would wait for ever."""
    assert gpu_memory_problems(args(on(0.6), on(0.6)), [H100]) == (
        (
            "replicas of m1 would wait for a GPU for ever: the resources.gpus of all replicas do not fit on those of"
            " this machine (1); lower them, or the numbers of replicas"
        ),
    )


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of that name, which tells of one GPU of 80 GiB, and of none of those that are named."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncase "$*" in *--id=7*) exit 6;; esac\necho 81920\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("nvidia_smi")
def test_memory_of_visible_gpus() -> None:
    """An error is as good as no answer."""
    assert gpu_memories({}) == (H100,)
    assert gpu_memories({"CUDA_VISIBLE_DEVICES": "7"}) == ()


def test_memory_that_is_not_checked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nvidia-smi is not there."""
    monkeypatch.setenv("PATH", "")
    assert gpu_memories({}) == ()
    assert [*unchecked_memory(args(on(0.3, "40GiB"), on(0.3)), ())] == [
        "the resources.gpu_memory of m0 is not checked: nvidia-smi tells of no GPU here"
    ]
    assert [*unchecked_memory(args(on(0.3, "40GiB")), (H100,))] == []


@pytest.mark.usefixtures("nvidia_smi")
@pytest.mark.parametrize(("memory", "code"), [("40GiB", 2), ("20GiB", 0)])
def test_validate_refuses_replicas_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, code: int
) -> None:
    """As a fault of the configuration; not of one that is for another machine."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    (tmp_path / "m" / "1").mkdir(parents=True)
    onnx_models.make(tmp_path / "m" / "1" / "model.onnx", "add_one")
    models = "".join(
        f"\n        - {{name: m{number}, path: m, resources: {{gpus: 0.3, gpu_memory: {memory}}}}}"
        for number in range(3)
    )
    path = tmp_path / "serve.yaml"
    path.write_text(f"applications:\n  - import_path: serve_app.app:build\n    args:\n      models:{models}\n")
    result = CliRunner().invoke(app, ["validate", str(path)])

    assert result.exit_code == code
    assert ("add up to 120 GiB (m0 40, m1 40, m2 40)" in result.stderr) == (code == 2)
    assert CliRunner().invoke(app, ["validate", str(path), "--no-models"]).exit_code == 0
