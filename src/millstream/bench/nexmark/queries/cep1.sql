-- The longest runs of bids with a low average, one after the other.
CREATE VIEW cep1 WITH (unbounded = true) AS
WITH arriving AS (
    SELECT bid.auction, bid.bidder, bid.price, dateTime, _offset AS arrival FROM events WHERE event_type = 2
)
SELECT auction, bidder, begun, ended, average
FROM arriving MATCH_RECOGNIZE (
    PARTITION BY auction, bidder
    ORDER BY dateTime, arrival
    MEASURES first(low.dateTime) AS begun, last(low.dateTime) AS ended, cast(avg(low.price) AS bigint) AS average
    ONE ROW PER MATCH
    AFTER MATCH SKIP PAST LAST ROW
    PATTERN (low+ breaks)
    DEFINE low AS avg(low.price) < 10000,
        breaks AS sum(low.price) + price >= 10000 * (count(low.price) + 1)
) AS m
EMIT FINAL;
