"""Real processes on one machine: memory that they share, and a pipe to each."""
