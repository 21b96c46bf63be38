"""The discrete-event runtime: workers that exist only in virtual time."""
