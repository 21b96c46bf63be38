"""The server of a run and its workers' side of it, whoever starts the processes and wherever they are."""
