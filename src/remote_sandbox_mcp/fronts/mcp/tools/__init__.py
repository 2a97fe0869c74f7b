"""The MCP tools, one file per subject: each turns arguments into values, calls the app, and shapes the answer.

Texts and shapes that several tools share are not here but one folder up (results, shapes, texts).
"""
