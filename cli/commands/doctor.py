"""`assay doctor`: what this machine and this workspace give assay to work with.

Every finding is ok, warn or fail, and says what to do about it. Changes nothing in the
workspace; one file in the system's temporary folder is made and removed.
"""

from __future__ import annotations

import json
import locale
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from assay.cli.call import Call
from assay.cli.errors import ExitCode, UsageError
from assay.cli.location import STORE_FOLDER, current_folder, find_root
from assay.cli.render.text import one_line, paint, size
from assay.cli.version import version_text
from assay.engine import landlock
from assay.engine.store import Store
from assay.engine.store_errors import StoreError

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "error"}
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p")
_FEW_DESCRIPTORS = 1024
_LITTLE_SPACE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    verdict: Literal["ok", "warn", "fail"]
    what: str
    advice: str = ""


def perform(call: Call) -> int:
    root, workspace = find_workspace()
    checks: list[Callable[[], Finding]] = [
        check_python,
        check_platform,
        check_shell,
        check_locale,
        check_descriptors,
        check_temporary,
        check_clock,
    ]
    findings = [check() for check in checks]
    findings.append(workspace)
    if root is not None:
        findings += [check_file_system(root), check_space(root), check_store(root)]
    findings.append(check_boundaries(root))
    if call.values.flag("json"):
        described = [
            {"name": f.name, "verdict": f.verdict, "what": f.what, "advice": f.advice}
            for f in findings
        ]
        call.out.write(json.dumps(described, indent=2) + "\n")
    else:
        call.out.write("".join(render(findings, colour=call.out.colour)))
    failed = any(finding.verdict == "fail" for finding in findings)
    return ExitCode.HOST if failed else ExitCode.DONE


def render(findings: list[Finding], *, colour: bool) -> Iterator[str]:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        verdict = paint(f"{finding.verdict:<4}", _COLOURS[finding.verdict], colour)
        yield f"{verdict}  {finding.name:<{width}}  {one_line(finding.what)}\n"
        if finding.advice:
            yield f"{'':<{width + 8}}{one_line(finding.advice)}\n"


def find_workspace() -> tuple[str | None, Finding]:
    try:
        root = find_root(current_folder())
    except UsageError as error:
        return None, Finding("workspace", "warn", error.message, error.hint or "")
    return root, Finding("workspace", "ok", root)


def check_python() -> Finding:
    what = f"{version_text()} on Python {platform.python_version()} ({sys.executable})"
    return Finding("python", "ok", what)


def check_platform() -> Finding:
    facts = os.uname()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    what = f"{facts.sysname} {facts.release} on {facts.machine}, {cpus} CPUs usable"
    if facts.sysname != "Linux":
        return Finding("platform", "fail", what, "assay runs on Linux")
    return Finding("platform", "ok", what)


def check_shell() -> Finding:
    if os.access("/bin/sh", os.X_OK):
        return Finding("shell", "ok", f"/bin/sh ({os.path.realpath('/bin/sh')})")
    return Finding(
        "shell",
        "fail",
        "/bin/sh is not there or cannot be executed",
        'set `shell = ["PATH", "-ec"]` in the plan, or write `run` as a list',
    )


def check_boundaries(root: str | None) -> Finding:
    """Whether nodes can be held to what they declare, here and by this kernel."""
    why = landlock.find_fault(root or tempfile.gettempdir())
    if why is not None:
        return Finding(
            "boundaries", "warn", why, 'only `boundary = "declared"` is to be had (--boundary)'
        )
    support = landlock.find_support()
    held = ["files"]
    if support.holds_network:
        held.append("network")
    elif support.holds_tcp:
        held.append("TCP")
    if support.holds_processes:
        held.append("signals")
    what = f"enforced and isolated: {', '.join(held)} (Landlock {support.abi})"
    return Finding("boundaries", "ok", what)


