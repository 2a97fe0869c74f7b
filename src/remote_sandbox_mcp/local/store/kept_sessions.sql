-- name: note
INSERT INTO kept_sessions (kind, sandbox, name, as_root, folder, created, used)
VALUES (:kind, :sandbox, :name, :as_root, :folder, :used, :used)
ON CONFLICT (kind, sandbox, name, as_root) DO UPDATE SET folder = :folder, used = :used;

-- name: list
SELECT * FROM kept_sessions WHERE kind = :kind AND :sandbox IN ('', sandbox) ORDER BY used DESC;

-- name: remove
DELETE FROM kept_sessions WHERE kind = :kind AND sandbox = :sandbox AND name = :name;

-- name: prune
DELETE FROM kept_sessions WHERE kind = :kind AND used < :before;
