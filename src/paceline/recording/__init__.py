"""The log of a run, its replay, and what is computed from it."""
