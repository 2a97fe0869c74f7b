-- Every tool call of every session, for people who want to know what was done: written after it has ended. arguments is
-- JSON without secrets and contents of files; outcome is "done", the code of an error, "cancelled" or "asks its user";
-- told is the first line of the result; size is about the row's length. begun and expires are in seconds since 1970.
CREATE TABLE history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    begun REAL NOT NULL,
    seconds REAL NOT NULL,
    client TEXT NOT NULL,
    version TEXT NOT NULL,
    session TEXT NOT NULL,
    folder TEXT NOT NULL,
    configuration TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    tool TEXT NOT NULL,
    arguments TEXT NOT NULL,
    outcome TEXT NOT NULL,
    exit_code INTEGER,
    told TEXT NOT NULL,
    size INTEGER NOT NULL,
    expires REAL NOT NULL
);
