"""Ways in for those who train with another library's loop; each needs its extra, `lightning` or `accelerate`."""
