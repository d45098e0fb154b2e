"""A node whose boundary is held does not get out of it, whatever its command tries.

Hostile programs try everything that reaches further, and say what they managed to do. The same
program without a boundary manages all of it: each attack is one.
"""

from __future__ import annotations

import os
import shlex
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from counted import Counted
from held import BOUNDARIES, IN_PLACE, PLACES, UNHELD, Hostile, Place
from probe import Probes
from running import Begin
from workspace import Finished

from assay.engine.landlock import find_support

EVERYWHERE = pytest.mark.parametrize("place", [UNHELD, *PLACES], ids=str)
HELD = pytest.mark.parametrize("place", PLACES, ids=str)
HOW = pytest.mark.parametrize("boundary", BOUNDARIES)
OTHER = {"run": "mkdir -p other; echo theirs > other/o", "writes": ["other/o"]}
LARGE = "large\n" * 100_000
"""So long that a private tree has it as a second name of the file in the workspace."""


def lay_out(held: Counted) -> dict[str, str]:
    """Something to steal and to spoil, and what all of it holds."""
    held.write("src/declared", "declared\n")
    held.write("src/undeclared", "undeclared\n")
    held.write(".git/config", "git\n")
    held.plan({"other": OTHER})
    assert held.ran() == ["other"]
    return spoils(held)


def spoils(held: Counted) -> dict[str, str]:
    """What stands outside of the hostile node's own output and the plan."""
    own = ("plan.toml", "out", "out/report", "report")
    return {path: text for path, text in held.tree().items() if path not in own}


def judge(place: Place, said: list[str], attempts: int) -> None:
    """Nothing was managed in a boundary, and everything without."""
    if place == UNHELD:
        assert len(said) == attempts, said
    else:
        assert said == []


def detail(done: Finished, node: str = "evil") -> str:
    """Why the node failed."""
    return next(
        str(event["detail"])
        for event in done.events
        if event["event"] == "node-settled" and event["node"] == node
    )


@contextmanager
def listening(family: socket.AddressFamily, address: object = None) -> Iterator[tuple[str, Any]]:
    """A server outside of every boundary: where it listens, as an expression, and its socket."""
    with (
        tempfile.TemporaryDirectory(prefix="held-", dir="/tmp") as folder,
        socket.socket(family) as server,
    ):
        server.bind(f"{folder}/s" if address is None else address)
        server.listen(16)
        yield server.getsockname(), server


@EVERYWHERE
def test_undeclared_files_are_not_read(held: Counted, hostile: Hostile, place: Place) -> None:
    """C128: by no name: absolute, by `..`, through /proc, through links of its own, relative to
    a descriptor, by a second name."""
    before = lay_out(held)
    said = hostile(
        place,
        """
SECRET = ROOT + "/src/undeclared"
here = os.getcwd()
tmp = os.environ["TMPDIR"]
os.symlink(SECRET, tmp + "/link")
os.symlink(ROOT, tmp + "/folder")
root = os.open(ROOT, os.O_PATH)
file = os.open(SECRET, os.O_PATH)
paths = {
    "absolute": SECRET,
    "dotted": os.path.relpath(SECRET, here),
    "dotted from elsewhere": os.path.join("/usr", os.path.relpath(SECRET, "/usr")),
    "proc root": "/proc/self/root" + SECRET,
    "proc cwd": "/proc/self/cwd/" + os.path.relpath(SECRET, here),
    "proc thread": "/proc/thread-self/root" + SECRET,
    "proc descriptor of a folder": f"/proc/self/fd/{root}/src/undeclared",
    "proc descriptor": f"/proc/self/fd/{file}",
    "own link": tmp + "/link",
    "own link to the workspace": tmp + "/folder/src/undeclared",
    "git": ROOT + "/.git/config",
    "output of another": ROOT + "/other/o",
    "plan": ROOT + "/plan.toml",
    "store": ROOT + "/.assay/assay.db",
}
for what, path in paths.items():
    attempt(what, lambda: read(path))
attempt("relative to a descriptor", lambda: os.open("src/undeclared", os.O_RDONLY, dir_fd=root))
attempt("list the store", lambda: os.listdir(ROOT + "/.assay"))
attempt("list logs", lambda: os.listdir(ROOT + "/.assay/logs"))
attempt("list git", lambda: os.listdir(ROOT + "/.git"))
attempt("second name", lambda: os.link(SECRET, tmp + "/name"))
attempt("second name of a descriptor", lambda: call(
    "linkat", -100, f"/proc/self/fd/{file}".encode(), -100, f"{tmp}/other".encode(), 0x400))
""",
        also={"other": OTHER},
    )
    judge(place, said, 20)
    assert spoils(held) == before


