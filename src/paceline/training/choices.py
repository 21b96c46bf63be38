"""The words that a user may choose from; apart from the code behind them, which needs torch."""

from typing import NamedTuple

LR_SCALINGS = ("auto", "linear", "sqrt", "none")
NOT_FINITE = ("stop", "skip")
STALE = ("auto", "correct", "none")
SHARDINGS = ("dynamic", "static")


class UpdateOptions(NamedTuple):
    """How a run wants its updates made."""

    lr_scaling: str = "auto"
    stale: str = "auto"  # what to do about stale gradients, unless the optimizer's description says otherwise
    may_be_stale: bool = False  # whether there can be any, with its policy and its group


AS_USUAL = UpdateOptions()
