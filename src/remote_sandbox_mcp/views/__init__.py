"""Values as fields, texts and rows, for every front end.

No SDK is used here, and nothing is decided: fronts and cli show what is made here.
"""
