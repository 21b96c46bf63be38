"""The words that a user may choose from; apart from the code behind them, which needs torch."""

LR_SCALINGS = ("linear", "sqrt", "none")
NOT_FINITE = ("stop", "skip")
SHARDINGS = ("dynamic", "static")