@HELD
def test_programs_of_the_workspace_are_not_run(
    held: Counted, hostile: Hostile, place: Place
) -> None:
    """C128: what may not be read may not be executed or made the root either."""
    lay_out(held)
    held.write("tool", "#!/bin/sh\necho ran").chmod(0o755)
    said = hostile(
        place,
        """
def run(argv):
    return os.waitpid(os.posix_spawn(argv[0], argv, {}), 0)
attempt("execute", lambda: run([ROOT + "/tool"]))
tool = os.open(ROOT + "/tool", os.O_PATH)
attempt("execute by descriptor", lambda: run([f"/proc/self/fd/{tool}"]))
def jail():
    os.chroot(ROOT)
    return read("/src/undeclared")
attempt("chroot", jail)
""",
    )
    assert said == []


@EVERYWHERE
def test_nothing_else_is_written(held: Counted, hostile: Hostile, place: Place) -> None:
    """C47, C128: no file of the workspace, of the store, of git or of another node is made,
    changed, cut, replaced, moved or removed, and nothing outside."""
    before = lay_out(held)
    store = sorted(path.name for path in held.path(".assay").iterdir())
    outside = held.root.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("outside")
    said = hostile(
        place,
        """
outside = os.path.dirname(ROOT) + "/outside"
tmp = os.environ["TMPDIR"]
mine = tmp + "/mine"
REPORT = os.path.abspath(REPORT)
def bind(path):
    os.chdir(os.path.dirname(path))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.basename(path))
write(mine)
for folder in (ROOT, ROOT + "/src", ROOT + "/.git", ROOT + "/.assay", ROOT + "/other", outside):
    new = folder + "/new"
    attempt("make " + new, lambda: write(new) or os.unlink(new) or True)
    attempt("folder " + new, lambda: os.mkdir(new) or os.rmdir(new) or True)
    attempt("link " + new, lambda: os.symlink("/", new) or os.unlink(new) or True)
    attempt("pipe " + new, lambda: os.mkfifo(new) or os.unlink(new) or True)
    attempt("socket " + new, lambda: bind(new) or os.unlink(new) or True)
    attempt("move to " + new, lambda: os.rename(mine, new) or os.rename(new, mine) or True)
    attempt("second name " + new, lambda: os.link(mine, new) or os.unlink(new) or True)
for file in (ROOT + "/src/undeclared", ROOT + "/.git/config", ROOT + "/other/o", outside + "/f"):
    attempt("append " + file, lambda: open(file, "a").close() or True)
    attempt("cut " + file, lambda: os.truncate(file, os.stat(file).st_size) or True)
    attempt("move " + file, lambda: os.rename(file, file + ".") or
        os.rename(file + ".", file) or True)
    attempt("replace " + file, lambda: os.rename(file, mine) or os.rename(mine, file) or True)
attempt("move a folder", lambda: os.rename(ROOT + "/src", ROOT + "/crs") or
    os.rename(ROOT + "/crs", ROOT + "/src") or True)
""",
        also={"other": OTHER},
    )
    if place == UNHELD:
        assert len(said) >= 50, said
    else:
        assert said == []
        assert spoils(held) == before
        left = {path.name for path in held.path(".assay").iterdir()} - set(store)
        assert all(name.startswith("assay.db") for name in left), left
    assert (outside / "f").read_text() == "outside"
    assert os.listdir(outside) == ["f"]


