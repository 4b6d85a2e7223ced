-- Who joined and opened an auction in the same tumbling window.
CREATE VIEW q8 AS
SELECT p.id, p.name, p.window_start
FROM (
    SELECT id, name, window_start, window_end FROM tumble(TABLE person, dateTime, INTERVAL 10 SECONDS)
    GROUP BY id, name, window_start, window_end) p
JOIN (
    SELECT seller, window_start, window_end FROM tumble(TABLE auction, dateTime, INTERVAL 10 SECONDS)
    GROUP BY seller, window_start, window_end) a
ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
EMIT FINAL;
