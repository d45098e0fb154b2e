"""Where the plan and the workspace are: PLAN and NODE words, folders upwards, standard input.

Does not read plans beyond the one key that says where the root is. Questions only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from assay.cli.errors import HostError, UsageError

PLAN_FILE = "plan.toml"
STORE_FOLDER = ".assay"


class Target(NamedTuple):
    """What PLAN and NODE words mean. `plan` is as given, or the path of the plan found
    (`given` False); `stdin` is the text of standard input for `-`."""

    plan: str
    given: bool
    nodes: tuple[str, ...]
    cwd: str
    stdin: str | None


def find_target(words: Sequence[str]) -> Target:
    """Splits PLAN from NODEs and finds the plan. Raises UsageError when there is none,
    HostError when the current folder is gone."""
    plan, nodes = split_words(words)
    if plan == "-":
        return Target("-", True, nodes, current_folder(), read_stdin())
    cwd = current_folder()
    if plan is not None:
        return Target(plan, True, nodes, cwd, None)
    return Target(find_plan(cwd), False, nodes, cwd, None)


def split_words(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """A first word that is `-` or ends in .toml or .json is the plan; the rest are nodes."""
    if words and is_plan_word(words[0]):
        return words[0], tuple(words[1:])
    return None, tuple(words)


def is_plan_word(word: str) -> bool:
    return word == "-" or word.endswith((".toml", ".json"))


def current_folder() -> str:
    """The current folder, absolute. Raises HostError when it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise HostError(
            "The current folder no longer exists", hint="`cd` to a folder that exists"
        ) from None


def find_plan(cwd: str) -> str:
    """`plan.toml` here or in the nearest parent folder, relative to `cwd`."""
    for folder in folders_upwards(cwd):
        path = os.path.join(folder, PLAN_FILE)
        if os.path.lexists(path):
            return os.path.relpath(path, cwd)
    raise UsageError(
        f"No plan: there is no `{PLAN_FILE}` in `{cwd}` or any folder above it",
        hint="`assay init` writes one here",
    )


def find_root(cwd: str) -> str:
    """The workspace that a question about runs, logs or the cache means: the nearest folder
    upwards that holds `.assay/`, or the root of the nearest plan.toml.

    A plan that is wrong keeps nobody from asking, so only its `root` is looked at.
    """
    for folder in folders_upwards(cwd):
        if os.path.isdir(os.path.join(folder, STORE_FOLDER)):
            return folder
        path = os.path.join(folder, PLAN_FILE)
        if os.path.isfile(path):
            return os.path.normpath(os.path.join(folder, _read_root(path)))
    raise UsageError(
        f"No workspace: there is no `{STORE_FOLDER}/` and no `{PLAN_FILE}` in `{cwd}` or any "
        "folder above it",
        hint=f"`cd` to the folder of your `{PLAN_FILE}`",
    )


def read_stdin() -> str:
    """All of standard input. Raises UsageError when it is no UTF-8 or is closed."""
    try:
        data = sys.stdin.buffer.read() if sys.stdin is not None else b""
    except OSError as error:
        raise UsageError(f"Standard input cannot be read: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"Standard input is not UTF-8: byte {error.start} is wrong") from None


def _read_root(path: str) -> str:
    import tomllib

    try:
        with open(path, "rb") as file:
            root = tomllib.load(file).get("root", ".")
    except (OSError, ValueError):
        return "."
    return root if isinstance(root, str) else "."


def folders_upwards(folder: str) -> list[str]:
    """`folder` and every folder above it, nearest first."""
    folders = [folder]
    while (parent := os.path.dirname(folder)) != folder:
        folders.append(parent)
        folder = parent
    return folders
