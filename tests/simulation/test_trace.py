"""Reading traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_app.errors import ConfigError
from serve_app_simulator.trace import read_trace

HEADER = "arrival,model,class,rows,deadline\n"


def _file(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_trace_is_read_in_any_order_of_columns(tmp_path: Path) -> None:
    """Further columns, empty lines and a byte-order mark do no harm."""
    path = _file(
        tmp_path,
        "\ufeffmodel,note, class ,arrival,deadline,rows,bucket\n"
        "b,x,high,0,0.1,1,64\n\na,y,low,0,3,32,0\na,,normal,1.5,1e-3,2,8\n",
    )
    trace = read_trace(path, ["a", "b"])
    assert [0.0, 0.0, 1.5] == trace.arrival.tolist()
    assert [0.1, 3.0, 0.001] == trace.timeout_s.tolist()
    assert [1, 0, 0] == trace.model.tolist()
    assert [1, 3, 2] == trace.priority.tolist()
    assert [1, 32, 2] == trace.rows.tolist()
    assert [64, 0, 8] == trace.bucket.tolist()


def test_the_bucket_may_be_left_out(tmp_path: Path) -> None:
    """It is 0 then."""
    assert [0] == read_trace(_file(tmp_path, HEADER + "0,a,low,1,1\n"), ["a"]).bucket.tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (HEADER, "holds no request"),
        ("arrival,model,class,deadline\n", "line 1, column rows: this column is missing; there are: arrival, model"),
        (HEADER + "0,a,low,1,1\n1,b,low,1,1\n", "line 3, column model: unknown model 'b'; there are: a"),
        (HEADER + "0,a,urgent,1,1\n", "line 2, column class: unknown class 'urgent'; there are: high, normal, low"),
        (HEADER + "2,a,low,1,1\n1,a,low,1,1\n", "line 3, column arrival: time runs backwards: 1 after 2"),
        (HEADER + "soon,a,low,1,1\n", "line 2, column arrival: 'soon' is not a number"),
        (HEADER + "nan,a,low,1,1\n", "line 2, column arrival: must be a number of seconds from 0 up"),
        (HEADER + "-1,a,low,1,1\n", "line 2, column arrival: must be a number of seconds from 0 up"),
        (HEADER + "0,a,low,0,1\n", "line 2, column rows: must be at least 1, got 0"),
        (HEADER + "0,a,low,1.5,1\n", "line 2, column rows: '1.5' is not a whole number"),
        (HEADER + "0,a,low,1,0\n", "line 2, column deadline: must be above 0"),
        (HEADER + "0,a,low,1,inf\n", "line 2, column deadline: must be a number of seconds"),
        (HEADER + "0,a,low,1\n", "line 2, column deadline: the line ends before it: 4 of 5 values"),
        (HEADER[:-1] + ",bucket\n0,a,low,1,1,-2\n", "line 2, column bucket: must be at least 0, got -2"),
    ],
)
def test_a_wrong_trace_is_refused_naming_file_line_and_column(tmp_path: Path, text: str, said: str) -> None:
    """The first fault is named."""
    path = _file(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_trace(path, ["a"])
    (problem,) = caught.value.problems
    assert str(path) in problem
    assert said in problem


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As is one that is not text."""
    with pytest.raises(ConfigError, match=r"nowhere\.csv: cannot be read: No such file"):
        read_trace(tmp_path / "nowhere.csv", ["a"])
    binary = tmp_path / "trace.bin"
    binary.write_bytes(b"\xff\xfe\x00arrival")
    with pytest.raises(ConfigError, match=r"trace\.bin: is not a CSV file in UTF-8"):
        read_trace(binary, ["a"])
