"""Promises of the two programs that users come from, each with the document and the section that makes it."""
