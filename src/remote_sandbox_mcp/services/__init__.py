"""Services: one folder or file per noun, for everything that can be done.

No front end and no wire is here: app.py puts the services together for one configuration, fronts and cli call them.
"""