@HELD
def test_declared_inputs_are_not_written(held: Counted, hostile: Hostile, place: Place) -> None:
    """C47: an input of the node stays as it was: the kernel refuses it, or the node fails over
    its own copy."""
    before = lay_out(held)
    held.write("src/large", LARGE)
    hostile(
        place,
        """
for path in ("src/declared", "src/large", ROOT + "/src/declared", ROOT + "/src/large"):
    attempt("open " + path, lambda: open(path, "r+").close())
    attempt("write " + path, lambda: write(path, "r+"))
    attempt("append " + path, lambda: write(path, "a"))
    attempt("empty " + path, lambda: write(path))
    attempt("cut " + path, lambda: os.truncate(path, 1))
    attempt("second name " + path, lambda: os.link(path, os.path.dirname(REPORT) + "x"))
    attempt("second name in TMPDIR" + path, lambda: os.link(path, os.environ["TMPDIR"] + "/x"))
    attempt("move " + path, lambda: os.rename(path, os.path.dirname(REPORT) + "y"))
    attempt("remove " + path, lambda: os.unlink(path))
""",
        reads=["src/declared", "src/large"],
        fails=str(place) == "enforced-everywhere",
    )
    if str(place) == "enforced-everywhere":
        assert "`src/declared`" in detail(hostile.done)
        assert "`src/large`" in detail(hostile.done)
    else:
        assert held.read(place.report) == ""
    assert spoils(held) == {**before, "src/large": LARGE}


@HELD
def test_modes_of_inputs_are_put_back(held: Counted, hostile: Hostile, place: Place) -> None:
    """C128: the kernel does not keep a command from changing modes; a large input that its
    tree shares with the workspace has the mode it had when the node is over, failed or not."""
    held.write("src/large", LARGE).chmod(0o644)
    held.path("out").mkdir()
    body = 'os.chmod("src/large", 0o777); sys.exit({code})'
    for code in (3, 0):
        if place == IN_PLACE:
            break  # it is the very file there: a stated limit
        hostile(place, body.format(code=code), reads=["src/large"], fails=True)
        assert stat.S_IMODE(held.path("src/large").stat().st_mode) == 0o644
        assert held.path("src/large").stat().st_nlink == 1
        assert held.read("src/large") == LARGE


@HELD
def test_result_is_no_way_to_read(held: Counted, hostile: Hostile, place: Place) -> None:
    """C128: assay, whom no boundary holds, does not follow a link that stands in place of the
    result."""
    lay_out(held)
    hostile(
        place,
        'os.symlink(ROOT + "/src/undeclared", os.environ["ASSAY_RESULT"])',
        result="text",
        fails=True,
    )
    assert "undeclared" not in hostile.done.out.replace(str(held.root), "")


@HELD
def test_outputs_behind_planted_links(held: Counted, hostile: Hostile, place: Place) -> None:
    """C38, C128: where the folder of an output has become a link, out of the workspace or into
    it, nothing is taken from there nor put there."""
    before = lay_out(held)
    outside = held.root.parent / "outside"
    outside.mkdir()
    (outside / "x").write_text("outside")
    held.write("src/x", "mine\n")
    before["src/x"] = "mine\n"
    for target in (str(outside), str(held.path("src")), "../src", "../.git", "../../.."):
        folder = "out/deep" if "/" in place.report else "deep"
        hostile(
            place,
            f"""
os.makedirs({folder!r}, exist_ok=True)
os.rmdir({folder!r})
os.symlink({target!r}, {folder!r})
""",
            writes=[place.report, f"{folder}/x"],
            fails=True,
        )
        assert f"`{folder}`" in detail(hostile.done)
        held.path(folder).unlink(missing_ok=True)
        now = spoils(held)
        now.pop("out/deep", None)
        now.pop("deep", None)
        assert now == before, target
        assert (outside / "x").read_text() == "outside"
        assert os.listdir(outside) == ["x"]


