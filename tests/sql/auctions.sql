CREATE STREAM events (
    kind INT, auction BIGINT, price BIGINT, at TIMESTAMP,
    WATERMARK FOR at AS at - INTERVAL 2 SECONDS
);
CREATE TABLE users (id BIGINT, name STRING, PRIMARY KEY (id));

CREATE TEMPORARY VIEW bids AS SELECT auction, price * 2 AS price, at FROM events WHERE kind = 2;

CREATE VIEW busy AS
SELECT auction, window_start, window_end, count(*) AS n, max(price) AS price
FROM tumble(TABLE bids, at, INTERVAL 10 SECONDS)
GROUP BY auction, window_start, window_end
EMIT FINAL ALLOWED LATENESS INTERVAL 1 MINUTE;

CREATE VIEW named AS SELECT id, upper(name) AS name FROM users;
