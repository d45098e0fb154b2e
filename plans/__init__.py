"""What the user asked for: a plan file turned into an immutable, checked plan.

Knows nothing of running: no store, no processes, no terminal.
"""