@HOW
def test_whole_output_folder_swapped_for_a_link(
    held: Counted, tmp_path: Path, boundary: str
) -> None:
    """C38, C128: a tree that has become a link out of the workspace is no tree."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("outside")
    script = f"mkdir -p out; rmdir out; ln -s {shlex.quote(str(outside))} out"
    held.plan({"evil": {"run": script, "writes": ["out/"], "boundary": boundary}})
    _, done = held.tried()
    assert done.code == 1
    assert "leads outside the workspace" in detail(done)
    assert not os.path.lexists(held.path("out"))
    assert (outside / "x").read_text() == "outside"


def test_destination_swapped_for_a_link_while_the_node_runs(
    held: Counted, probes: Probes, begin: Begin, tmp_path: Path
) -> None:
    """C128: what an isolated node wrote is not put where a link has come to stand that leads out
    of the workspace: the node fails."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("outside")
    held.write("out/x", "before\n")
    script = f"{shlex.join(probes.argv('evil'))}; mkdir -p out; echo new > out/x"
    held.plan({"evil": {"run": script, "writes": ["out/x"], "boundary": "isolated"}})
    run = begin()
    probe = probes.arrive("evil")
    held.path("out").rename(tmp_path / "was")
    held.path("out").symlink_to(outside)
    probe.exit()
    done = run.finish()
    assert done.code == 1
    assert "`out" in detail(done)
    assert (outside / "x").read_text() == "outside"
    assert (tmp_path / "was" / "x").read_text() == "before\n"


def test_open_folder_swapped_for_a_link_while_the_node_runs(
    held: Counted, probes: Probes, begin: Begin
) -> None:
    """C128: a node that works in place has the folder that it was given, not what comes to stand
    at its path."""
    before = lay_out(held)
    script = f"{shlex.join(probes.argv('evil'))}; echo evil > out/undeclared"
    held.plan({"evil": {"run": script, "writes": ["out/undeclared"], "boundary": "enforced"}})
    run = begin()
    probe = probes.arrive("evil")
    assert probe.cwd() == str(held.root)
    held.path("out").rename(held.root.parent / "was")
    held.path("out").symlink_to("src")
    probe.exit()
    assert run.finish().code == 1
    held.path("out").unlink()
    assert spoils(held) == before


@HOW
@pytest.mark.parametrize("text", ["{root}/src/undeclared", "../src/undeclared"])
def test_link_that_an_earlier_node_planted(held: Counted, boundary: str, text: str) -> None:
    """C14, C128: a link among the inputs gives the file that it leads to, whose content is in
    the key, and nothing beside that."""
    lay_out(held)
    held.write("src/beside", "beside\n")
    held.plan(
        {
            "plant": {
                "run": f"mkdir -p p; ln -sf {text.format(root=held.root)} p/link",
                "writes": ["p/link"],
            },
            "victim": {
                "run": "cat p/link > v/o; if cat p/../src/beside; then exit 7; fi",
                "reads": ["p/link"],
                "writes": ["v/o"],
                "boundary": boundary,
            },
        }
    )
    assert held.ran() == ["plant", "victim"]
    assert held.read("v/o") == "undeclared\n"
    held.write("src/undeclared", "edited\n")
    assert "victim" in held.ran()
    assert held.read("v/o") == "edited\n"


@pytest.mark.parametrize("text", ["../src/undeclared", "$PWD/p/o", "../../outside"])
def test_link_that_would_lead_elsewhere_in_the_workspace(held: Counted, text: str) -> None:
    """C30, C128: a link that is something else in the workspace than it was in the private tree
    is not put there, nor is anything else of that node."""
    before = lay_out(held)
    (held.root.parent / "outside").write_text("outside")
    held.write("p/o", "before\n")
    held.plan(
        {
            "evil": {
                "run": f'mkdir -p p; echo new > p/o; ln -s "{text}" p/link',
                "writes": ["p/"],
                "boundary": "isolated",
            }
        }
    )
    _, done = held.tried()
    assert done.code == 1
    assert "`p/link` leads to" in detail(done)
    assert spoils(held) == {**before, "p": "folder", "p/o": "before\n"}


@HOW
@pytest.mark.parametrize("reads", ["p/link", "p/", "p/*"])
@pytest.mark.parametrize(
    "text", ["../.assay/.gitignore", "{root}/.assay/.gitignore", "../p/../.assay/tmp/open.lock"]
)
def test_planted_link_into_the_store(held: Counted, boundary: str, reads: str, text: str) -> None:
    """C128: a link among the inputs does not open the store."""
    look_behind_link(held, boundary, reads, text)


