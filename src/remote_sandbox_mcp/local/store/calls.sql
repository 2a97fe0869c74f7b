-- name: begin
INSERT OR IGNORE INTO calls (call, tool, begun) VALUES (:call, :tool, :begun);

-- name: answer
UPDATE calls SET answer = :answer WHERE call = :call;

-- name: get
SELECT * FROM calls WHERE call = :call;

-- name: remove
DELETE FROM calls WHERE call = :call;

-- name: prune
DELETE FROM calls WHERE begun < :before;
