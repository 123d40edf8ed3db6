-- Jobs, and how much there is of each.
SELECT
    job,
    count(DISTINCT rank) AS ranks,
    count(DISTINCT host) AS hosts,
    count(DISTINCT CASE WHEN step >= 0 THEN step END) AS steps,
    min(t0) AS t0,
    max(t1) AS t1
FROM ops
GROUP BY job
ORDER BY t0