@HOW
@pytest.mark.parametrize("text", ["../.assay", "{root}/.assay", "../src", "{root}/src", "..", "/"])
def test_planted_link_to_a_folder(held: Counted, boundary: str, text: str) -> None:
    """C120, C128: a link to a folder among the inputs opens nothing that lies there."""
    look_behind_link(held, boundary, "p/", text)


def look_behind_link(held: Counted, boundary: str, reads: str, text: str) -> None:
    lay_out(held)
    held.write("p/beside", "")
    held.path("p/link").symlink_to(text.format(root=held.root))
    script = (
        f"for p in '' /undeclared /src/undeclared /assay.db {held.root}/src/undeclared; do\n"
        "  if head -c 9 p/link$p; then exit 7; fi\n"
        "done; readlink p/link > v/o"
    )
    held.plan(
        {
            "victim": {
                "run": script,
                "reads": [reads],
                "writes": ["v/o"],
                "boundary": boundary,
                "cache": False,
            },
        }
    )
    held.run()
    assert held.read("v/o") == text.format(root=held.root) + "\n"


@EVERYWHERE
def test_assay_itself_is_out_of_reach(held: Counted, hostile: Hostile, place: Place) -> None:
    """C128: assay is neither signalled nor traced, and nothing is learnt or taken from it by
    way of /proc or its descriptors."""
    before = lay_out(held)
    said = hostile(
        place,
        """
proc = f"/proc/{ASSAY}"
attempt("signal", lambda: os.kill(ASSAY, 0) or True)
attempt("continue its group", lambda: os.killpg(os.getpgid(ASSAY), signal.SIGCONT) or True)
attempt("signal by descriptor", lambda: signal.pidfd_send_signal(os.pidfd_open(ASSAY), 0) or True)
attempt("its root", lambda: read(f"{proc}/root{ROOT}/src/undeclared"))
attempt("its folder", lambda: read(f"{proc}/cwd/src/undeclared"))
if os.geteuid():  # Linux gives these to whoever may measure performance, as root may
    attempt("its environment", lambda: read(f"{proc}/environ"))
    attempt("its maps", lambda: read(f"{proc}/maps"))
else:
    attempt("its links", lambda: os.readlink(f"{proc}/exe"))
    attempt("its files", lambda: os.stat(f"{proc}/cwd/src"))
attempt("its memory", lambda: open(f"{proc}/mem", "r+b").close() or True)
attempt("its descriptors", lambda: os.readlink(f"{proc}/fd/0"))
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
attempt("trace", lambda: call("ptrace", PTRACE_SEIZE, ASSAY, None, None))
attempt("take a descriptor", lambda: call("syscall", 438, os.pidfd_open(ASSAY), 0, 0) and True)
""",
    )
    judge(place, said, 11)
    assert spoils(held) == before


@EVERYWHERE
def test_descriptors_lead_nowhere(held: Counted, hostile: Hostile, place: Place) -> None:
    """C128: a command inherits its standard streams and its lease, whose name it cannot open
    again; its log it can."""
    said = hostile(
        place,
        """
found = {int(each): os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")
    if os.path.lexists(f"/proc/self/fd/{each}")}
leases = [number for number, path in found.items() if path.endswith(".lease")]
assert len(leases) == 1, found
strange = {number: path for number, path in found.items()
    if number > 2 and number not in leases and path != f"/proc/{os.getpid()}/fd"}
assert not strange, strange
for path in ("/dev/stdout", "/dev/stderr", "/proc/self/fd/1"):
    with open(path, "a") as file:
        file.write("again\\n")
attempt("open its lease", lambda: open(f"/proc/self/fd/{leases[0]}", "r+").close() or True)
attempt("list folder of its log", lambda: os.listdir(os.path.dirname(found[1])))
""",
    )
    judge(place, said, 2)


