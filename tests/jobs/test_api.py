"""Jobs and OpenAI's batches at a server with real models."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from jobs.receiver import Receiver
from local_server import LocalServer, every_kind_of_model

from serve_app.api.http_app import HttpSettings
from serve_app.cli.key_file import add
from serve_app.scheduling.demand import ModelDemand

DATA = Path(__file__).resolve().parents[1] / "data"
PICTURE = DATA / "digits" / "0_1258_28px_dark_palette.png"
SECRET = "known to both"
SUM = {
    "inputs": [{"name": name, "shape": [1, 16], "datatype": "INT32", "data": [2] * 16} for name in ("INPUT0", "INPUT1")]
}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """Takes callbacks; its first answers are redirects and errors."""
    with Receiver(302, 500) as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[LocalServer]:
    """A model of every task, and jobs."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "secret").write_text(SECRET + "\n")
    jobs = {
        "path": str(folder / "jobs.sqlite"),
        "max_items": 20,
        "max_file": 4096,
        "callbacks": {
            "hosts": [f"localhost:{receiver.port}", "127.0.0.1:1", "public.invalid"],
            "networks": ["127.0.0.0/8", "::1/128"],
            "secret_file": str(folder / "secret"),
            "retry_s": 0.02,
        },
    }
    with LocalServer({**every_kind_of_model(folder / "models"), "router": {"jobs": jobs}}) as running:
        yield running


@pytest.fixture
def client(server: LocalServer) -> Iterator[httpx.Client]:
    """Asks that server."""
    with httpx.Client(base_url=server.url, timeout=90) as connected:
        yield connected


