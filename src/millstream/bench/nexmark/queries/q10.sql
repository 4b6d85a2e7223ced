-- All bids, to files by day and minute.
CREATE VIEW q10 AS
SELECT auction, bidder, price, dateTime, extra,
    date_format(dateTime, 'yyyy-MM-dd') AS day, date_format(dateTime, 'HH:mm') AS minute
FROM bid;

CREATE SINK bids INTO 'files:${folder}/q10?partition=day,minute' FROM q10;
