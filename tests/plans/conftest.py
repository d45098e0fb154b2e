"""How property tests run here."""

from __future__ import annotations

from hypothesis import settings

# A slow machine is no fault of what is tested.
settings.register_profile("plans", deadline=None)
settings.load_profile("plans")