def _ended(client: httpx.Client, job: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v1/jobs/{job}", params={"wait": 60}).raise_for_status().json()
    assert found["state"] in {"COMPLETED", "ERROR", "CANCELLED"}
    return found


def _submitted(client: httpx.Client, **asked: Any) -> dict[str, Any]:
    answer = client.post("/v1/jobs", json=asked)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    return job


def test_one_request(client: httpx.Client) -> None:
    """A job of one body is answered as the request would be."""
    job = _submitted(client, model="sum_diff", body=SUM, metadata={"mine": "yes"})
    ended = _ended(client, job["id"])
    assert (ended["state"], ended["progress"], ended["error"], ended["metadata"]) == (
        *("COMPLETED", 1.0, None, {"mine": "yes"}),
    )
    alone = client.get(f"/v1/jobs/{job['id']}/results/0")
    direct = client.post("/v2/models/sum_diff/infer", json=SUM)
    assert (alone.status_code, alone.json(), alone.headers["content-type"]) == (
        *(200, direct.json(), direct.headers["content-type"]),
    )


def test_many_requests_of_several_kinds(client: httpx.Client) -> None:
    """Every item has its own model, route and body; the results say what became of each, by pages."""
    picture = base64.encodebytes(PICTURE.read_bytes()).decode().rstrip("=\n")  # in lines, and not padded
    job = _submitted(
        client,
        model="digits",
        items=[
            {"body": {"inputs": picture}, "custom_id": "picture"},
            {"body_base64": picture, "content_type": "image/png"},
            {"model": "sum_diff", "body": SUM},
            {"url": "/v1/embeddings", "body": {"model": "words", "input": "the cat"}},
            {"url": "/v2/models/sum_diff/infer", "model": "sum_diff", "body": {"inputs": []}},
        ],
    )
    ended = _ended(client, job["id"])
    assert ended["state"] == "ERROR"
    assert ended["error"]["code"] == "items_failed"
    assert ended["items"] == {"total": 5, "completed": 4, "failed": 1, "cancelled": 0, "expired": 0, "waiting": 0}
    first = client.get(f"/v1/jobs/{job['id']}/results", params={"limit": 2}).json()
    assert first["next"] == 1
    rest = client.get(f"/v1/jobs/{job['id']}/results", params={"after": 1}).json()
    assert rest["next"] is None
    results = first["data"] + rest["data"]
    assert [each["index"] for each in results] == [0, 1, 2, 3, 4]
    assert results[0]["custom_id"] == "picture"
    direct = client.post("/v1/models/digits/predict", content=PICTURE.read_bytes())
    assert results[0]["body"] == results[1]["body"] == direct.json()
    assert results[2]["body"]["model_name"] == "sum_diff"
    assert results[3]["body"]["data"][0]["object"] == "embedding"
    assert (results[4]["state"], results[4]["status"], results[4]["error"]["code"]) == (
        *("ERROR", 400, "invalid_request"),
    )
    only = client.get(f"/v1/jobs/{job['id']}/results", params={"state": "error"}).json()
    assert [each["index"] for each in only["data"]] == [4]
    failed = client.get(f"/v1/jobs/{job['id']}/results/4")
    assert (failed.status_code, failed.json()["code"]) == (400, "invalid_request")


def test_a_body_as_it_is(client: httpx.Client) -> None:
    """A picture, or tensors in binary, are a job of themselves where the query says of what."""
    picture = client.post("/v1/jobs", params={"model": "digits"}, content=PICTURE.read_bytes())
    assert picture.status_code == 202
    head = {
        "inputs": [
            {"name": name, "shape": [1, 16], "datatype": "INT32", "parameters": {"binary_data_size": 64}}
            for name in ("INPUT0", "INPUT1")
        ],
        "parameters": {"binary_data_output": True},
    }
    length = json.dumps(head).encode()
    body = length + np.arange(32, dtype="<i4").tobytes()
    headers = {"Inference-Header-Content-Length": str(len(length)), "Content-Type": "application/octet-stream"}
    tensors = client.post(
        "/v1/jobs", params={"url": "/v2/models/sum_diff/versions/1/infer"}, content=body, headers=headers
    )
    assert _ended(client, picture.json()["id"])["state"] == "COMPLETED"
    assert _ended(client, tensors.json()["id"])["state"] == "COMPLETED"
    binary = client.get(f"/v1/jobs/{tensors.json()['id']}/results/0")
    direct = client.post("/v2/models/sum_diff/infer", content=body, headers=headers)
    assert binary.content == direct.content
    name = "inference-header-content-length"
    assert binary.headers[name] == direct.headers[name]
    listed = client.get(f"/v1/jobs/{tensors.json()['id']}/results").json()["data"][0]
    assert base64.b64decode(listed["body_base64"]) == binary.content


def test_the_same_request_twice(client: httpx.Client) -> None:
    """An idempotency key makes one job of a request that comes again, and refuses another one."""
    headers = {"Idempotency-Key": "once"}
    first = client.post("/v1/jobs", json={"model": "sum_diff", "body": SUM}, headers=headers)
    again = client.post("/v1/jobs", json={"model": "sum_diff", "body": SUM}, headers=headers)
    other = client.post("/v1/jobs", json={"model": "sum_diff", "items": [{"body": SUM}]}, headers=headers)
    assert (first.status_code, again.status_code, other.status_code) == (202, 200, 409)
    assert again.json()["id"] == first.json()["id"]
    assert other.json()["code"] == "conflict"


def test_the_same_body_with_other_headers_is_another_request(client: httpx.Client) -> None:
    """Those that are kept with a body as it is count for its idempotency key, too."""
    params, picture, key = {"model": "digits"}, PICTURE.read_bytes(), {"Idempotency-Key": "picture"}
    for headers, status in (({}, 202), ({}, 200), ({"X-Model-Version": "1"}, 409)):
        answer = client.post("/v1/jobs", params=params, content=picture, headers={**key, **headers})
        assert answer.status_code == status


def test_jobs_are_listed(client: httpx.Client) -> None:
    """The newest first, by pages."""
    made = [_submitted(client, model="sum_diff", body=SUM)["id"] for _ in range(3)][::-1]
    first = client.get("/v1/jobs", params={"limit": 2}).json()
    assert [job["id"] for job in first["data"]] == made[:2]
    assert first["has_more"]
    assert client.get("/v1/jobs", params={"after": first["last_id"]}).json()["first_id"] == made[2]


@pytest.mark.parametrize(("path", "name"), [("/v1/jobs", "job"), ("/v1/batches", "batch"), ("/v1/files", "file")])
def test_a_page_behind_what_has_expired_is_refused(client: httpx.Client, path: str, name: str) -> None:
    """It is not the first page again: a client that goes through all pages would never end."""
    answer = client.get(path, params={"after": "gone"})
    assert (answer.status_code, f"there is no {name} 'gone' here" in answer.text) == (404, True)


def test_a_job_is_cancelled(client: httpx.Client) -> None:
    """What has not ended never will; to cancel it again changes nothing."""
    job = _submitted(client, model="sum_diff", items=[{"body": SUM}] * 20)
    cancelled = client.post(f"/v1/jobs/{job['id']}/cancel").json()
    assert cancelled["state"] in {"CANCELLED", "COMPLETED"}  # it may have been quicker
    assert client.post(f"/v1/jobs/{job['id']}/cancel").json() == cancelled


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        ({}, 400, "model: expected a name"),
        ({"model": "sum_diff"}, 400, "body: expected the body"),
        ({"model": "sum_diff", "items": []}, 400, "items: expected at least one"),
        ({"model": "none", "body": {}}, 404, "there is no 'none' here"),
        ({"model": "sum_diff", "items": [{"body": SUM}, {"model": "none", "body": {}}]}, 404, "items[1]: Request for"),
        ({"model": "sum_diff", "items": [{"body": SUM}, {}]}, 400, "items[1].body: expected the body"),
        ({"model": "sum_diff", "items": [{"body": SUM}] * 21}, 413, "router.jobs.max_items allows 20"),
        ({"model": "sum_diff", "items": [{}] * 21}, 413, "router.jobs.max_items allows 20"),
        ({"model": "none", "url": "/v1/embeddings", "body": {}}, 404, "there is no 'none' here"),
        ({"url": "/v1/embeddings" + "/" * 1100, "body": {}}, 400, "url: it has 1114 characters"),
        ({"url": "/metrics", "body": {}}, 400, "runs no model"),
        ({"url": "/v1/jobs", "body": {}}, 400, "runs no model"),
        ({"url": "/v2/models/digits/infer", "model": "words", "body": {}}, 400, "the url is for 'digits'"),
        ({"model": "sum_diff", "body": SUM, "priority": "highest"}, 400, "priority: expected"),
        ({"model": "sum_diff", "body": SUM, "timeout_s": 1e9}, 400, "timeout_s"),
        ({"model": "sum_diff", "body": SUM, "wrong": 1}, 400, "wrong"),
        ({"model": "sum_diff", "body": SUM, "headers": {"host": "a"}}, 400, "headers: 'host'"),
        ({"model": "sum_diff", "body_base64": "!"}, 400, "body_base64"),
        ({"model": "sum_diff", "body": SUM, "callback": "http://127.0.0.1:9/"}, 400, "router.jobs.callbacks.hosts"),
        ({"model": "sum_diff", "body": SUM, "callback": "file:///etc"}, 400, "callback: expected a URL"),
        ({"model": "sum_diff", "body": SUM, "callback": "http://a:b@127.0.0.1:1/"}, 400, "no user or password"),
        ({"model": "sum_diff", "body": SUM, "metadata": {"a": "b" * 513}}, 400, "metadata"),
    ],
)
def test_what_cannot_be_a_job_is_refused(client: httpx.Client, asked: Any, status: int, message: str) -> None:
    """A client is told what is wrong, and nothing of it is kept."""
    before = client.get("/v1/jobs").json()["first_id"]
    answer = client.post("/v1/jobs", json=asked)
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text
    assert client.get("/v1/jobs").json()["first_id"] == before


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/jobs/job_none", 404),
        ("/v1/jobs/job_none/results", 404),
        ("/v1/jobs?limit=0", 400),
        ("/v1/jobs?limit=--5", 400),
        ("/v1/jobs/job_none/results?after=--1", 400),
        ("/v1/batches?limit=--5", 400),
        ("/v1/files?limit=--5", 400),
        ("/v1/files?limit=10001", 400),
        ("/v1/files?order=nonsense", 400),
        ("/v1/jobs/job_none?wait=nan", 400),
        ("/v1/batches/batch_none", 404),
        ("/v1/files/file-none", 404),
        ("/v1/files/file-none/content", 404),
        ("/v1/files/file-batch_none-output", 404),
    ],
)
def test_what_there_is_not(client: httpx.Client, path: str, status: int) -> None:
    """Errors say so, in the shape of the API."""
    answer = client.get(path)
    assert answer.status_code == status
    assert ("code" in answer.json()) == path.startswith("/v1/jobs")


