"""A soak: random faults against real machines, servers, daemons and jobs, and what must hold whatever happens."""
