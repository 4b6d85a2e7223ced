-- Prices of a bidder on an auction that fall and rise again.
CREATE VIEW cep0 WITH (unbounded = true) AS
WITH arriving AS (
    SELECT bid.auction, bid.bidder, bid.price, dateTime, _offset AS arrival FROM events WHERE event_type = 2
)
SELECT auction, bidder, begun, lowest, risen
FROM arriving MATCH_RECOGNIZE (
    PARTITION BY auction, bidder
    ORDER BY dateTime, arrival
    MEASURES start.dateTime AS begun, last(down.dateTime) AS lowest, up.dateTime AS risen
    ONE ROW PER MATCH
    AFTER MATCH SKIP TO LAST up
    PATTERN (start down+ up)
    DEFINE down AS price < prev(price), up AS price > prev(price)
) AS m
EMIT FINAL;