def test_an_end_is_told(client: httpx.Client, receiver: Receiver) -> None:
    """A callback is tried again until it is taken; redirects are not followed; the signature is over id, time, body."""
    url = f"http://localhost:{receiver.port}/hook?a=b"
    job = _submitted(client, model="sum_diff", body=SUM, callback=url)
    received = [receiver.received.get(timeout=120) for _ in range(3)]
    assert [each.path for each in received] == ["/hook?a=b"] * 3
    last = received[-1]
    assert last.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    event = json.loads(last.body)
    assert {name: event[name] for name in ("specversion", "id", "source", "type", "subject")} == {
        "specversion": "1.0",
        "id": job["id"],
        "source": "/v1/jobs",
        "type": "serve_app.job.completed",
        "subject": job["id"],
    }
    assert event["data"]["state"] == "COMPLETED"
    signed = f"{last.headers['webhook-id']}.{last.headers['webhook-timestamp']}.".encode() + last.body
    digest = base64.b64encode(hmac.digest(SECRET.encode(), signed, hashlib.sha256)).decode()
    assert last.headers["webhook-signature"] == f"v1,{digest}"
    assert {each.headers["webhook-id"] for each in received} == {job["id"]}


# ------------------------------------------------------------------ batches


@pytest.fixture
def api(server: LocalServer) -> Iterator[openai.OpenAI]:
    """OpenAI's client."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


def _lines(*bodies: Any, url: str = "/v1/embeddings") -> bytes:
    lines = [
        {"custom_id": f"line {n}", "method": "POST", "url": url, "body": body} for n, body in enumerate(bodies, start=1)
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def test_a_batch_of_openais_client(api: openai.OpenAI, client: httpx.Client) -> None:
    """A file in, a file of answers and one of errors out. The mark that editors write in front is ignored."""
    content = b"\xef\xbb\xbf" + _lines(
        {"model": "words", "input": "the cat"},
        {"model": "none", "input": "the cat"},
        {"model": "words", "input": ["a dog", "sat"]},
    )
    file = api.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.filename, file.purpose, file.bytes) == ("in.jsonl", "batch", len(content))
    assert api.files.content(file.id).read() == content
    assert file.id in [each.id for each in api.files.list()]
    batch = api.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h", metadata={"mine": "yes"}
    )
    assert (batch.status in {"validating", "in_progress", "completed"}, batch.metadata) == (True, {"mine": "yes"})
    while batch.status != "completed":
        batch = api.batches.retrieve(batch.id)
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 1}
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    answers = [json.loads(line) for line in api.files.content(batch.output_file_id).text.splitlines()]
    assert [answer["custom_id"] for answer in answers] == ["line 1", "line 3"]
    assert [(answer["response"]["status_code"], answer["error"]) for answer in answers] == [(200, None)] * 2
    assert [len(answer["response"]["body"]["data"]) for answer in answers] == [1, 2]
    (error,) = [json.loads(line) for line in api.files.content(batch.error_file_id).text.splitlines()]
    assert (error["custom_id"], error["response"]["status_code"]) == ("line 2", 404)
    assert error["response"]["body"]["error"]["code"] == "model_not_found"
    made = api.files.retrieve(batch.output_file_id)
    assert (made.purpose, "bytes" in made.to_dict()) == ("batch_output", False)
    assert batch.id in [each.id for each in api.batches.list()]
    assert client.get(f"/v1/jobs/{batch.id}").status_code == 404
    assert api.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        api.files.retrieve(file.id)


def test_an_answer_that_is_not_json(api: openai.OpenAI) -> None:
    """Tensors in binary stand beside the body, with the headers that say how they are read."""
    asked = {**SUM, "parameters": {"binary_data_output": True}}
    url = "/v2/models/sum_diff/infer"
    file = api.files.create(file=("in", _lines(asked, url=url)), purpose="batch")
    batch = api.batches.create(
        input_file_id=file.id,
        endpoint=url,  # type: ignore[arg-type]
        completion_window="24h",
    )
    while batch.status != "completed":
        batch = api.batches.retrieve(batch.id)
    assert batch.output_file_id is not None
    response = json.loads(api.files.content(batch.output_file_id).text)["response"]
    assert (response["status_code"], response["body"]) == (200, None)
    answer = base64.b64decode(response["body_base64"])
    head = json.loads(answer[: int(response["headers"]["inference-header-content-length"])])
    assert head["model_name"] == "sum_diff"
    assert answer.endswith(np.zeros(16, "<i4").tobytes())


def test_a_batch_is_cancelled(api: openai.OpenAI) -> None:
    """What was not run is in the error file."""
    file = api.files.create(file=("in", _lines(*[{"model": "words", "input": "the cat"}] * 20)), purpose="batch")
    batch = api.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    cancelled = api.batches.cancel(batch.id)
    assert cancelled.status in {"cancelled", "completed"}
    files = [each for each in (cancelled.output_file_id, cancelled.error_file_id) if each is not None]
    assert sum(len(api.files.content(each).text.splitlines()) for each in files) == 20


@pytest.mark.parametrize(
    ("content", "endpoint", "message"),
    [
        (b"{}", "/v1/embeddings", "line 1"),
        (_lines({}) + b"\nno", "/v1/embeddings", "line 2"),
        (b"\n \r\n\n" + _lines({}) + b" \r\n\r\nno", "/v1/embeddings", "line 6"),
        (_lines({}, url="/v1/other"), "/v1/embeddings", "line 1: url"),
        (_lines({}) + b"\n" + _lines({}), "/v1/embeddings", "custom_id"),
        (_lines(*[{}] * 21), "/v1/embeddings", "max_items"),
        (_lines({}, url="/v1/files"), "/v1/files", "runs no model"),
        (b"\n\n", "/v1/embeddings", "no lines"),
        (b"\xef\xbb\xbf" + _lines({}) + b"\nno", "/v1/embeddings", "line 2"),
    ],
)
def test_files_that_are_no_batch_are_refused(api: openai.OpenAI, content: bytes, endpoint: str, message: str) -> None:
    """The client is told which line is wrong."""
    file = api.files.create(file=("in", content), purpose="batch")
    with pytest.raises(openai.BadRequestError, match=message):
        api.batches.create(
            input_file_id=file.id,
            endpoint=endpoint,  # type: ignore[arg-type]
            completion_window="24h",
        )


def test_files_in_both_orders(api: openai.OpenAI) -> None:
    """By pages from either end, of as many as OpenAI's API allows."""
    made = [api.files.create(file=("in", b"{}"), purpose="batch").id for _ in range(3)]

    newest = [each.id for each in api.files.list(limit=2, order="desc")]  # the client turns the pages
    oldest = [each.id for each in api.files.list(limit=10_000, order="asc")]

    assert newest[:3] == made[::-1]
    assert oldest == newest[::-1]


