CREATE TEMPORARY VIEW counted AS
SELECT auction, COUNT(*) AS num, window_start, window_end
FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
GROUP BY auction, window_start, window_end;

SELECT C.auction, C.num, C.window_start, C.window_end
FROM counted AS C
JOIN (
  SELECT MAX(num) AS most, window_start, window_end FROM counted GROUP BY window_start, window_end
) AS M
ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num = M.most
