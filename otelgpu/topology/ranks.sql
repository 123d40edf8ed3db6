-- Which rank ran where.
SELECT DISTINCT job, rank, host AS host_name
FROM step_sums
WHERE host <> ''
ORDER BY job, rank, host_name