@pytest.mark.parametrize(("seconds", "kept"), [(3_600, 3_600), (2_592_000, 7 * 86_400)])
def test_a_file_is_kept_for_as_long_as_it_says(api: openai.OpenAI, seconds: int, kept: int) -> None:
    """And no longer than the server keeps files, which the answer tells."""
    file = api.files.create(
        file=("in", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": seconds}
    )

    assert file.expires_at is not None
    assert file.expires_at - file.created_at == kept


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"anchor": "last_active_at", "seconds": "3600"}, "anchor]: expected created_at"),
        ({"seconds": "3600"}, "anchor]: expected created_at"),
        ({"anchor": "created_at"}, "seconds]: expected an integer from 3600 to 2592000"),
        ({"anchor": "created_at", "seconds": "3599"}, "seconds]: expected an integer from 3600 to 2592000"),
        ({"anchor": "created_at", "seconds": "1e4"}, "seconds]: expected an integer from 3600 to 2592000"),
    ],
)
def test_other_times_are_refused(client: httpx.Client, more: dict[str, str], message: str) -> None:
    """With OpenAI's bounds."""
    form = {"purpose": "batch", **{f"expires_after[{name}]": value for name, value in more.items()}}
    answer = client.post("/v1/files", data=form, files={"file": b"{}"})

    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_null_is_left_out(client: httpx.Client) -> None:
    """Of a job, of its items and of a batch's lines; the bodies of items stay as they are."""
    nothing = dict.fromkeys(("priority", "timeout_s", "callback", "metadata", "headers", "body", "body_base64", "url"))
    body = {"inputs": "the cat", "parameters": {"top_k": None}}
    item = {"body": body, **dict.fromkeys(("body_base64", "content_type", "headers", "model", "url", "custom_id"))}
    job = _submitted(client, model="words", items=[item] * 20, **nothing)
    assert _ended(client, job["id"])["state"] == "COMPLETED"

    alone = _submitted(client, model="words", body=body, items=None, priority=None)
    assert _ended(client, alone["id"])["state"] == "COMPLETED"
    assert client.post("/v1/jobs", json={"model": "words", "body": None}).status_code == 400


