"""Everything that can be done, one folder or file per noun.

No front end and no wire is here: app.py puts the services together for one configuration, fronts and cli call them.
"""
