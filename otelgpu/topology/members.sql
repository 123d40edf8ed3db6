-- Who was in which communicator, and where.
SELECT job, grp AS communicator, max(n) AS members, rank, max(host) AS host_name
FROM ops
WHERE kind = 'coll' AND grp <> ''
GROUP BY job, grp, rank
ORDER BY job, communicator, rank
