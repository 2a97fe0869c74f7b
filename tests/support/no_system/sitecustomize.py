"""Python imports this first: programs are then looked for in PATH alone."""

from remote_sandbox_mcp.processes import programs

programs._here.system = ()
