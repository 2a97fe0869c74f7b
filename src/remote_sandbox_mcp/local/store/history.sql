-- name: add
INSERT INTO history (
    begun, seconds, client, version, session, folder, configuration, sandbox, tool, arguments, outcome, exit_code, told,
    size, expires
) VALUES (
    :begun, :seconds, :client, :version, :session, :folder, :configuration, :sandbox, :tool, :arguments, :outcome,
    :exit_code, :told, :size, :expires
);

-- name: newest
SELECT * FROM (
    SELECT * FROM history
    WHERE id > :after AND (:before = 0 OR id < :before) AND expires > :now
        AND (:client = '' OR instr(lower(client), lower(:client)))
        AND (:sandbox = '' OR sandbox = :sandbox OR instr(', ' || sandbox || ', ', ', ' || :sandbox || ', '))
        AND (:tool = '' OR tool = :tool)
        AND (NOT :failed OR outcome NOT IN ('done', 'asks its user') OR COALESCE(exit_code, 0) <> 0)
    ORDER BY id DESC LIMIT :limit
) ORDER BY id;

-- name: prune
DELETE FROM history
WHERE expires <= :now OR id <= (SELECT MAX(id) FROM history) - :most
    OR (configuration = :configuration AND begun < :before);

-- name: too_large
SELECT MAX(id) FROM (SELECT id, SUM(size) OVER (ORDER BY id DESC) AS total FROM history) WHERE total > :most;

-- name: drop
DELETE FROM history WHERE id <= :id;
