"""The life of a group, decided without doing anything: its processes, what they work on, and what a round is.

Pure, like the core below it: no torch, no processes, no files, no clock. Every runtime has one `Lifecycle`; events go
in, commands come out, and what a runtime adds is bytes or virtual time.
"""
