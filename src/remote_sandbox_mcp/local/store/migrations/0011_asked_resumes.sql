-- Who asked for a resume, empty where the watchdog decided it, and the status of the watch before it.
ALTER TABLE outbox ADD COLUMN asked_by TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN before TEXT NOT NULL DEFAULT 'active';
