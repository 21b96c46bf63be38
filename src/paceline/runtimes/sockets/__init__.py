"""Workers on other hosts: who may speak with the server, and how messages and tensors cross a socket."""
