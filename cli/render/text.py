"""Small pieces of text: names on one line, counts, durations, sizes, ages, shell words.

Pure. Does not know where a piece is shown.
"""

from __future__ import annotations

import shlex

_COLOURS = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
    "error": "1;31",
    "warning": "1;33",
}


def paint(text: str, colour: str, on: bool) -> str:
    """`text` in a colour when colours are on. Names of colours are those above."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if on and text else text


def one_line(text: str) -> str:
    """`text` with line ends, control characters, escape sequences and characters that
    change the direction of writing shown as escapes; bytes that are no UTF-8 as `\\xNN`."""
    return text if text.isprintable() else "".join(map(_show_character, text))


def _show_character(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def shell_word(word: str) -> str:
    """`word` quoted for a shell, on one line: control characters need bash's `$'…'`."""
    if word.isprintable():
        return shlex.quote(word)
    shown = (
        f"\\{character}" if character in "\\'" else _show_for_shell(character) for character in word
    )
    return f"$'{''.join(shown)}'"


def _show_for_shell(character: str) -> str:
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def count(number: int, noun: str) -> str:
    """`1 node`, `10,000 nodes`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """`0.05s`, `12.3s`, `3m 20s`, `2h 05m`."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.2f}s"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def age(seconds: float) -> str:
    """`just now`, `5 minutes ago`, `3 days ago`."""
    for limit, unit, noun in ((3600, 60, "minute"), (86400, 3600, "hour")):
        if seconds < 60:
            return "just now"
        if seconds < limit:
            return count(int(seconds // unit), noun) + " ago"
    return count(int(seconds // 86400), "day") + " ago"


def size(size_bytes: int) -> str:
    """`812 B`, `1.4 KiB`, `3.0 GiB`."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    amount = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def moment(seconds: float) -> str:
    """A time since the epoch as local date and time; as it is where no calendar has it."""
    from assay.engine.clock import local_time

    return local_time(seconds)


def signal_name(number: int) -> str:
    """`SIGKILL`; real-time signals by their number."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