def test_files_have_limits(api: openai.OpenAI) -> None:
    """A file that is too large, or for something else, is refused."""
    with pytest.raises(openai.APIStatusError, match="4096"):
        api.files.create(file=("in", b"x" * 4097), purpose="batch")
    with pytest.raises(openai.BadRequestError, match="purpose"):
        api.files.create(file=("in", b"x"), purpose="vision")


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=x", "text/plain"])
def test_an_upload_that_is_no_form_is_refused(client: httpx.Client, kind: str) -> None:
    """Whatever its type says."""
    answer = client.post("/v1/files", content=b"no form", headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("multipart/form-data; charset=UTF-8", 200),
        ("multipart/form-data; charset=undefined", 415),
        ("multipart/form-data; charset=utf-7", 415),
        ("multipart/mixed; charset=undefined", 400),
    ],
)
def test_an_upload_is_of_utf_8(client: httpx.Client, kind: str, status: int) -> None:
    """Codecs of Python fail in ways of their own, and may give what is no text, as UTF-7 does here."""
    upload = (
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="+2AA-"\r\n\r\n{}\r\n--x--\r\n'
    )
    answer = client.post("/v1/files", content=upload, headers={"Content-Type": f"{kind}; boundary=x"})
    assert answer.status_code == status, answer.text


