"""A workspace whose nodes do as they are told from outside of it, and whose world keeps a ledger.

What nodes do is written below `control`, a folder that assay knows nothing of: the ledger has a
line for each thing that was done, and a command can be held where it is about to act or has just
acted, so that a test says where assay is killed, and not when.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from effect_model import SHARED, Faults, Node, Tier
from running import HEEDING
from workspace import ASSAY, Finished, Workspace

PATIENCE_SECONDS = 60.0

COMMON = """\
note() { printf '%s\\n' "$*" >> "$CONTROL/ledger"; }
point() {
    if test -e "$CONTROL/hold $WHERE $1"; then
        rm "$CONTROL/hold $WHERE $1"
        echo $$ > "$CONTROL/held"
        read -r go < "$CONTROL/go"
    fi
}
"""


@dataclass(frozen=True)
class Did:
    """One line of the ledger. `what`: `begin`, `do` or `undo`."""

    what: str
    node: int
    run: str
    attempt: str


class Stage:
    """`root` is an empty folder."""

    def __init__(self, root: Path) -> None:
        self.control = root / "control"
        self.control.mkdir()
        (root / "w").mkdir()
        self.workspace = Workspace(root / "w")
        (self.control / "common.sh").write_text(f"CONTROL='{self.control}'\n{COMMON}")
        (self.control / "ledger").write_text("")
        self._pipes = []
        for name in ("held", "go"):
            os.mkfifo(self.control / name)
            # For both directions: it never blocks, and never ends.
            self._pipes.append(os.open(self.control / name, os.O_RDWR))

    def close(self) -> None:
        for pipe in self._pipes:
            os.close(pipe)

    def plan(self, nodes: Sequence[Node], words: Mapping[int, str]) -> None:
        """Writes the plan and what its nodes do."""
        lines = ['name = "staged"']
        for node in nodes:
            lines += self._declare(node, words[node.number])
        self.workspace.write("plan.toml", "\n".join(lines) + "\n")

    def _declare(self, node: Node, word: str) -> list[str]:
        name, control = node.name, self.control
        reads = [f"'{each}'" for each in node.reads]
        consumed = f"cat {' '.join(reads) or '/dev/null'} | tr -d '\\n'"
        script = [
            f". '{control}/common.sh'; WHERE={name}",
            f'note begin {node.number} "$ASSAY_RUN" "$ASSAY_ATTEMPT"',
            "point before",
            f'if test -e "$CONTROL/refusing {name}"; then exit 75; fi',
            f'sum=$(printf %s "${{W}}$({consumed})${{V-}}" | sha256sum)',
            f'text="{name}.${{sum%"${{sum#????????????}}"}}"',
            f'note "do" {node.number} "$ASSAY_RUN" "$ASSAY_ATTEMPT"',
        ]
        if node.writes:
            script.append(f"printf '%s' \"$text\" > {name}")
        if node.rewrites:
            script.append(f"printf '%s\\n' \"$text\" >> {SHARED}")
        if node.gives:
            script.append('printf \'%s\' "$text" > "$ASSAY_RESULT"')
        script += ["point after", f'if test -e "$CONTROL/failing {name}"; then exit 1; fi']
        (control / f"{name}.sh").write_text("\n".join(script) + "\n")
        undo = [
            f". '{control}/common.sh'; WHERE='undo {name}'",
            "point before",
            f'if test -e "$CONTROL/stuck {name}"; then exit 1; fi',
            f'note undo {node.number} "$ASSAY_RUN" "${{ASSAY_ATTEMPT%.undo}}"',
            "point after",
        ]
        (control / f"{name}.undo.sh").write_text("\n".join(undo) + "\n")

        writes = [name] if node.writes else []
        writes += [SHARED] if node.rewrites else []
        lines = [
            f"[nodes.{name}]",
            f"run = {json.dumps(['/bin/sh', '-eu', str(control / f'{name}.sh')])}",
            f"tier = {json.dumps(node.tier.value)}",
            f"reads = {json.dumps(node.reads)}",
            f"writes = {json.dumps(writes)}",
            f"after = {json.dumps([f'n{each}' for each in node.after])}",
        ]
        taken = "" if node.takes is None else f', V = {{ from = "n{node.takes}" }}'
        lines.append(f"env = {{ W = {json.dumps(word)}{taken} }}")
        if node.gives:
            lines.append('result = "text"')
        if node.is_keyed:
            lines.append(f'idempotency_key = "key of {name}"')
        if node.can_refuse:
            lines.append("retry = { attempts = 1, exit_codes = [75] }")
        if node.tier is Tier.SEALED:
            lines.append("cache = true")
        if node.has_undo:
            lines.append(
                f"undo = {json.dumps(['/bin/sh', '-eu', str(control / f'{name}.undo.sh')])}"
            )
        return lines

    def behave(self, faults: Faults) -> None:
        """From now on nodes fail as these say."""
        for word in ("refusing", "failing", "stuck"):
            for path in self.control.glob(f"{word} *"):
                path.unlink()
            for number in getattr(faults, word):
                (self.control / f"{word} n{number}").write_text("")

    def ledger(self) -> list[Did]:
        lines = (self.control / "ledger").read_text().splitlines()
        return [Did(what, int(node), *rest) for what, node, *rest in map(str.split, lines)]

    def assay(self, *words: str) -> Finished:
        return self.workspace.assay(*words)

    def disturb(self, where: str, how: str, *words: str) -> tuple[Finished, bool]:
        """Runs `assay WORDS` and disturbs it once a command has come to `where` (`n0 before`,
        `undo n1 after`); whether one has. `how`: it is killed `alone`, `together` with the
        command, `asleep` (while it sleeps the command ends), or asked to end by `INT`, `TERM` or
        `cancel`."""
        hold = self.control / f"hold {where}"
        hold.write_text("")
        with subprocess.Popen(
            [*HEEDING, str(ASSAY), *words],
            cwd=self.workspace.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as started:
            pid = self._await(started)
            if pid is not None:
                self._act(how, started, pid)
            out, err = started.communicate(timeout=PATIENCE_SECONDS)
        hold.unlink(missing_ok=True)
        return Finished(started.returncode, out, err), pid is not None

    def _await(self, started: subprocess.Popen[str]) -> int | None:
        """The pid of the command that is held, None when assay has ended before."""
        handle = os.pidfd_open(started.pid)
        try:
            ready = select.select([self._pipes[0], handle], [], [], PATIENCE_SECONDS)[0]
            assert ready, "nothing happens"
            # What was held when assay ended is in the pipe as well.
            held = self._pipes[0] in ready or select.select([self._pipes[0]], [], [], 0)[0]
            return int(os.read(self._pipes[0], 100)) if held else None
        finally:
            os.close(handle)

    def _act(self, how: str, started: subprocess.Popen[str], pid: int) -> None:
        handle = os.pidfd_open(pid)
        try:
            match how:
                case "INT" | "TERM":
                    started.send_signal(signal.Signals[f"SIG{how}"])
                    return
                case "cancel":
                    assert self.assay("cancel", "last").code == 0
                    return
                case "alone":
                    started.kill()
                    started.wait()
                    os.write(self._pipes[1], b"go\n")
                case "asleep":
                    started.send_signal(signal.SIGSTOP)
                    os.write(self._pipes[1], b"go\n")
                case _:
                    started.kill()
                    started.wait()
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
            assert select.select([handle], [], [], PATIENCE_SECONDS)[0], "it does not end"
            started.kill()
        finally:
            os.close(handle)
