-- name: get
SELECT blob FROM chunks WHERE key = :key;

-- name: put
INSERT OR IGNORE INTO chunks (key, blob, bytes, used) VALUES (:key, :blob, :bytes, :used);

-- name: touch
UPDATE chunks SET used = :used WHERE key = :key;

-- name: total
SELECT bytes FROM total;

-- name: oldest
SELECT key, bytes FROM chunks ORDER BY used LIMIT 256;

-- name: remove
DELETE FROM chunks WHERE key = :key;
