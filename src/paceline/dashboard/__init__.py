"""The live page of runs: what it tells, what its buttons do, and who may see it. Needs starlette and uvicorn."""