# --------------------------------------------------------------------- keys


def test_a_job_is_its_keys(tmp_path: Path) -> None:
    """Jobs and files of one key are not there for others, and no body is read without a key."""
    file = tmp_path / "keys.yaml"
    ann, bob = add(file, "ann", {"models": ["sum_diff"]}), add(file, "bob", {"highest_class": "low"})
    router = {"access": {"keys_file": str(file)}, "jobs": {"path": str(tmp_path / "jobs.sqlite")}}
    args = {**every_kind_of_model(tmp_path / "models"), "router": router}
    with LocalServer(args) as server, httpx.Client(base_url=server.url, timeout=90) as client:
        anns, bobs = {"X-API-Key": ann}, {"X-API-Key": bob}
        assert client.post("/v1/jobs", content=b"no json").status_code == 401
        asked = {"model": "sum_diff", "body": SUM}
        job = client.post("/v1/jobs", json=asked, headers=anns).json()
        ended = client.get(f"/v1/jobs/{job['id']}", params={"wait": 60}, headers=anns).json()
        assert ended["state"] == "COMPLETED"
        for path in ("", "/results", "/results/0"):
            assert client.get(f"/v1/jobs/{job['id']}{path}", headers=bobs).status_code == 404
        assert client.post(f"/v1/jobs/{job['id']}/cancel", headers=bobs).status_code == 404
        assert client.get("/v1/jobs", headers=bobs).json()["data"] == []
        other = client.post("/v1/jobs", json={"model": "words", "body": {"inputs": "the cat"}}, headers=anns)
        assert other.status_code == 404
        urgent = client.post("/v1/jobs", json={**asked, "priority": "high"}, headers=bobs).json()
        refused = client.get(f"/v1/jobs/{urgent['id']}", params={"wait": 60}, headers=bobs).json()
        assert refused["state"] == "ERROR"
        result = client.get(f"/v1/jobs/{urgent['id']}/results", headers=bobs).json()["data"][0]
        assert result["error"]["code"] == "permission_denied"


def test_without_jobs(tmp_path: Path) -> None:
    """A server that keeps none says what to set."""
    with LocalServer(every_kind_of_model(tmp_path)) as server, httpx.Client(base_url=server.url) as client:
        answer = client.post("/v1/jobs", json={})
        assert (answer.status_code, "router.jobs" in answer.json()["error"]) == (501, True)
        assert client.get("/v1/batches").status_code == 501


