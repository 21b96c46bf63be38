"""The torch side: parameters, updates, data, and the worker that a user's loop talks to. It knows no policy."""
