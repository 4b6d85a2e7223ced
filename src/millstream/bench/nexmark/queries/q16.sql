-- The same per channel and day, with the last minute seen.
CREATE VIEW q16 AS
SELECT channel, date_format(dateTime, 'yyyy-MM-dd') AS day, max(date_format(dateTime, 'HH:mm')) AS minute,
    count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS bids_low,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS bids_middle,
    count(*) FILTER (WHERE price >= 1000000) AS bids_high,
    count(DISTINCT bidder) AS bidders,
    count(DISTINCT bidder) FILTER (WHERE price < 10000) AS bidders_low,
    count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS bidders_middle,
    count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS bidders_high,
    count(DISTINCT auction) AS auctions,
    count(DISTINCT auction) FILTER (WHERE price < 10000) AS auctions_low,
    count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS auctions_middle,
    count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS auctions_high
FROM bid
GROUP BY channel, date_format(dateTime, 'yyyy-MM-dd');
