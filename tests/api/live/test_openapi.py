"""The description of the HTTP side, and the page that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import msgspec
import pytest
from fuzz_http import fuzz
from hypothesis_profiles import examples
from local_server import LocalServer

from api.protocol_service import NumpyService, both
from serve_app.api.http_app import create_app
from serve_app.api.left_out import tolerant
from serve_app.api.open_inference.wire import InferRequest
from serve_app.api.openapi.document import describe, template
from serve_app.api.openapi.pages import ASSETS
from serve_app.api.routes import ApiRoutes
from serve_app.domain.options import MAX_TIMEOUT_S
from serve_app.domain.priority import Priority
from serve_app.http.errors import STATUSES
from serve_app.jobs.router import JobsPart
from serve_app.payloads import DTYPES
from serve_app.processors.embedding import EmbeddingParameters
from serve_app.processors.ranking import RankingParameters
from serve_app.versions.routes import routes
from serve_app.versions.tables import TrafficTables


@pytest.fixture(scope="module")
def spec(server: LocalServer) -> dict[str, Any]:
    """As clients get it."""
    answer = httpx.get(f"{server.url}/openapi.json")
    document: dict[str, Any] = answer.json()
    return document


def _operations(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


def test_every_route_is_described(server: LocalServer, spec: dict[str, Any]) -> None:
    """And nothing that is not served."""
    served = {(route.method, route.path) for route in server.app.described()}

    assert served - _operations(template()) == set(), "served, but not in openapi.yaml"
    assert _operations(template()) - served == set(), "in openapi.yaml, but not served"
    assert _operations(spec) == served


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_every_reference_leads_somewhere(spec: dict[str, Any]) -> None:
    """Within the document."""
    for reference in set(_references(spec)):
        node = spec
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
        assert node


def test_operations_have_names_of_their_own(spec: dict[str, Any]) -> None:
    """Code generators make functions of them."""
    names = [operation["operationId"] for methods in spec["paths"].values() for operation in methods.values()]

    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


def test_it_knows_the_models(spec: dict[str, Any]) -> None:
    """In paths and headers, and only where they are served."""

    def names(path: str) -> list[str]:
        (operation,) = spec["paths"][path].values()
        return next(each["schema"]["enum"] for each in operation["parameters"] if each.get("name") == "model")

    assert names("/v2/models/{model}/infer") == ["digits", "spoken-digits", "words", "moods", "sum_diff", "strings"]
    assert names("/v1/models/{model}/predict") == ["digits", "spoken-digits", "words", "moods"]
    assert spec["components"]["parameters"]["X-Variant"]["schema"]["enum"] == ["light"]


def _examples(spec: dict[str, Any]) -> list[tuple[str, str, str, Any]]:
    """Path, content type and value of every example, with the name of its model."""
    found = []
    for path, methods in spec["paths"].items():
        for operation in methods.values():
            for media, content in operation.get("requestBody", {}).get("content", {}).items():
                for name, example in content.get("examples", {}).items():
                    model, _, task = name.partition(": ")
                    given = path.replace("{model}", model).replace("{version}", "1")
                    if "{task}" in path:
                        given = given.replace("{task}", task or example["summary"].partition(" ")[0])
                    found.append((given, media, name, example["value"]))
    return found


def test_every_example_works(server: LocalServer, spec: dict[str, Any]) -> None:
    """As it stands, at every route that shows it; at the bare URL, where one model fits."""
    examples = _examples(spec)
    for path, media, name, value in examples:
        answer = httpx.post(server.url + path, content=msgspec.json.encode(value), headers={"Content-Type": media})
        several = path == "/" and name in {"words", "moods"}
        assert (answer.status_code, path, name) == (400 if several else 200, path, name), answer.text

    assert len(examples) > 20


def test_the_parameters_are_those_of_the_tasks(spec: dict[str, Any]) -> None:
    """Processors refuse what they do not know, so the description has to name all that they do."""
    tasks = {*EmbeddingParameters.__struct_fields__, *RankingParameters.__struct_fields__}
    schemas = spec["components"]["schemas"]

    assert set(schemas["PredictParameters"]["properties"]) == tasks | {"variant", "fallback", "options"}
    beside = {"variant", "fallback", "options", "inputs", "parameters"}
    assert set(schemas["PredictRequest"]["properties"]) == tasks | beside


def test_infer_requests_are_described_as_they_are_decoded(spec: dict[str, Any]) -> None:
    """Of the whole body, and of all its parts."""
    (reference,), found = msgspec.json.schema_components(
        (tolerant(InferRequest[msgspec.Raw]),), ref_template="#/components/schemas/{name}"
    )
    decoded = msgspec.json.decode(msgspec.json.encode(found))

    assert reference == {"$ref": "#/components/schemas/InferRequest"}
    assert set(decoded) >= {"InferRequest", "InputTensor", "RequestParameters"}
    for name, schema in decoded.items():
        described = spec["components"]["schemas"][name]
        assert (name, described["properties"]) == (name, schema["properties"])
        assert (name, described["required"]) == (name, schema["required"])


def test_every_status_of_an_error_is_described(spec: dict[str, Any]) -> None:
    """With its codes, in both shapes."""
    codes: dict[str, list[str]] = {}
    for code, status in STATUSES.items():
        codes.setdefault(str(status.http), []).append(code)
    found: dict[str, list[str]] = {}
    for name, response in spec["components"]["responses"].items():
        narrowed = response["content"]["application/json"]["schema"]["allOf"][1]["properties"]
        if name.startswith("OpenAI"):
            narrowed = narrowed["error"]["properties"]
        found[name] = narrowed["code"]["enum"]
        assert all(f"`{code}`" in response["description"] for code in found[name])

    assert found == {f"{shape}Error{status}": of for shape in ("", "OpenAI") for status, of in codes.items()}


def test_its_values_are_those_of_the_server(spec: dict[str, Any]) -> None:
    """Where the file repeats what code knows."""
    components = spec["components"]
    classes = [priority.label for priority in Priority]

    assert components["parameters"]["X-Priority"]["schema"]["anyOf"][0]["enum"] == classes
    assert components["headers"]["X-Priority"]["schema"]["enum"] == classes
    assert components["parameters"]["X-Timeout-Ms"]["schema"]["maximum"] == MAX_TIMEOUT_S * 1e3
    assert components["schemas"]["TensorMetadata"]["properties"]["datatype"]["enum"] == list(DTYPES)
    assert components["schemas"]["OutputTensor"]["properties"]["datatype"]["enum"] == list(DTYPES)
    assert spec["paths"]["/docs/{asset}"]["get"]["parameters"][0]["schema"]["enum"] == list(ASSETS)


def test_a_server_without_media_models_is_described_too() -> None:
    """No empty lists of names, which nothing could match."""
    tables = TrafficTables(None, None, lambda _: None)
    more = (JobsPart(None).routes, lambda gateway, _: ApiRoutes(routes(gateway, tables)))
    served = create_app(*both(NumpyService()), more=more).described()
    document = describe(served, [NumpyService().models["double"]])

    assert set(document["paths"]) == set(template()["paths"])
    assert '"enum":[]' not in msgspec.json.encode(document).decode()


def test_the_page_needs_nothing_from_elsewhere(server: LocalServer) -> None:
    """Swagger UI comes from here, and reads the description from here."""
    with httpx.Client(base_url=server.url) as client:
        page = client.get("/docs")
        parts = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        answers = [client.get(part) for part in parts]

        assert page.headers["content-type"].startswith("text/html")
        assert "http:" not in page.text
        assert "https:" not in page.text
        assert len(parts) == 4
        assert all(answer.status_code == 200 for answer in answers)
        assert "SwaggerUIBundle(" in answers[-1].text
        assert client.get(re.findall(r'data-description="([^"]*)"', page.text)[0]).json()["openapi"] == "3.1.0"
        assert client.get("/docs/nothing.js").status_code == 404
        assert client.get("/docs/..%2f__init__.py").status_code == 404


async def test_behind_a_prefix_the_page_and_the_description_know_it() -> None:
    """As where Serve mounts the application below ``route_prefix``."""
    transport = httpx.ASGITransport(create_app(*both(NumpyService())), root_path="/inference")
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        page = await client.get("/inference/docs")
        document = await client.get("/inference/openapi.json")

    assert 'src="/inference/docs/start.js"' in page.text
    assert document.json()["servers"] == [{"url": "/inference"}]


def test_the_front_page_leads_there(server: LocalServer) -> None:
    """For who comes first."""
    assert "/docs" in httpx.get(server.url).text


@pytest.mark.hypothesis
def test_the_server_keeps_to_its_description(server: LocalServer) -> None:
    """Whatever the description allows is answered as it says; what it does not allow is refused; and nothing fails.

    `make fuzz-http` asks for longer.
    """
    done = fuzz(server.url, "--max-examples", str(examples(2, 40)), "--generation-deterministic")

    assert done.returncode == 0, done.stdout
