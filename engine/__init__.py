"""What happens to a plan on disk: measuring, running, recording, restoring.

Never prints, never reads the terminal, never chooses an exit code.
"""
