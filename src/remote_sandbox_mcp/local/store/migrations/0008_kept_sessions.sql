-- Sessions that keep their state between calls, as they were used from here: a shell of exec_bash (kind shell), an
-- interpreter of run_python (kind python). Their state is on the machine; nothing of it is here but the folder they are in.
CREATE TABLE kept_sessions (
    kind TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    name TEXT NOT NULL,
    as_root INTEGER NOT NULL DEFAULT 0,
    folder TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL,
    used REAL NOT NULL,
    PRIMARY KEY (kind, sandbox, name, as_root)
);
