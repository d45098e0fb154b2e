"""Random plans with effects and random histories of them, against a model of the contract: what
happens to the world, how each node settles, how assay ends and what is in the files."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effect_model import SHARED, Effect, Faults, Model, Node, Seen, State, Stop, Tier
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from staged import Stage
from sweep import SWEEP_ALL
from workspace import Finished

pytestmark = pytest.mark.proof

EXAMPLES = int(os.environ.get("ASSAY_EXAMPLES", "500" if SWEEP_ALL else "4"))
IS_SAMPLE = "ASSAY_EXAMPLES" not in os.environ and not SWEEP_ALL
SOURCES = {"s0": "a", "s1": "c"}
TEXTS = {"s0": "ab", "s1": "cd"}
LINE = "base"
OPERATOR = 4
MOST = 6

BEGINNINGS = (("run",), ("run",), ("run", "--new"))
CONTINUATIONS = (("resume", "RUN"), ("resume", "RUN", "--retry-failed"))
TOLD = ("event", "node", "attempt", "outcome", "detail", "text", "asks", "status")
KILLS = ("alone", "together", "asleep")
CANCELS = {"INT": 130, "TERM": 143, "cancel": 143}


@st.composite
def plans(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(2, MOST))):
        earlier = range(number)
        tier = draw(
            st.sampled_from([Tier.SEALED, *[Tier.COMPENSABLE] * 2, *[Tier.IRREVERSIBLE] * 2])
        )
        files = [*SOURCES, *(node.name for node in nodes if node.writes)]
        reads = draw(st.lists(st.sampled_from(files), max_size=2, unique=True))
        after = set(draw(st.lists(st.sampled_from(earlier), max_size=2))) if number else set()
        rewrites = tier is Tier.COMPENSABLE and draw(st.booleans())
        if rewrites:
            # Of two that change one file, one has to come after the other, and after who reads it.
            after |= {node.number for node in nodes if SHARED in node.reads}
        if rewrites or draw(st.integers(0, 3)) == 0:
            reads.append(SHARED)
        giving = [node.number for node in nodes if node.gives]
        nodes.append(
            Node(
                number,
                tier,
                tuple(reads),
                writes=tier is Tier.SEALED or draw(st.booleans()),
                rewrites=rewrites,
                after=tuple(sorted(after)),
                takes=draw(st.sampled_from([None, *giving])),
                gives=draw(st.booleans()),
                is_keyed=tier is Tier.IRREVERSIBLE and draw(st.booleans()),
                has_undo=tier is Tier.COMPENSABLE and draw(st.booleans()),
                can_refuse=tier is Tier.IRREVERSIBLE and draw(st.booleans()),
            )
        )
    return nodes


class Machine(RuleBasedStateMachine):
    """One workspace from its first run on. The operator is the test itself."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="histories-", dir="/tmp"))
        self.stage = Stage(self.root)
        self.faults = Faults()
        self.asked: list[tuple[str, str, str]] = []
        self.read = 0
        self.is_ordered = True
        """Whether the last run has done one thing after the other."""
        self.told: list[str] = []

    def teardown(self) -> None:
        self.stage.close()
        shutil.rmtree(self.root)

    @initialize(nodes=plans())
    def lay_out(self, nodes: list[Node]) -> None:
        self.model = Model(nodes, SOURCES, LINE)
        self.stage.plan(nodes, self.model.words)
        for name, text in SOURCES.items():
            self.stage.workspace.write(name, text)
        self.stage.workspace.write(SHARED, f"{LINE}\n")

    @rule(name=st.sampled_from(sorted(SOURCES)), which=st.integers(0, 1))
    def edit(self, name: str, which: int) -> None:
        self.model.sources[name] = TEXTS[name][which]
        self.stage.workspace.write(name, TEXTS[name][which])

    @rule(number=st.integers(0, MOST - 1), word=st.sampled_from(["", "w"]))
    def change(self, number: int, word: str) -> None:
        """The declaration of a node."""
        self.model.words[number % len(self.model.nodes)] = word
        self.stage.plan(self.model.nodes, self.model.words)

    @rule(number=st.integers(0, MOST - 1), text=st.sampled_from([None, "by hand"]))
    def spoil(self, number: int, text: str | None) -> None:
        """What a node has written, or is to write, by somebody else."""
        if self.is_doubtful or any(e.state is State.LOST for e in self.model.effects):
            return
        node = self.model.nodes[number % len(self.model.nodes)]
        if node.writes:
            path = self.stage.workspace.path(node.name)
            path.unlink(missing_ok=True) if text is None else path.write_text(text)
            self.model.disk[node.number] = text

    @rule(
        kind=st.sampled_from(["refusing", "failing", "failing", "stuck"]),
        numbers=st.sets(st.integers(0, MOST - 1), max_size=2),
    )
    def misbehave(self, kind: str, numbers: set[int]) -> None:
        count = len(self.model.nodes)
        self.faults = Faults(**{kind: frozenset(each % count for each in numbers)})
        self.stage.behave(self.faults)

    @rule()
    def behave(self) -> None:
        self.faults = Faults()
        self.stage.behave(self.faults)

    @rule(
        words=st.sampled_from(BEGINNINGS),
        jobs=st.sampled_from(["-j1", "-j1", "-j3"]),
        wanted=st.sampled_from([None, None, None, *range(MOST)]),
    )
    def run(self, words: tuple[str, ...], jobs: str, wanted: int | None) -> None:
        if self.is_doubtful:
            words, wanted = ("run",), None
        if self.model.any_shared:
            wanted = None
        if wanted is not None:
            wanted %= len(self.model.nodes)
        names = [] if wanted is None else [f"n{wanted}"]
        done = self.assay(*words, *names, jobs, "--json")
        self.follow(words, done, None, wanted)
        self.is_ordered = jobs == "-j1"

    def choose_run(self, words: tuple[str, ...], back: int) -> tuple[str, ...]:
        """The last run; where no node rewrites what another wrote, perhaps one before that."""
        runs = self.model.runs[-1:]
        if not self.model.any_shared and not self.is_doubtful:
            runs = [run for run in self.model.runs if not run.is_completed]
        run = runs[-1 - back % len(runs)]
        if "sources-pinned" not in self.stage.assay("journal", run.id, "--json").out:
            self.model.look_again(run)  # it has started nothing, so what it saw counts for nothing
        return ("resume", run.id, *words[2:])

    @precondition(lambda self: self.can_resume)
    @rule(words=st.sampled_from(CONTINUATIONS), back=st.integers(0, 2))
    def resume(self, words: tuple[str, ...], back: int) -> None:
        words = self.choose_run(words, back)
        done = self.assay(*words, "-j1", "--json")
        self.follow(words, done, None)

    @rule(
        words=st.sampled_from([*BEGINNINGS, *CONTINUATIONS]),
        number=st.integers(0, MOST - 1),
        in_undo=st.sampled_from([False, False, True]),
        when=st.sampled_from(["before", "after"]),
        how=st.sampled_from([*KILLS, *KILLS, *CANCELS]),
        back=st.integers(0, 2),
    )
    def disturb(
        self,
        words: tuple[str, ...],
        number: int,
        in_undo: bool,
        when: str,
        how: str,
        back: int,
    ) -> None:
        if self.is_doubtful or (words in CONTINUATIONS and not self.can_resume):
            words = ("run",)
        if words[0] == "resume":
            words = self.choose_run(words, back)
        with_undo = [node.number for node in self.model.nodes if node.has_undo]
        in_undo = in_undo and bool(with_undo)
        numbers = with_undo if in_undo else range(len(self.model.nodes))
        number = numbers[number % len(numbers)]
        if in_undo and how in CANCELS:
            how = "together"  # an undo ends by itself: nothing is to be waited for here
        where = f"{'undo ' if in_undo else ''}n{number} {when}"
        done, is_disturbed = self.stage.disturb(where, how, *words, "-j1", "--json")
        self.note(f"disturb {where} {how} {' '.join(words)}: {is_disturbed}", done)
        self.is_ordered |= words[0] == "run"
        stop = Stop(number, in_undo, how in KILLS) if is_disturbed else None
        if stop is not None and not stop.is_kill:
            assert done.code == CANCELS[how], done.err
        self.follow(words, done, stop)

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 5), repeats=st.booleans())
    def settle(self, which: int, repeats: bool) -> None:
        """Truly; of what stands with other content, that this will do or is to be done again."""
        run, node, detail = self.asked.pop(which % len(self.asked))
        meant = re.search(r"what `(n\d)` did in run (\w+) is not rolled back", detail)
        if meant:
            node, run = meant[1], meant[2]
        rows = [e for e in self.model.effects if e.run == run and f"n{e.node}" == node]
        effect = self.model.speaker(rows)
        assert effect is not None
        if effect.state in (State.LOST, State.NOTHING, State.BACK, State.DOUBTFUL):
            return
        if not effect.is_open and effect.state is State.STANDS:
            return
        is_done = not repeats
        if effect.state is State.UNKNOWN:
            is_done = ("do", effect.attempt) in [(d.what, d.attempt) for d in self.stage.ledger()]
        elif effect.state is State.HALF:
            is_done = False
        answer = ["--done"] if is_done else ["--not-done"]
        if is_done and self.model.nodes[effect.node].gives:
            answer += ["--value", json.dumps(effect.text)]
        done = self.assay("settle", run, node, *answer)
        assert done.code == 0, self.explain(done)
        self.model.answer(effect, done=is_done)

    @precondition(lambda self: self.find_targets())
    @rule(which=st.integers(0, 5), leaves=st.booleans(), held=st.sampled_from([None, *KILLS]))
    def rewind(self, which: int, leaves: bool, held: str | None) -> None:
        targets = self.find_targets()
        target = targets[which % len(targets)]
        later = self.model.later(target)
        words = ["rewind", "last", "--to", f"n{target.node}"]
        words += ["--leave-effects"] if leaves else []
        stop = None
        undone = [e.node for e in later if self.model.nodes[e.node].has_undo]
        if held and undone:
            number = undone[which % len(undone)]
            done, is_disturbed = self.stage.disturb(f"undo n{number} before", held, *words)
            stop = Stop(number, True, True) if is_disturbed else None
            self.note(f"disturb {number} {held} {words}: {is_disturbed}", done)
        else:
            done = self.assay(*words)
        stand = [
            e
            for e in later
            if e.state in (State.STANDS, State.UNKNOWN)
            and self.model.nodes[e.node].tier is Tier.IRREVERSIBLE
        ]
        if stand and not leaves:
            assert done.code == OPERATOR, self.explain(done)
            return
        seen = self.see(done, stop)
        assert not seen.run
        is_whole = self.model.rewind(target, seen, self.faults)
        assert stop is not None or (done.code == 0) == is_whole, self.explain(done)
        self.asked.clear()
        self.check()

    # What the rules are made of.

    @property
    def is_doubtful(self) -> bool:
        return any(e.state is State.DOUBTFUL for e in self.model.effects)

    @property
    def can_resume(self) -> bool:
        runs = self.model.runs
        return bool(runs) and not runs[-1].is_completed

    def find_targets(self) -> list[Effect]:
        """Effects of the last run that it can be taken back to."""
        model = self.model
        if (
            not model.runs
            or not self.is_ordered
            or any(e.state in (State.LOST, State.DOUBTFUL) for e in model.effects)
        ):
            return []
        run = model.runs[-1].id
        mine = [e for e in model.effects if e.run == run]
        if any(e.run != run and e.state is State.STANDS and e.is_open for e in model.effects):
            return []
        others = [index for index, e in enumerate(model.effects) if e.run != run]
        mine = [e for e in mine if model.effects.index(e) > max(others, default=-1)]
        newest = {e.node: e for e in mine}
        return [e for e in newest.values() if e.state is State.STANDS and not e.is_answered]

    def assay(self, *words: str) -> Finished:
        done = self.stage.assay(*words)
        self.note(" ".join(words), done)
        return done

    def note(self, what: str, done: Finished) -> None:
        lines = [f"$ {what}: exit {done.code}", f"{self.faults} {self.model.sources}"]
        if done.out.startswith("{"):
            lines += [" ".join(f"{event.get(key) or ''}" for key in TOLD) for event in done.events]
        else:
            lines.append(done.out)
        self.told.append("\n".join([*lines, done.err]))
        assert "Traceback" not in done.err, done.err
        assert "internal error" not in done.err, done.err

    def explain(self, done: Finished) -> str:
        return "\n".join([self.stage.workspace.read("plan.toml"), *self.told, f"{self.root}"])

    def see(self, done: Finished, stop: Stop | None) -> Seen:
        ledger = self.stage.ledger()
        new, self.read = ledger[self.read :], len(ledger)
        lines = done.out.splitlines() if done.out.startswith("{") else []
        events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        settled = [event for event in events if event["event"] == "node-settled"]
        self.asked = [
            (event["asks"], event["node"], event["detail"])
            for event in settled
            if event["asks"] is not None
        ]
        runs = json.loads(self.stage.assay("runs", "--json").out or "[]")
        known = {run.id for run in self.model.runs}
        return Seen(
            run=next((run["run"] for run in runs if run["run"] not in known), ""),
            begun=[(each.node, each.attempt) for each in new if each.what == "begin"],
            undone=[each.attempt for each in new if each.what == "undo"],
            outcomes={event["node"]: event["outcome"] for event in settled},
            code=done.code,
            stop=stop,
        )

    def follow(
        self,
        words: tuple[str, ...],
        done: Finished,
        stop: Stop | None,
        target: int | None = None,
    ) -> None:
        seen = self.see(done, stop)
        try:
            self.model.follow(
                seen,
                self.faults,
                resumed=words[1] if words[0] == "resume" else None,
                new="--new" in words,
                retry="--retry-failed" in words,
                target=target,
            )
            self.check()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.explain(done)}") from error

    def check(self) -> None:
        workspace, model = self.stage.workspace, self.model
        model.check_shared(workspace.read(SHARED).splitlines())
        done = [each.node for each in self.stage.ledger() if each.what == "do"]
        for node in model.nodes:
            if node.tier is Tier.IRREVERSIBLE and not node.is_keyed:
                assert done.count(node.number) <= model.allowed[node.number]
        if model.has_completed:
            for name, text in model.contents.items():
                if model.nodes[int(name[1:])].writes:
                    assert workspace.read(name) == text, name
        for name, content in model.certain_files().items():
            path = workspace.path(name)
            assert (path.read_text() if path.exists() else None) == content, name


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * EXAMPLES)
def test_whatever_happens_the_world_is_as_the_model_says() -> None:
    """C95, C97, C98, C100, C103: effects without a key happen at most once for each intention,
    compensable work stands once or is taken back, and exits and files are those of the contract."""
    chosen: Callable[[], RuleBasedStateMachine] = Machine
    run_state_machine_as_test(
        chosen,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=12,
            deadline=None,
            derandomize=IS_SAMPLE,
            database=None,
            print_blob=False,
            # A history takes seconds, and is told whole: to read it is quicker than to shrink it.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
