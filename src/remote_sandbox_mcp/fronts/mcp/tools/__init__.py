"""The MCP tools, one file per subject: each turns arguments into values, calls the app, and shapes the answer.

Shapes that several tools share are not here but one folder up (results, shapes); fields and texts are made in views.
"""