@EVERYWHERE
def test_folder_passed_over_a_socket_opens_nothing(
    held: Counted, hostile: Hostile, place: Place
) -> None:
    """C128: with the descriptor of a folder that somebody outside passes it, a command reaches
    no more than by the folder's path."""
    lay_out(held)
    with listening(socket.AF_UNIX) as (path, server):
        root = os.open(held.root, os.O_RDONLY | os.O_DIRECTORY)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                socket.send_fds(connection, [b"x"], [root])

        thread = threading.Thread(target=serve)
        thread.start()
        said = hostile(
            place,
            f"""
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
_, (folder,), _, _ = socket.recv_fds(server, 1, 1)
attempt("list", lambda: os.listdir(f"/proc/self/fd/{{folder}}/.git"))
attempt("read", lambda: read(f"/proc/self/fd/{{folder}}/src/undeclared"))
attempt("open", lambda: os.open("src/undeclared", os.O_RDONLY, dir_fd=folder))
attempt("make", lambda: os.close(os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=folder)) or
    os.unlink("new", dir_fd=folder) or True)
def walk():
    os.fchdir(folder)
    return read("src/undeclared")
here = os.getcwd()
attempt("go there", walk)
os.chdir(here)
""",
        )
        thread.join()
        os.close(root)
    judge(place, said, 5)
    assert not held.path("new").exists()


@EVERYWHERE
def test_name_spaces_open_nothing(held: Counted, hostile: Hostile, place: Place) -> None:
    """C128: nothing is mounted, and new name spaces and roots show no more than the old."""
    lay_out(held)
    if os.geteuid():
        pytest.skip("only root gets this far without a boundary")
    said = hostile(
        place,
        """
os.makedirs(os.environ["TMPDIR"] + "/m")
tmp = os.environ["TMPDIR"].encode()
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
attempt("new name space", lambda: call("unshare", CLONE_NEWNS))
attempt("change mounts", lambda: call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None))
attempt("mount again", lambda: call("mount", ROOT.encode(), tmp + b"/m", None, MS_BIND, None))
attempt("read there", lambda: read(os.environ["TMPDIR"] + "/m/src/undeclared"))
attempt("new file system", lambda: call("mount", b"none", tmp + b"/m", b"tmpfs", 0, None))
attempt("unmount", lambda: call("umount2", tmp + b"/m", 2))
attempt("unmount", lambda: call("umount2", tmp + b"/m", 2))
""",
    )
    judge(place, said, 7)


@EVERYWHERE
def test_new_users_and_roots_open_nothing(held: Counted, hostile: Hostile, place: Place) -> None:
    """C128: who is root, be it of name spaces of its own, reads no more behind a new root."""
    lay_out(held)
    said = hostile(
        place,
        """
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x20000
child = os.fork()
if not child:
    try:
        if os.geteuid():
            call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
        os.chroot(ROOT)
        read("/src/undeclared")
        os._exit(0)
    except OSError:
        os._exit(1)
if os.waitpid(child, 0)[1] == 0:
    said.append("read as root")
""",
    )
    judge(place, said, 1)


NETWORK = """
for family, address in ((socket.AF_INET, {four}), (socket.AF_INET6, {six})):
    def connect():
        with socket.socket(family) as made:
            made.connect(address)
            return True
    def bind():
        with socket.socket(family) as made:
            made.bind((address[0], 0))
            return True
    attempt(f"connect {{family}}", connect)
    attempt(f"bind {{family}}", bind)
    def child():
        pid = os.fork()
        if not pid:
            try:
                connect()
                os._exit(0)
            except OSError:
                os._exit(1)
        if os.waitpid(pid, 0)[1]:
            raise OSError
        return True
    attempt(f"connect by a child {{family}}", child)
"""


@pytest.mark.parametrize("requires", [[], ["network"]], ids=["without", "with"])
@EVERYWHERE
def test_network(held: Counted, hostile: Hostile, place: Place, requires: list[str]) -> None:
    """C128: TCP is there for who requires it, and nobody else."""
    if not find_support().holds_tcp:
        pytest.skip("this kernel does not hold TCP")
    with (
        listening(socket.AF_INET, ("127.0.0.1", 0)) as (four, _),
        listening(socket.AF_INET6, ("::1", 0)) as (six, _),
    ):
        said = hostile(place, NETWORK.format(four=four, six=six), requires=requires)
    judge(UNHELD if requires else place, said, 6)


