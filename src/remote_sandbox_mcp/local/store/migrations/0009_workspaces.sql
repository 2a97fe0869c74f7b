-- Local folders and the folders of sandboxes that belong to them. configuration tells apart sandboxes of the same name;
-- rules is JSON; inode is that of the local folder, so that another folder at its place is noticed; free: a person has
-- linked it on the command line. What both sides had in common last is in a file for each of them.
CREATE TABLE workspaces (
    id TEXT PRIMARY KEY,
    configuration TEXT NOT NULL,
    folder TEXT NOT NULL UNIQUE,
    sandbox TEXT NOT NULL,
    remote TEXT NOT NULL,
    rules TEXT NOT NULL,
    free INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    created REAL NOT NULL
);
