"""The pure decision core: no torch, no threads, no files, no clock, no randomness of its own."""
