"""Many workers on few processors: processes that hold many connections each, and the server that they call."""
