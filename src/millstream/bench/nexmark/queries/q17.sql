-- Per auction and day: bids by price, and prices.
CREATE VIEW q17 AS
SELECT auction, date_format(dateTime, 'yyyy-MM-dd') AS day,
    count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS bids_low,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS bids_middle,
    count(*) FILTER (WHERE price >= 1000000) AS bids_high,
    min(price) AS least, max(price) AS most, CAST(avg(price) AS BIGINT) AS average, sum(price) AS total
FROM bid
GROUP BY auction, date_format(dateTime, 'yyyy-MM-dd');
