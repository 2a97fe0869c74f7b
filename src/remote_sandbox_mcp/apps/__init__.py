"""Apps in a sandbox, and its ports: deployed, forwarded to this computer, and asked how they are.

An app is a background job; jobs has what starts and stops it."""
