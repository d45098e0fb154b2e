"""What must become of the effects of a plan: the page that random histories are compared with.

Knows the contract, and nothing of assay: after each command it is told what the world saw and
what assay said, and raises AssertionError where that is not what had to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256

SHARED = "t"
"""The one file that several nodes rewrite, each with a line of its own."""

DONE = ("built", "clean")


class Tier(Enum):
    SEALED = "sealed"
    COMPENSABLE = "compensable"
    IRREVERSIBLE = "irreversible"


class State(Enum):
    """What is known of an effect."""

    LOST = auto()
    """It was under way when its assay was killed; nobody has come across that since."""
    STANDS = auto()
    UNKNOWN = auto()
    NOTHING = auto()
    HALF = auto()
    """It is to be taken back, and its `undo` has yet to end well."""
    BACK = auto()
    DOUBTFUL = auto()
    """Whether it was taken back, or how far, before assay ended shows in the next run."""


TO_TAKE_BACK = (State.STANDS, State.HALF, State.DOUBTFUL)


@dataclass(frozen=True)
class Node:
    """One node; `name` is also the file it writes where `writes` is true."""

    number: int
    tier: Tier
    reads: tuple[str, ...]
    """Sources, files of other nodes, and `SHARED`."""
    writes: bool
    rewrites: bool
    """Whether it adds its line to `SHARED`."""
    after: tuple[int, ...]
    takes: int | None
    """The node whose value it is given."""
    gives: bool
    """Whether it has a value."""
    is_keyed: bool
    has_undo: bool
    can_refuse: bool
    """Whether an exit code of its says that nothing happened."""

    @property
    def name(self) -> str:
        return f"n{self.number}"

    def text(self, contents: Mapping[str, str], values: Mapping[int, str], word: str) -> str:
        """What it writes, has as its value, and does to the world: all that it consumed."""
        read = "".join(contents[name] for name in self.reads)
        taken = "" if self.takes is None else values[self.takes]
        return f"{self.name}.{sha256(f'{word}{read}{taken}'.encode()).hexdigest()[:12]}"


@dataclass
class Effect:
    node: int
    run: str
    attempt: str
    text: str
    before: str | None
    """What stood where it writes."""
    state: State
    is_open: bool = True
    has_failed: bool = False
    """By itself: gone on with, its run does not try that again unless asked to."""
    counts_for: str | None = None
    """Another text that an operator says it counts for as well."""
    asked: str = ""
    """The text of the run that has asked about it."""
    is_answered: bool = False
    done_at: int = 0
    is_put_back: bool = False
    stood: bool = False
    """Whether nothing of it had been taken back when it came to be doubtful."""


@dataclass
class Run:
    id: str
    pins: dict[str, str]
    words: dict[int, str]
    selected: frozenset[int]
    created: int
    is_completed: bool = False
    took_over: set[str] = field(default_factory=set)
    """Attempts whose effects count as its own."""
    settled: dict[int, str] = field(default_factory=dict)
    """Sealed nodes that are done in it, with their text."""
    failed: dict[int, str] = field(default_factory=dict)
    """Sealed nodes that failed in it."""


@dataclass(frozen=True)
class Faults:
    """How nodes behave just now."""

    refusing: frozenset[int] = frozenset()
    """They exit with 75 before they have done anything."""
    failing: frozenset[int] = frozenset()
    """They exit with 1 once they have done it."""
    stuck: frozenset[int] = frozenset()
    """Their `undo` exits with 1."""


@dataclass(frozen=True)
class Stop:
    """Where a command was disturbed."""

    node: int
    in_undo: bool
    is_kill: bool
    """Else it was cancelled."""


@dataclass(frozen=True)
class Seen:
    """One `run` or `resume` as it was."""

    run: str
    begun: Sequence[tuple[int, str]]
    """Nodes that began, with their attempts, in order."""
    undone: Sequence[str]
    """Attempts whose `undo` ended well, in order."""
    outcomes: Mapping[str, str]
    code: int
    stop: Stop | None


class Model:
    """One plan in one workspace, from its first run on."""

    def __init__(self, nodes: Sequence[Node], sources: Mapping[str, str], line: str) -> None:
        self.nodes = nodes
        self.sources = dict(sources)
        self.words = {node.number: "" for node in nodes}
        """What each node is declared with."""
        self.effects: list[Effect] = []
        self.runs: list[Run] = []
        self.lines: list[tuple[str, str]] = [("", line)]
        """Attempt and text of each line of `SHARED`."""
        self.disk: dict[int, str | None] = {node.number: None for node in nodes}
        """What stands where effects write, as far as that follows."""
        self.undone: set[str] = set()
        """Attempts whose `undo` has ended well, once at least."""
        self.has_completed = False
        """Whether the last command was a run that did."""
        self.clock = 0
        """Counts commands."""
        self.known: set[tuple[int, str]] = set()
        self.perhaps: set[tuple[int, str]] = set()
        """Sealed results that a killed run may have recorded, or not."""
        self.contents: dict[str, str] = {}
        """Of every file, as the last run that completed left it."""
        self.allowed: dict[int, int] = {node.number: 1 for node in nodes}
        """How often the effect of a node may have happened by now."""

    # What follows what.

    def needs(self, node: Node) -> set[int]:
        found = set(node.after)
        found |= {int(name[1:]) for name in node.reads if name.startswith("n")}
        if node.takes is not None:
            found.add(node.takes)
        if SHARED in node.reads:
            found |= {each.number for each in self.nodes[: node.number] if each.rewrites}
        return found

    def needed(self, number: int) -> frozenset[int]:
        """The node and all that it needs."""
        found = {number}
        for node in reversed(self.nodes[: number + 1]):
            if node.number in found:
                found |= self.needs(node)
        return frozenset(found)

    def followers(self, number: int) -> set[int]:
        found = {number}
        for node in self.nodes[number + 1 :]:
            if found & self.needs(node):
                found.add(node.number)
        return found

    # What speaks for a node.

    def speaker(self, rows: Sequence[Effect]) -> Effect | None:
        telling = [e for e in rows if e.is_open and e.state is not State.NOTHING]
        return telling[-1] if telling else rows[-1] if rows else None

    def shared_before(self, number: int) -> str:
        """`SHARED` as the node finds it, or found it: without what this intention made of it
        later."""
        mine = {e.attempt: e.node for e in self.effects if e.is_open}
        return "".join(text for by, text in self.lines if mine.get(by, -1) < number)

    # Commands.

    def recover(self) -> None:
        """Whoever comes first takes back what a killed run left under way, or cannot know."""
        for effect in self.effects:
            if effect.state is State.LOST:
                if self.nodes[effect.node].tier is Tier.COMPENSABLE:
                    self._put_back(effect)
                    # Its `undo` is for the next run that comes to the node.
                    has_more = self.nodes[effect.node].has_undo
                    effect.state = State.HALF if has_more else State.BACK
                else:
                    effect.state = State.UNKNOWN

    def _put_back(self, effect: Effect) -> None:
        self.lines = [each for each in self.lines if each[0] != effect.attempt]
        self.disk[effect.node] = effect.before
        effect.is_put_back = True

    def take_back(self, effect: Effect, faults: Faults, seen: Seen) -> bool:
        """Files first, then the `undo`; whether all of that went well."""
        node = self.nodes[effect.node]
        if not effect.is_put_back:
            self._put_back(effect)
        if node.has_undo and node.number in faults.stuck:
            effect.state = State.HALF
            return False
        was_undone = effect.attempt in seen.undone
        was_undone |= effect.state is State.DOUBTFUL and effect.attempt in self.undone
        effect.state = State.BACK
        assert was_undone or not node.has_undo, f"{effect} was not undone"
        return True

    def follow(
        self,
        seen: Seen,
        faults: Faults,
        *,
        resumed: str | None,
        new: bool = False,
        retry: bool = False,
        target: int | None = None,
    ) -> None:
        """One `run` (of the node `target` and what it needs) or `resume`, up to its end or to
        where it was disturbed."""
        stop = seen.stop
        is_killed = stop is not None and stop.is_kill
        self.clock += 1
        self.undone |= set(seen.undone)
        self.has_completed = False
        assert not seen.run or resumed is None
        self.recover()
        if new:
            self._close([e for e in self.effects if e.state is not State.HALF])
        if resumed is None:
            self._begin_run(seen.run, target)
        run = next(each for each in self.runs if each.id == (resumed or seen.run))
        attempts = dict(seen.begun)
        assert len(attempts) == len(seen.begun), f"began twice: {seen.begun}"
        first = len(self.effects)
        outcomes: dict[int, str] = {}
        contents, values = dict(run.pins), {}
        for node in self.nodes:
            number = node.number
            attempt = attempts.get(number)
            if number not in run.selected:
                assert attempt is None, f"{node.name} began although nobody asked for it"
                continue
            needed = [outcomes[each] for each in self.needs(node)]
            if "unreached" in needed:
                outcome, text = "unreached", ""
            elif any(each not in DONE for each in needed):
                outcome, text = "skipped", ""
            else:
                if SHARED in node.reads:
                    contents[SHARED] = self.shared_before(number)
                text = node.text(contents, values, run.words[number])
                if node.tier is Tier.SEALED:
                    outcome = self._follow_sealed(node, text, run, attempt, seen, faults, retry)
                else:
                    outcome, text = self._follow_effect(
                        node, text, run, attempt, seen, faults, retry
                    )
            if outcome not in ("built", "failed", "lost", "cancelled"):
                assert attempt is None, f"{node.name} began although it is {outcome}"
            outcomes[number] = outcome
            contents[node.name] = values[number] = text
        self.effects[first:] = sorted(
            self.effects[first:], key=lambda e: [each for _, each in seen.begun].index(e.attempt)
        )
        for attempt in seen.undone:
            [effect] = [e for e in self.effects if e.attempt == attempt]
            assert effect.state not in (State.STANDS, State.NOTHING), f"{effect} was undone"
        if is_killed:
            return
        if stop is None:
            told = {f"n{number}": outcome for number, outcome in outcomes.items()}
            assert seen.outcomes == told, (seen.outcomes, told)
        every = set(outcomes.values())
        code = 4 if "ambiguous" in every else 1 if "failed" in every else 0
        assert stop is not None or seen.code == code, (seen.code, code, outcomes)
        run.is_completed = self.has_completed = every <= set(DONE)
        if run.is_completed:
            of = {each.id: each.selected for each in self.runs}
            self._close([e for e in self.effects if e.is_open and of[e.run] <= run.selected])
            self.contents = {f"n{number}": contents[f"n{number}"] for number in outcomes}

    @property
    def any_shared(self) -> bool:
        """Whether nodes depend on what stood in a file when a run began."""
        return any(SHARED in node.reads for node in self.nodes)

    def _begin_run(self, name: str, target: int | None) -> None:
        everything = frozenset(node.number for node in self.nodes)
        selected = everything if target is None else self.needed(target)
        pins, words = dict(self.sources), dict(self.words)
        self.runs.append(Run(name, pins, words, selected, self.clock))

    def look_again(self, run: Run) -> None:
        """What the run goes on with is how things are now."""
        run.pins = dict(self.sources)

    def _close(self, effects: Sequence[Effect]) -> None:
        """No later run asks for these any more."""
        for effect in effects:
            effect.is_open = False
            self.allowed[effect.node] += effect.state in (State.STANDS, State.UNKNOWN)

    def _follow_sealed(
        self,
        node: Node,
        text: str,
        run: Run,
        attempt: str | None,
        seen: Seen,
        faults: Faults,
        retry: bool,
    ) -> str:
        number, key = node.number, (node.number, text)
        stop = seen.stop
        if stop is not None and stop.node == number and not stop.in_undo:
            assert attempt is not None
            return "lost" if stop.is_kill else "cancelled"
        if run.settled.get(number) == text:
            return "clean"
        if attempt is not None:
            assert key not in self.known, f"{node.name} was executed needlessly"
            if number in faults.refusing | faults.failing:
                run.failed[number] = text
                return "failed"
            if stop is not None and stop.is_kill:
                self.perhaps.add(key)
            else:
                self.known.add(key)
                run.settled[number] = text
            return "built"
        if stop is not None and key not in self.known:
            was_needed = any(number in self.needed(each) for each, _ in seen.begun)
            return "clean" if was_needed and key in self.perhaps else "unreached"
        if run.failed.get(number) == text and not retry:
            return "failed"
        if seen.outcomes.get(node.name) == "failed" and self._is_moved(node, run):
            return "failed"
        assert key in self.known | self.perhaps, f"{node.name} was never made"
        if stop is None:
            run.settled[number] = text
        return "clean"

    def _is_moved(self, node: Node, run: Run) -> bool:
        """Whether a source it reads is not as it was when the run began."""
        return any(self.sources.get(name) != run.pins.get(name) for name in node.reads)

    def _follow_effect(
        self,
        node: Node,
        text: str,
        run: Run,
        attempt: str | None,
        seen: Seen,
        faults: Faults,
        retry: bool,
    ) -> tuple[str, str]:
        verdict, effect = self._judge(node, text, run, retry)
        if effect is not None and effect.state is State.DOUBTFUL:
            verdict = self._resolve(node, effect, verdict, attempt, seen)
            if verdict == "unreached":
                return verdict, text
        match verdict:
            case "done":
                assert effect is not None
                assert effect.attempt not in seen.undone
                run.took_over.add(effect.attempt)
                if node.tier is Tier.COMPENSABLE and seen.outcomes.get(node.name) == "clean":
                    self.disk[node.number] = effect.text  # put back, where somebody took it away
                return "clean", effect.text
            case "failed":
                return "failed", text
            case "ask":
                assert effect is not None
                effect.asked = text
                return "ambiguous", text
            case "back":
                assert effect is not None
                outcome = self._roll_back(node, effect, attempt, seen, faults)
                if outcome is not None:
                    return outcome, text
        if attempt is None:
            if self._is_moved(node, run):
                return "ambiguous", text
            assert seen.stop is not None, f"{node.name} was not performed"
            return "unreached", text
        assert not self._is_moved(node, run), f"{node.name} was performed over a changed source"
        return self._perform(node, text, run, attempt, seen, faults), text

    def _judge(self, node: Node, text: str, run: Run, retry: bool) -> tuple[str, Effect | None]:
        """What is to become of a node that has effects, and the effect that says so."""
        mine = [e for e in self.effects if e.node == node.number]
        own = self.speaker([e for e in mine if e.run == run.id])
        other = self.speaker(
            [e for e in mine if e.run != run.id and (e.is_open or e.done_at > run.created)]
        )
        verdict = None if own is None else self._judge_own(node, own, retry)
        if verdict not in (None, "perform", "ask"):
            return verdict, own
        if other is not None and (
            own is None or self.effects.index(own) < self.effects.index(other)
        ):
            theirs = self._judge_other(node, text, other)
            # What another run has achieved since answers what this one would ask, nothing less.
            if theirs is not None and (verdict != "ask" or theirs == "done"):
                return theirs, other
        return verdict or "perform", own

    def _judge_own(self, node: Node, own: Effect, retry: bool) -> str:
        replays = own.has_failed and not retry
        match own.state:
            case State.STANDS | State.DOUBTFUL:
                return "done"
            case State.HALF:
                return "failed" if replays else "back"
            case State.NOTHING | State.BACK:
                return "failed" if replays else "perform"
            case _:
                return "failed" if replays else "perform" if node.is_keyed else "ask"

    def _judge_other(self, node: Node, text: str, other: Effect) -> str | None:
        match other.state:
            case State.STANDS | State.DOUBTFUL:
                if text in (other.text, other.counts_for):
                    return "done"
                if not other.is_open:
                    return None  # a later run asks for it anew
                return "back" if node.tier is Tier.COMPENSABLE else "ask"
            case State.HALF:
                return "back"
            case State.NOTHING | State.BACK:
                return None
            case _:
                if node.is_keyed and other.text == text:
                    return "perform"
                return "ask" if other.is_open else None

    def _resolve(
        self, node: Node, effect: Effect, verdict: str, attempt: str | None, seen: Seen
    ) -> str:
        """What became of an effect that a disturbed run was perhaps about to take back."""
        told = seen.outcomes.get(node.name)
        if told == "clean" and verdict == "done":
            assert effect.stood, f"{effect} was taken for done"
            effect.state = State.STANDS
            return "done"
        if attempt is not None:
            return "back"  # or it was already
        if told == "ambiguous":
            return "back"
        assert seen.stop is not None, (effect, told)
        return "unreached"

    def _batch(self, node: Node, effect: Effect) -> list[Effect]:
        """What is taken back before the node is performed anew, in this order."""
        after = self.effects[self.effects.index(effect) + 1 :]
        followers = self.followers(node.number)
        return [
            *reversed(
                [
                    e
                    for e in after
                    if e.is_open
                    and e.state in TO_TAKE_BACK
                    and e.node in followers
                    and e.node != node.number
                    and self.nodes[e.node].tier is Tier.COMPENSABLE
                ]
            ),
            effect,
        ]

    def _roll_back(
        self, node: Node, effect: Effect, attempt: str | None, seen: Seen, faults: Faults
    ) -> str | None:
        """None: all is taken back."""
        batch = self._batch(node, effect)
        stop = seen.stop
        if stop is not None and attempt is None:
            is_here = stop.in_undo and stop.node in [e.node for e in batch]
            for each in batch:
                each.stood = each.state is State.STANDS or each.stood
                each.state = State.HALF if is_here else State.DOUBTFUL
            return "unreached"
        for each in batch:
            if not self.take_back(each, faults, seen):
                return "ambiguous"
            each.has_failed = False
        places = [seen.undone.index(e.attempt) for e in batch if e.attempt in seen.undone]
        assert places == sorted(places), f"undone in another order: {seen.undone}"
        return None

    def _perform(
        self, node: Node, text: str, run: Run, attempt: str, seen: Seen, faults: Faults
    ) -> str:
        number, stop = node.number, seen.stop
        effect = Effect(number, run.id, attempt, text, self.disk[number], State.STANDS)
        effect.done_at = self.clock
        is_here = stop is not None and stop.node == number
        is_bad = number in faults.refusing | faults.failing
        is_undone = node.tier is Tier.COMPENSABLE
        if is_here and stop.is_kill and (not stop.in_undo or is_bad):
            effect.state, outcome = State.LOST, "lost"
            self._write(node, effect)
        elif is_here and not stop.is_kill:
            outcome = "cancelled"
            effect.state = State.UNKNOWN
        elif is_bad:
            outcome = "failed"
            effect.has_failed = True
            refused = node.can_refuse and number in faults.refusing
            effect.state = State.NOTHING if refused else State.UNKNOWN
        else:
            outcome = "built"
            self._write(node, effect)
        if outcome in ("cancelled", "failed") and is_undone:
            self.take_back(effect, faults, seen)
        if effect.state is not State.NOTHING:
            for each in self.effects:
                each.is_open &= each.node != number
        self.effects.append(effect)
        return outcome

    def _write(self, node: Node, effect: Effect) -> None:
        self.disk[node.number] = effect.text
        if node.rewrites:
            self.lines.append((effect.attempt, effect.text))

    # What operators do.

    def answer(self, effect: Effect, *, done: bool) -> None:
        """`settle`."""
        if done and effect.state is State.STANDS:
            effect.counts_for = effect.asked
            return
        self.allowed[effect.node] += effect.state is State.STANDS
        self.clock += 1
        effect.done_at = self.clock
        effect.state = State.STANDS if done else State.NOTHING
        effect.has_failed = False
        effect.is_answered = True

    def later(self, effect: Effect) -> list[Effect]:
        """The effects of its run after it, the newest first."""
        after = self.effects[self.effects.index(effect) + 1 :]
        return [e for e in reversed(after) if e.run == effect.run]

    def rewind(self, effect: Effect, seen: Seen, faults: Faults) -> bool:
        """The last run back to where this effect of it was done; whether it came to that."""
        run = self.runs[-1]
        undoes = [
            e
            for e in self.later(effect)
            if e.state in TO_TAKE_BACK and self.nodes[e.node].tier is Tier.COMPENSABLE
        ]
        run.is_completed = self.has_completed = False
        for each in self.effects:
            is_its = each.run == run.id or each.attempt in run.took_over
            if is_its and each.state in (State.STANDS, State.UNKNOWN):
                self.allowed[each.node] -= not each.is_open
                each.is_open = True
        is_whole = True
        for each in undoes:
            each.is_open = True
            if not is_whole:
                continue
            if seen.stop is not None and each.node == seen.stop.node:
                for rest in undoes[undoes.index(each) :]:
                    rest.state = State.HALF
                is_whole = False
                continue
            each.has_failed = False
            is_whole = self.take_back(each, faults, seen)
        return is_whole

    # What is to be seen in the end.

    def check_shared(self, found: Sequence[str]) -> None:
        """Each line whose effect stands is there once, in order, and no other."""
        doubtful = {
            e.attempt for e in self.effects if e.state in (State.LOST, State.DOUBTFUL, State.HALF)
        }
        lines = list(found)
        for attempt, text in self.lines:
            if lines[:1] == [text]:
                lines.pop(0)
            else:
                assert attempt in doubtful, f"{text} is not in {SHARED}: {found}"
        assert not lines, f"{found} instead of {self.lines}"

    def certain_files(self) -> dict[str, str | None]:
        """What is to stand where compensable nodes write, as far as that follows."""
        vague = {
            e.node for e in self.effects if e.state in (State.LOST, State.DOUBTFUL, State.HALF)
        }
        return {
            node.name: self.disk[node.number]
            for node in self.nodes
            if node.tier is Tier.COMPENSABLE and node.writes and node.number not in vague
        }
