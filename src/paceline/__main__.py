"""`python -m paceline` is `paceline`."""

from paceline.cli import main

if __name__ == "__main__":  # not in the processes that a run starts, which import this
    main()
