"""The shells around the core: where workers live and how commands reach them."""