def check_locale() -> Finding:
    encoding = locale.getpreferredencoding(do_setlocale=False)
    if encoding.lower().replace("-", "") == "utf8":
        return Finding("locale", "ok", encoding)
    return Finding(
        "locale",
        "warn",
        f"{encoding}: letters it lacks are shown as escapes",
        "set `LC_ALL=C.UTF-8`",
    )


def check_descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    what = f"{soft} open files allowed"
    if soft < _FEW_DESCRIPTORS and soft != resource.RLIM_INFINITY:
        limit = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        return Finding(
            "descriptors", "warn", what, f"`ulimit -n {limit}` allows more nodes at once"
        )
    return Finding("descriptors", "ok", what)


def check_temporary() -> Finding:
    folder = tempfile.gettempdir()
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding("temporary", "fail", f"{folder} cannot be written", "set TMPDIR")
    return Finding("temporary", "ok", folder)


def check_clock() -> Finding:
    """How fine the stamps of files are: finer ones let assay trust them sooner."""
    try:
        with tempfile.TemporaryFile() as file:
            stamps = []
            for _ in range(20):
                file.write(b"x")
                file.flush()
                stamps.append(os.fstat(file.fileno()).st_mtime_ns)
    except OSError as error:
        return Finding("clock", "warn", f"no file could be stamped: {error.strerror}")
    if all(stamp % 1_000_000_000 == 0 for stamp in stamps):
        return Finding(
            "clock",
            "warn",
            "file stamps have whole seconds",
            "files changed within the last two seconds are read again",
        )
    steps = [later - earlier for earlier, later in pairwise(stamps)]
    finest = min((step for step in steps if step > 0), default=0)
    what = f"file stamps tell {finest / 1e6:.3f} ms apart" if finest else "file stamps are fine"
    return Finding("clock", "ok", what)


def check_file_system(root: str) -> Finding:
    kind = find_file_system(root)
    if kind in _NETWORK_FILE_SYSTEMS:
        return Finding(
            "file system",
            "warn",
            f"{kind}: locks and file stamps may not hold between machines",
            "run one machine at a time on this workspace, or move it to a local disk",
        )
    if not os.access(root, os.W_OK):
        return Finding(
            "file system",
            "warn",
            f"{kind}: the workspace cannot be written",
            "sealed nodes run unrecorded, all others are refused",
        )
    return Finding("file system", "ok", kind)


def find_file_system(path: str) -> str:
    """The type of the file system that holds `path`, from the mount table."""
    path = os.path.realpath(path)
    found, best = "unknown", -1
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            for line in table:
                fields, _, rest = line.partition(" - ")
                place = fields.split(" ")[4].replace("\\040", " ")
                below = path == place or path.startswith(place.rstrip("/") + "/")
                if below and len(place) >= best:
                    found, best = rest.split(" ")[0], len(place)
    except OSError:
        pass
    return found


def check_space(root: str) -> Finding:
    free = shutil.disk_usage(root).free
    what = f"{size(free)} free"
    if free < _LITTLE_SPACE_BYTES:
        return Finding("space", "warn", what, "`assay cache gc --max-size SIZE` makes room")
    return Finding("space", "ok", what)


def check_store(root: str) -> Finding:
    folder = os.path.join(root, STORE_FOLDER)
    try:
        store = Store.open_for_reading(root)
        if store is None:
            return Finding("store", "ok", f"no {STORE_FOLDER}/ yet; the first run makes it")
        try:
            wrong = store.database.find_faults()
            unrecorded = 0 if wrong else store.find_unrecorded()
        finally:
            store.close()
    except StoreError as error:
        return Finding("store", "fail", str(error), error.hint or "")
    if wrong:
        return Finding("store", "fail", f"{folder}: {wrong}", "`assay cache verify` sets it aside")
    if unrecorded:
        what = f"{folder} does not know of {unrecorded} effects that began here"
        return Finding("store", "warn", what, "`assay run` asks before it repeats them")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding("store", "warn", f"{folder} cannot be written", f"`chown -R $USER {folder}`")
    return Finding("store", "ok", f"{folder} is whole")
