"""The version of the installed assay, from its metadata."""

from __future__ import annotations


def version_text() -> str:
    """`assay 1.2.3`."""
    from importlib.metadata import version

    return f"assay {version('assay')}"
