-- Prices that drop within 5 seconds.
CREATE VIEW cep3 AS
WITH arriving AS (
    SELECT bid.auction, bid.bidder, bid.price, dateTime, _offset AS arrival FROM events WHERE event_type = 2
)
SELECT auction, bidder, dropped, difference
FROM arriving MATCH_RECOGNIZE (
    PARTITION BY auction, bidder
    ORDER BY dateTime, arrival
    MEASURES down.dateTime AS dropped, start.price - down.price AS difference
    ONE ROW PER MATCH
    AFTER MATCH SKIP PAST LAST ROW
    PATTERN (start above* down) WITHIN INTERVAL 5 SECONDS
    DEFINE above AS price > start.price - 50, down AS price < start.price - 50
) AS m
EMIT FINAL;
