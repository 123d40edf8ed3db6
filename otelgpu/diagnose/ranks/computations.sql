-- What ranks computed in some steps, by name: more operations, or the same ones for longer.
-- {steps} and {ranks}: numbers, a few of each.
SELECT
    step,
    rank,
    name,
    count(*) AS operations
FROM ops
WHERE kind = 'compute' AND step IN ({steps}) AND rank IN ({ranks})
GROUP BY step, rank, name
