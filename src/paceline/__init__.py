"""paceline: train one PyTorch model on many workers that do not run at the same speed."""

__version__ = "0.1.0"
