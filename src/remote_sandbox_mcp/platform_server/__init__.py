"""An OpenSandbox server of the user's own, on the user's Docker engine: started, asked and ended."""
