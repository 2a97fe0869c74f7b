-- Ports of sandboxes that a hub has brought to this machine: should it die, the next one opens them again at the same
-- port, for the clients that go on with it. configuration tells apart sandboxes of the same name; opened as above.
CREATE TABLE forwards (
    configuration TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    port INTEGER NOT NULL,
    local_port INTEGER NOT NULL,
    opened REAL NOT NULL,
    PRIMARY KEY (configuration, sandbox, port)
);
