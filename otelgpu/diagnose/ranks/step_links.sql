-- Spans of the steps in which a verdict's ranks spent most on what it is about: a few of each rank, the longest first.
-- {kinds}: of `step_sums`; {first} and {last}: the verdict's steps; {ranks}: a condition; {each} and {most}: how many.
SELECT rank, step, link
FROM (
    SELECT
        s.rank AS rank, s.step AS step, s.link AS link, k.seconds AS seconds,
        row_number() OVER (PARTITION BY s.rank ORDER BY k.seconds DESC, s.step, s.link) AS place
    FROM step_spans AS s
    INNER JOIN (
        SELECT job, rank, step, sum(step_sums.seconds) AS seconds
        FROM step_sums
        WHERE kind IN ({kinds}) AND step BETWEEN {first} AND {last}
        GROUP BY job, rank, step
    ) AS k ON s.job = k.job AND s.rank = k.rank AND s.step = k.step
    WHERE {ranks}
) AS placed
WHERE place <= {each}
ORDER BY seconds DESC, rank, step, link
LIMIT {most}
