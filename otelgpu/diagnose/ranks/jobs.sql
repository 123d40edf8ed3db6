-- Whose operations there are.
SELECT DISTINCT job
FROM step_sums
ORDER BY job
