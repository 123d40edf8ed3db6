-- Where each rank runs and what it does in the job. Two hosts of one rank: it was restarted, or two jobs share a name.
SELECT
    rank,
    min(step_sums.host) AS host,
    max(step_sums.host) AS other_host,
    max(step_sums.role) AS role,
    max(step_sums.lane) AS lane
FROM step_sums
GROUP BY rank
