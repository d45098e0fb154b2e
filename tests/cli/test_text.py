"""Names on one line, shell words, counts, durations, sizes, ages."""

from __future__ import annotations

import subprocess

import pytest

from assay.cli.render.text import age, count, duration, one_line, shell_word, signal_name, size


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain name", "plain name"),
        ("é", "é"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("ab\u202ecd", "ab\\u202ecd"),
        ("\udcff\udc80", "\\xff\\x80"),
        ("\ud800", "\\ud800"),
    ],
)
def test_names_stay_on_one_line(name: str, shown: str) -> None:
    """C121 Line ends, escape sequences and bytes that are no text are shown as escapes."""
    assert one_line(name) == shown


@pytest.mark.parametrize(
    "word",
    ["plain", "test[py=3.11]", "a b", "it's", 'q"q', "$HOME", "a\nb", "\x1b[0m'\\", "-rf", "é", ""],
)
def test_shell_words_come_back_as_they_were(word: str) -> None:
    """C121 A pasted command line hands the shell exactly the name it was made from."""
    quoted = shell_word(word)

    assert quoted.isprintable()
    done = subprocess.run(
        ["/bin/bash", "-c", f"printf '%s' {quoted}"], capture_output=True, check=True
    )
    assert done.stdout == word.encode()


def test_bytes_that_are_no_text_survive_the_shell() -> None:
    """C121 A file name that is not UTF-8 can be pasted too."""
    done = subprocess.run(
        ["/bin/bash", "-c", f"printf '%s' {shell_word(chr(0xDCFF) + 'a')}"],
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"\xffa"


def test_quantities_read_as_people_write_them() -> None:
    """Counts, durations, sizes and ages, at the edges of their units."""
    assert [count(n, "node") for n in (0, 1, 10_000)] == ["0 nodes", "1 node", "10,000 nodes"]
    assert [duration(s) for s in (0, 1.234, 12.34, 200, 7500)] == [
        "0.00s",
        "1.23s",
        "12.3s",
        "3m 20s",
        "2h 05m",
    ]
    assert [size(n) for n in (0, 1023, 1536, 3 << 30, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
        "5.0 TiB",
    ]
    assert [age(s) for s in (-5, 59, 60, 7200, 90_000, 10 * 86400)] == [
        "just now",
        "just now",
        "1 minute ago",
        "2 hours ago",
        "1 day ago",
        "10 days ago",
    ]
    assert signal_name(9) == "SIGKILL"
    assert signal_name(40) == "signal 40"