@EVERYWHERE
def test_abstract_sockets(held: Counted, hostile: Hostile, place: Place) -> None:
    """C128: sockets without a file are out of reach, but for its own."""
    if not find_support().holds_processes:
        pytest.skip("this kernel does not hold abstract sockets")
    name = f"\0assay-{os.getpid()}-{place}"
    with listening(socket.AF_UNIX, name):
        said = hostile(
            place,
            f"""
def connect(address):
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(address)
        return True
attempt("connect", lambda: connect({name!r}))
with socket.socket(socket.AF_UNIX) as own:
    own.bind("\\0" + os.environ["ASSAY_ATTEMPT"])
    own.listen(1)
    connect("\\0" + os.environ["ASSAY_ATTEMPT"])
with socket.socket(socket.AF_UNIX) as own:
    own.bind(os.environ["TMPDIR"] + "/s")
    own.listen(1)
    connect(os.environ["TMPDIR"] + "/s")
""",
        )
    judge(place, said, 1)


@HELD
def test_environment_widens_nothing(held: Counted, hostile: Hostile, place: Place) -> None:
    """C128: what the plan says of TMPDIR, HOME and PATH opens nothing, and TMPDIR is its own."""
    before = lay_out(held)
    root = str(held.root)
    for env in (
        {"TMPDIR": "../../x", "HOME": "/"},
        {"TMPDIR": root, "HOME": root, "PATH": f"{root}/src:.:/usr/bin:/bin"},
        {"TMPDIR": f"{root}/.assay", "HOME": f"{root}/.assay", "PWD": root},
    ):
        said = hostile(
            place,
            """
attempt("home", lambda: write(os.environ["HOME"] + "/.evil"))
attempt("outside", lambda: write(ROOT + "/../evil"))
attempt("store", lambda: write(ROOT + "/.assay/evil"))
attempt("read", lambda: read(os.environ["HOME"] + "/src/undeclared"))
attempt("temporary", lambda: write(ROOT + "/evil"))
write(os.environ["TMPDIR"] + "/mine")
assert os.stat(os.environ["TMPDIR"]).st_mode & 0o777 == 0o700
if not os.environ["TMPDIR"].startswith("/tmp/assay-"):
    said.append(os.environ["TMPDIR"])
""",
            env=env,
        )
        assert said == []
        assert spoils(held) == before
    assert not os.path.lexists("/.evil")


@HOW
@pytest.mark.parametrize("name", ['q"q', "p)p", "n\nn", "s s", "$HOME", "`id`", "*", "\\"])
def test_names_are_no_policy(held: Counted, boundary: str, name: str) -> None:
    """C121, C128: whatever the name of an output, that is what may be written, and no more."""
    before = lay_out(held)
    quoted = shlex.quote(name)
    held.plan(
        {
            "evil": {
                "run": f"if echo > src/x; then exit 7; fi; if cat {held.root}/src/undeclared; then"
                f" exit 7; fi; mkdir -p out; echo 1 > out/{quoted}",
                "writes": [{"path": f"out/{name}"}],
                "boundary": boundary,
            }
        }
    )
    held.run()
    assert held.tree("out") == {name: "1\n"}
    held.remove("out")
    assert spoils(held) == before


@HOW
def test_children_do_not_outlive_the_node(
    held: Counted, probes: Probes, begin: Begin, boundary: str
) -> None:
    """C55, C128: what leaves its session and its files behind is ended with the node."""
    held.plan(
        {"evil": {"run": shlex.join(probes.argv("evil")), "writes": [], "boundary": boundary}}
    )
    run = begin()
    evil = probes.arrive("evil")
    child = evil.fork("child", setsid=True, double=True, keep_files=False)
    other = evil.fork("other", setsid=True, double=True, environ={}, keep_files=False)
    evil.exit()
    child.gone()
    other.gone()
    assert run.finish().code == 0
    assert list(held.path(".assay/tmp").glob("*.tree")) == []


KEPT = """\
import os, socket, sys
folder = os.open(os.path.dirname(os.environ["ASSAY_RESULT"]), os.O_RDONLY)
if os.fork():
    os._exit(0)
os.setsid()
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
server.recv(1)
try:
    os.write(os.open("result", os.O_WRONLY | os.O_CREAT, dir_fd=folder), b"forged")
    server.send(b"forged")
except OSError as error:
    server.send(b"refused")
"""


