-- name: put
INSERT OR REPLACE INTO forwards (configuration, sandbox, port, local_port, opened)
VALUES (:configuration, :sandbox, :port, :local_port, :opened);

-- name: remove
DELETE FROM forwards WHERE configuration = :configuration AND sandbox = :sandbox AND port = :port;

-- name: of
SELECT sandbox, port, local_port FROM forwards WHERE configuration = :configuration AND opened > :since;
