"""Classes of Xids: what sources disagree about, and what registers decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin_exporter.kmsg import xid_classes
from tocsin_exporter.kmsg.parse import Parser

LINK = "NVLink: fatal error detected on link 4({})"


@pytest.mark.parametrize(
    ("code", "expected", "why"),
    [
        (109, "reset", "a context switch that timed out needs a reset, whatever application was running"),
        (63, "info", "a row that was remapped is handled; replacing the node for it is waste"),
        (142, "check", "an encoder's error tells nothing about the device's health"),
        (157, "rma", "a retirement that failed leaves the bad page in use, whatever the bucket says"),
        (45, "sympathetic", "channels go because of something else"),
        (48, "reset", "an uncorrected memory error that nothing contained"),
        (94, "contained", "only the application that was hit ends"),
        (54, "check", "a power cable is no matter of a reset"),
        (151, "reboot", "a key that cannot be renewed ends with the virtual machine"),
        (167, "reboot", "the bus does not answer in time; a reset goes over the same bus"),
        (168, "rma", "memory that is gone for good"),
        (171, "reset", "the memory's half of 48"),
        (172, "reset", "the cache's half of 48"),
        (154, "info", "tells what the driver wants, and is no fault by itself"),
    ],
)
def test_conflicts_are_settled(code: int, expected: str, why: str) -> None:
    """Where public sources disagree or say nothing, one class holds, and the table says that it is ours."""
    row = xid_classes.table()[code]

    assert (expected, "tocsin") == (row.kind, row.source), why


def test_145_is_decoded_and_never_taken_as_a_whole() -> None:
    """One source calls 145 fatal, another not: it is both, by unit and error status."""
    words = {
        "reset": "RLW_REMAP Fatal XC0 i0 Link 00 (0x00000004 0x00000040 0x0 0x0)",
        "info": "RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 0x80000000 0x0 0x0)",
        "check": "RLW_SRC_TRACK Nonfatal XC0 i0 Link 00 (0x00000007 0x00000004 0x0 0x0)",
    }

    assert words.keys() == {xid_classes.classify(145, words[kind]) for kind in words}
    assert all(xid_classes.classify(145, text) == kind for kind, text in words.items())


def test_every_rule_for_nvlink_is_found_in_a_message() -> None:
    """Each row of the table decides over the message that the driver prints for it, and nothing else does."""
    rules = xid_classes.nvlink5()
    for (code, unit, reason, status), kind in rules.items():
        head = f"NVRM: Xid (PCI:0018:01:00): {code}, {unit} Nonfatal XC0 i0 Link 00 "
        (event,) = Parser().feed(f"{head}(0x{reason << 20 | 0x4:08x} 0x{status:08x} 0x00000000)")
        assert kind == event.fields["class"]
        (other,) = Parser().feed(f"{head}(0x{reason << 20 | 0x4:08x} 0x40000000)")
        assert "check" == other.fields["class"]
    assert set(range(144, 151)) == {code for code, *_ in rules}


@pytest.mark.parametrize(
    ("registers", "expected"),
    [
        ("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "reset"),
        ("0x0, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0", "reset"),
        ("0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "check"),
        ("0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "check"),
        ("0x0, 0x0, 0x1, 0x0, 0x0, 0x0, 0x0", "check"),
        ("0x2, 0x0, 0x0, 0x10000, 0x0, 0x0, 0x0", "sympathetic"),
        ("0x1, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0", "info"),
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", "check"),
    ],
)
def test_hopper_links_are_decoded_over_all_registers(registers: str, expected: str) -> None:
    """Hardware bits ask for a reset, the other end's for patience, single ECC errors for a look."""
    assert expected == xid_classes.classify(74, LINK.format(registers))


def test_all_codes_of_the_catalogue_are_there() -> None:
    """The table goes from 1 to 172 without a hole, with nine classes in all."""
    assert list(range(1, 173)) == sorted(xid_classes.table())
    assert 9 == len(xid_classes.CLASSES)


@pytest.mark.parametrize("name", ["xid.tsv", "nvlink5.tsv"])
@pytest.mark.parametrize("damage", ["blank", "missing", "twice", "class"])
def test_a_damaged_data_file_is_refused(
    name: str, damage: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cell slips into another column, and no code has two classes."""
    text = (root / "exporter/tocsin_exporter/kmsg" / name).read_text()
    lines = text.splitlines()
    cells = lines[-1].split("\t")
    kind = 1 if name == "xid.tsv" else 4
    worse = {
        "blank": [*cells[:kind], "", *cells[kind + 1 :]],
        "missing": [*cells[:kind], *cells[kind + 1 :]],
        "twice": cells,
        "class": [*cells[:kind], "fatal", *cells[kind + 1 :]],
    }[damage]
    lines = [*lines, "\t".join(worse)] if damage == "twice" else [*lines[:-1], "\t".join(worse)]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("tocsin_exporter.kmsg.xid_classes.resources.files", lambda _: tmp_path)
    read = xid_classes.table if name == "xid.tsv" else xid_classes.nvlink5

    with pytest.raises(ValueError, match=name):
        read.__wrapped__()