@pytest.mark.parametrize("asks", [False, True])
def test_jobs_ask_for_replicas_by_a_setting_only(tmp_path: Path, asks: bool) -> None:
    """Otherwise they are counted as background."""
    jobs = {"path": str(tmp_path / "jobs.sqlite"), "ask_for_replicas": asks}
    args = {**every_kind_of_model(tmp_path / "models"), "router": {"jobs": jobs}}
    with LocalServer(args) as server, httpx.Client(base_url=server.url, timeout=90) as client:
        server.router.read_demand("sum_diff")
        _ended(client, _submitted(client, model="sum_diff", body=SUM)["id"])
        demands: list[ModelDemand] = []
        while not any(demand.of_class or demand.background for demand in demands):
            demands.append(server.router.read_demand("sum_diff"))
        assert any(demand.of_class for demand in demands) is asks


# -------------------------------------------------------------------- store


def test_what_is_told_of_jobs(client: httpx.Client) -> None:
    """Metrics and status count what has ended."""
    _ended(client, _submitted(client, model="sum_diff", body=SUM)["id"])
    page = client.get("/metrics").text
    assert 'serve_app_job_items_total{state="COMPLETED"}' in page
    assert "serve_app_job_store_exchanges_total" in page
    assert client.get("/status").json()["jobs"]["open"]


@pytest.mark.parametrize("kind", ["job", "batch"])
def test_what_waits_for_the_store_is_counted(tmp_path: Path, kind: str) -> None:
    """Large bodies and files are refused while others wait to be kept, as while others are read."""
    file = tmp_path / "jobs.sqlite"
    args = {**every_kind_of_model(tmp_path / "models"), "router": {"jobs": {"path": str(file)}}}
    limits = HttpSettings(max_body=2**20, max_held_bytes=2**20)
    path, large = "/v1/jobs", {"model": "words", "body": {"inputs": "x" * 700_000}}
    with LocalServer(args, settings=limits) as server, httpx.Client(base_url=server.url, timeout=90) as client:
        _ended(client, _submitted(client, model="sum_diff", body=SUM)["id"])
        if kind == "batch":
            lines = _lines({"model": "words", "input": "x" * 700_000})
            uploaded = client.post("/v1/files", data={"purpose": "batch"}, files={"file": lines}).json()["id"]
            path, large = "/v1/batches", {"input_file_id": uploaded, "endpoint": "/v1/embeddings"}
            large["completion_window"] = "24h"
        with closing(sqlite3.connect(file, isolation_level=None)) as database, ThreadPoolExecutor(2) as threads:
            database.execute("BEGIN IMMEDIATE")
            both = [threads.submit(client.post, path, json=large) for _ in range(2)]
            refused = next(as_completed(both)).result()
            database.execute("ROLLBACK")
            kept = next(each for each in both if each.result() is not refused).result()
        assert (refused.status_code, "too many large bodies" in refused.text) == (429, True)
        assert kept.is_success
        while (again := client.post(path, json=large)).status_code == 429:  # while what was kept is run
            pass
        assert again.is_success


def test_a_store_that_is_gone_takes_nothing(tmp_path: Path) -> None:
    """It says so, and goes on when the store is back; what it had taken is there."""
    file = tmp_path / "store" / "jobs.sqlite"
    args = {**every_kind_of_model(tmp_path / "models"), "router": {"jobs": {"path": str(file), "lease_s": 1}}}
    with LocalServer(args) as server, httpx.Client(base_url=server.url, timeout=90) as client:
        job = _submitted(client, model="sum_diff", body=SUM)
        assert _ended(client, job["id"])["state"] == "COMPLETED"
        away = tmp_path / "away"
        file.parent.rename(away)
        file.parent.write_text("no folder")
        gone = client.post("/v1/jobs", json={"model": "sum_diff", "body": SUM})
        assert (gone.status_code, gone.json()["code"]) == (503, "store_unavailable")
        assert str(tmp_path) not in gone.text
        assert "retry-after" in gone.headers
        file.parent.unlink()
        away.rename(file.parent)
        assert client.get(f"/v1/jobs/{job['id']}").json()["state"] == "COMPLETED"
        assert _ended(client, _submitted(client, model="sum_diff", body=SUM)["id"])["state"] == "COMPLETED"
