"""What no log should contain, and does."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest

from tocsin_exporter.parser import LogParser
from tocsin_exporter.parser.clean import MAX_LINE
from tocsin_exporter.parser.cli import run
from tocsin_exporter.parser.values import integer, number, pairs

GOOD = b"iter 100: loss 3.5, time 250.00ms, mfu 17.20%"


def test_binary_lines_do_no_harm() -> None:
    """
    Random bytes around and inside real lines never raise and never hide the next good line.
    """
    chance = random.Random(7)
    parser = LogParser()
    for _ in range(2000):
        junk = bytes(chance.randrange(256) for _ in range(chance.randrange(200))).replace(b"\n", b"")
        place = chance.randrange(len(GOOD))
        list(parser.feed(junk))
        list(parser.feed(GOOD[:place] + junk + GOOD[place:]))

    assert [3.5] == [event.loss for event in parser.feed(GOOD)]


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(b"\xff\xfe\x80" * 1000, id="bytes that are no UTF-8"),
        pytest.param(b"completed step: 1, " * 60000, id="the beginning of a record over and over"),
        pytest.param(b"9" * MAX_LINE, id="one long number"),
        pytest.param(b"{'loss': " * 60000, id="a dictionary that never ends"),
        pytest.param(b"gloo/transport/" * 60000, id="the beginning of a failure over and over"),
        pytest.param(b"\r" * MAX_LINE, id="frames without text"),
        pytest.param(b"[rank1]: " * 60000, id="prefixes over and over"),
        pytest.param(b"\x00" * 5000, id="zeros"),
        pytest.param(b"[batch=1/2]:" * 50000, id="heads over and over"),
    ],
)
def test_hostile_lines_give_nothing(hostile: bytes) -> None:
    """
    A line that is made to hurt gives no event, and the line after it is read.
    """
    parser = LogParser()

    assert [] == list(parser.feed(hostile))
    assert [3.5] == [event.loss for event in parser.feed(GOOD)]


def test_a_file_is_read_to_its_end_whatever_it_holds(tmp_path: Path) -> None:
    """
    Lines longer than 1 MiB are cut and counted; line numbers go on; a last line needs no end.
    """
    path = tmp_path / "log"
    path.write_bytes(b"\x80\xff\n" + b"x" * (3 * MAX_LINE) + b"\n" + GOOD)
    out, err = io.StringIO(), io.StringIO()

    assert 0 == run(str(path), out, err)
    assert [3] == [json.loads(line)["line"] for line in out.getvalue().splitlines()]
    assert "1 lines were longer" in err.getvalue()


def test_a_file_that_is_not_there_is_an_answer() -> None:
    """
    An unreadable file gives status 2 and says which file and why.
    """
    err = io.StringIO()

    assert 2 == run("/nowhere/log", io.StringIO(), err)
    assert "/nowhere/log: No such file" in err.getvalue()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234", 1234.0),
        ("12,34", None),
        ("'5e-05'", 5e-05),
        ("np.float64(0.01)", 0.01),
        ("tensor(2.5, device='cuda:0')", 2.5),
        ("50%", 50.0),
        ("-inf", float("-inf")),
        ("1.2.3", None),
        ("0x10", None),
        ("", None),
        ("9" * 100, None),
        (None, None),
    ],
)
def test_numbers(text: str | None, value: float | None) -> None:
    """
    Numbers are read as frameworks print them, and nothing else is taken for one.
    """
    assert value == number(text)


def test_counts_are_whole_and_bounded() -> None:
    """
    A count is no fraction, not negative, not NaN and fits a double exactly.
    """
    assert [7, None, None, None, None] == [integer(text) for text in ("7", "7.5", "-1", "nan", "1e300")]


def test_dictionaries_may_nest_numbers_in_calls() -> None:
    """
    Values may be bare, quoted or wrapped in a call.
    """
    assert {"a": "1", "b": "2", "c": "np.float64(3)"} == pairs("{'a': 1, \"b\": '2', 'c': np.float64(3)}")
