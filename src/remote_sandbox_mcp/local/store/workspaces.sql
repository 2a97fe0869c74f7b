-- name: put
INSERT OR REPLACE INTO workspaces (id, configuration, folder, sandbox, remote, rules, free, inode, created)
VALUES (:id, :configuration, :folder, :sandbox, :remote, :rules, :free, :inode, :created);

-- name: all
SELECT * FROM workspaces ORDER BY folder;

-- name: remove
DELETE FROM workspaces WHERE id = :id;
