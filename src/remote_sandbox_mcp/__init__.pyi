from .api import Sandboxes as Sandboxes
from .core.errors import SandboxError as SandboxError

__version__: str
