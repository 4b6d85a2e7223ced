-- Per category, the average of what its auctions closed at.
CREATE VIEW q4 WITH (unbounded = true) AS
SELECT category, CAST(avg(final) AS BIGINT) AS average
FROM (
    SELECT a.id, a.category, max(b.price) AS final
    FROM auction a JOIN bid b ON a.id = b.auction
    WHERE b.dateTime BETWEEN a.dateTime AND a.expires
    GROUP BY a.id, a.category)
GROUP BY category;
