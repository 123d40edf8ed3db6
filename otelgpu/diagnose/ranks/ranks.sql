-- Where each rank runs and what it does in the job. Two hosts of one rank: it was restarted, or two jobs share a name.
SELECT
    rank,
    min(host) AS host,
    max(host) AS other_host,
    max(role) AS role,
    max(lane) AS lane
FROM ops
GROUP BY rank
