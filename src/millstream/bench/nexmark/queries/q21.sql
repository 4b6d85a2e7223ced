-- A number for the channel of each bid.
CREATE VIEW q21 AS
SELECT auction, bidder, price, channel, channel_id
FROM (
    SELECT auction, bidder, price, channel,
        CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE regexp_extract(url, '&channel_id=([^&]*)', 1) END AS channel_id
    FROM bid)
WHERE channel_id <> '';
