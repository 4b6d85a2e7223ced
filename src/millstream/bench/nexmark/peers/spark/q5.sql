-- closing
SELECT best.auction, best.num, window.start AS window_start, window.end AS window_end
FROM (
  SELECT window, explode(filter(counts, each -> each.num = most)) AS best
  FROM (
    SELECT window, max(num) AS most, collect_list(struct(auction, num)) AS counts
    FROM (
      SELECT window, auction, count(*) AS num FROM bid GROUP BY window(dateTime, '10 seconds', '2 seconds'), auction
    )
    GROUP BY window
  )
)
