-- What each rank computed for each unit (microbatch) of a step: at most steps × ranks × units rows.
SELECT
    step,
    rank,
    unit,
    sum(t1 - t0) AS seconds
FROM ops
WHERE kind = 'compute' AND step >= 0
GROUP BY step, rank, unit
