-- Whose operations there are.
SELECT DISTINCT job
FROM ops
ORDER BY job
