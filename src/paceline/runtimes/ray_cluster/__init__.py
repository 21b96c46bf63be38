"""A Ray cluster: Ray places processes and ends them, and lends its nodes. Nothing else in paceline imports ray."""
