-- Per seller, the average of what the last ten of his auctions closed at.
CREATE VIEW q6 WITH (unbounded = true) AS
SELECT seller, CAST(avg(final) AS BIGINT) AS average
FROM (
    SELECT seller, id, expires, final
    FROM (
        SELECT a.id, a.seller, a.expires, max(b.price) AS final
        FROM auction a JOIN bid b ON a.id = b.auction
        WHERE b.dateTime BETWEEN a.dateTime AND a.expires
        GROUP BY a.id, a.seller, a.expires)
    QUALIFY row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) <= 10)
GROUP BY seller;