@HOW
def test_temporary_folder_is_not_handed_on(
    held: Counted, probes: Probes, begin: Begin, tmp_path: Path, boundary: str
) -> None:
    """C128: a process that lives on with its node's leave keeps no door to the temporary folder
    of a later node."""
    (tmp_path / "kept.py").write_text(KEPT)
    with listening(socket.AF_UNIX) as (path, server):
        held.plan(
            {
                "evil": {
                    "run": [sys.executable, "-S", "-E", str(tmp_path / "kept.py"), path],
                    "background": "keep",
                    "boundary": boundary,
                },
                "victim": {
                    "run": probes.argv("victim"),
                    "after": ["evil"],
                    "result": "text",
                    "boundary": boundary,
                },
            }
        )
        run = begin("-j1")
        kept, _ = server.accept()
        with kept:
            victim = probes.arrive("victim")
            kept.send(b"x")
            assert kept.recv(16) in (b"forged", b"refused")
            victim.exit()
            done = run.finish()
    assert done.code == 1
    assert "wrote nothing to $ASSAY_RESULT" in detail(done, "victim")


@HOW
def test_workspace_in_a_folder_for_everybody(held: Counted, boundary: str, tmp_path: Path) -> None:
    """C127: a workspace below /dev/shm, where every command may write, is held all the same."""
    with tempfile.TemporaryDirectory(prefix="held-", dir="/dev/shm") as folder:
        inner = Counted(Path(folder), tmp_path / "marks")
        before = lay_out(inner)
        inner.plan(
            {
                "evil": {
                    "run": [
                        "/bin/sh",
                        "-c",
                        f"if echo > {folder}/src/x; then exit 7; fi\n"
                        f"if cat {folder}/src/undeclared; then exit 8; fi\n"
                        "mkdir -p out; echo 1 > out/report",
                    ],
                    "writes": ["out/report"],
                    "boundary": boundary,
                }
            }
        )
        inner.run()
        assert spoils(inner) == before


@HOW
def test_stray_files_fail_the_node(held: Counted, boundary: str) -> None:
    """C47: what a node makes beside its outputs, where it can, is named with the line to add."""
    held.plan(
        {
            "evil": {
                "run": "mkdir -p out/deep; touch out/o out/deep/side 'out/[x]'",
                "writes": ["out/o"],
                "boundary": boundary,
            },
            "after": {"run": "true", "after": ["evil"]},
        }
    )
    _, done = held.tried()
    assert done.outcomes == {"evil": "failed", "after": "skipped"}
    assert 'it wrote `out/deep/side`, which it does not declare: add "out/deep/side"' in detail(
        done
    )
    assert "`out/[x]`" in detail(done)
    if boundary == "isolated":
        assert not held.path("out").exists()


@HELD
def test_folders_too_deep_for_a_path(held: Counted, hostile: Hostile, place: Place) -> None:
    """C47: what assay cannot look through fails that node alone, and goes with its tree."""
    folder = os.path.dirname(place.report) or "deep"
    hostile(
        place,
        f"""
here = os.getcwd()
os.makedirs({folder!r}, exist_ok=True)
os.chdir({folder!r})
for _ in range(40):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
os.chdir(here)
""",
        also={"other": OTHER},
        fails=True,
    )
    assert "cannot be looked through" in detail(hostile.done)
    assert hostile.done.outcomes["other"] == "built"
    assert list(held.path(".assay/tmp").glob("*.tree")) == []


@HELD
def test_many_stray_files_of_any_name(held: Counted, hostile: Hostile, place: Place) -> None:
    """C47, C121: the first few are named, in one line each whatever their names, and counted."""
    held.path("out").mkdir()
    hostile(
        place,
        """
folder = os.path.dirname(REPORT) or "."
for number in range(300):
    write(f"{folder}/{number:03}")
for name in (b"\\xff", b"\\n\\x1b[31m", b"\\r"):
    os.close(os.open(os.path.join(folder.encode(), b"0" + name), os.O_CREAT))
""",
        fails=True,
    )
    said = detail(hostile.done)
    assert said.count("it wrote") == 10
    assert said.endswith("and 293 more like these")
    assert "\x1b" not in held.assay("run").err
