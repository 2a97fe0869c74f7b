-- name: all
SELECT * FROM selections;

-- name: put
INSERT OR REPLACE INTO selections (client_pid, client_birth, configuration, server_pid, server_birth, sandbox)
VALUES (:client_pid, :client_birth, :configuration, :server_pid, :server_birth, :sandbox);

-- name: remove
DELETE FROM selections
WHERE client_pid = :client_pid AND client_birth = :client_birth AND configuration = :configuration
    AND server_pid = :server_pid AND server_birth = :server_birth;

-- name: release
UPDATE selections SET server_pid = 0, server_birth = :server_pid || '/' || server_birth
WHERE client_pid = :client_pid AND client_birth = :client_birth AND configuration = :configuration
    AND server_pid = :server_pid AND server_birth = :server_birth;
